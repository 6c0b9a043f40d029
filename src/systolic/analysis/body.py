"""What a kernel's body holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from systolic.compiler import inner_jaxprs

# Primitives that read or write memory.
_ACCESSES = ("get", "swap", "addupdate", "masked_load", "masked_swap", "dma_start", "dma_wait")


def body_equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr, those of branches, loops and inner functions included, in the order of the text."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_bodies(equation):
            yield from body_equations(inner)


def inner_bodies(equation: Any) -> Iterator[Any]:
    """The jaxprs inside of an equation. Those of buffers with a scope take references to others as constants."""
    if equation.primitive.name == "run_scoped":
        yield equation.params["jaxpr"]
    else:
        for inner in inner_jaxprs(equation.params):
            yield inner.jaxpr


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much a body does in one step of the grid, as far as its text tells.

    Attributes:
      flops: of its dots; a loop whose rounds are a value counts once.
      accesses: reads, writes and copies of memory, likewise.
      terms: that one dot or sum adds up for an element, times the rounds of the loops around it: the largest.
      roundings: rounds of the loops around a dot: the largest.
      is_counted: whether the rounds of all loops around dots are known.
      float32_dots: dots of float32 at default precision, as their equations.
    """

    flops: float = 0.0
    accesses: int = 0
    terms: int = 1
    roundings: int = 1
    is_counted: bool = True
    float32_dots: tuple[Any, ...] = ()


def work_of(body: Any) -> Work:
    """What a body does in one step, from its jaxpr."""
    return _work(body, 1)


def _work(jaxpr: Any, rounds: int | None) -> Work:
    done = Work()
    for equation in jaxpr.eqns:
        name, often = equation.primitive.name, rounds or 1
        if name == "dot_general":
            depth = _depth(equation)
            dot = Work(
                flops=2.0 * depth * equation.outvars[0].aval.size * often,
                terms=depth * often,
                roundings=often,
                is_counted=rounds is not None,
                float32_dots=(equation,) if _is_float32(equation) else (),
            )
            done = _both(done, dot)
        elif name in _ACCESSES:
            done = _both(done, Work(accesses=often))
        elif name == "reduce_sum":
            operand = equation.invars[0].aval
            done = _both(done, Work(terms=operand.size // max(equation.outvars[0].aval.size, 1) * often))
        inside = rounds
        if name == "scan":
            inside = None if rounds is None else rounds * equation.params["length"]
        elif name == "while":
            inside = None
        parts = [_work(inner, inside) for inner in inner_bodies(equation)]
        for part in parts:
            done = _both(done, part)
        if name == "cond" and parts:  # one of them is taken
            flops = [part.flops for part in parts]
            done = replace(done, flops=done.flops - sum(flops) + max(flops))
    return done


def _both(one: Work, other: Work) -> Work:
    return Work(
        flops=one.flops + other.flops,
        accesses=one.accesses + other.accesses,
        terms=max(one.terms, other.terms),
        roundings=max(one.roundings, other.roundings),
        is_counted=one.is_counted and other.is_counted,
        float32_dots=(*one.float32_dots, *other.float32_dots),
    )


def _depth(dot: Any) -> int:
    (contracted, _), _ = dot.params["dimension_numbers"]
    shape, depth = dot.invars[0].aval.shape, 1
    for dimension in contracted:
        depth *= shape[dimension]
    return depth


def _is_float32(dot: Any) -> bool:
    precision = dot.params.get("precision")
    asked = precision if isinstance(precision, tuple) else (precision,)
    plain = all(each is None or str(getattr(each, "name", each)).upper() == "DEFAULT" for each in asked)
    return plain and all(str(atom.aval.dtype) == "float32" for atom in dot.invars[:2])
