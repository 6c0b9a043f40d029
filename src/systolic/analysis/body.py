"""The operations in a kernel's body, and how many there are in one step of the grid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from systolic.compiler import inner_jaxprs

# Primitives that read or write memory.
_ACCESSES = ("get", "swap", "addupdate", "masked_load", "masked_swap", "dma_start", "dma_wait")


def body_equations(jaxpr: Any) -> Iterator[Any]:
    """Yields every equation of a jaxpr, those of branches, loops and inner functions included, in the text's order."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_bodies(equation):
            yield from body_equations(inner)


def inner_bodies(equation: Any) -> Iterator[Any]:
    """Yields the jaxprs inside an equation. That of `run_scoped` takes references to outer buffers as constants."""
    if equation.primitive.name == "run_scoped":
        yield equation.params["jaxpr"]
    else:
        for inner in inner_jaxprs(equation.params):
            yield inner.jaxpr


def read_references(jaxpr: Any) -> set[int]:
    """Finds the parameters of a body, by place, that it reads, or adds to, anywhere in it."""
    places = {variable: at for at, variable in enumerate(jaxpr.invars)}
    return {places[each] for each in _read(jaxpr) if each in places}


def _read(jaxpr: Any) -> set[Any]:
    found = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("get", "addupdate", "masked_load"):
            found.add(equation.invars[0])
        for inner in inner_bodies(equation):
            own = inner.constvars if equation.primitive.name == "run_scoped" else inner.invars
            # The first of an equation's operands may be its own: the number of a branch, constants of a condition.
            handed = dict(zip(reversed(own), reversed(equation.invars), strict=False))
            found |= {handed[each] for each in _read(inner) if each in handed}
    return found


def elementwise_results(equation: Any, operands: Sequence[Any]) -> list[np.ndarray] | None:
    """Computes an operation on scalars for many of them at once, by its own primitive.

    Args:
      equation: an operation on scalars.
      operands: for each of its operands a number, or an array of as many numbers as the others have.

    Returns:
      Its results for each of these numbers; None where it is no elementwise operation.
    """
    if equation.effects:
        return None
    try:
        found = equation.primitive.bind(*operands, **equation.params)
    except Exception:  # noqa: BLE001 -- an operation that asks for other shapes
        return None
    return [np.asarray(each) for each in (found if equation.primitive.multiple_results else [found])]


def dot_flops(equation: Any) -> float:
    """Counts the operations of a `dot_general`: two for each product of elements."""
    return 2.0 * _depth(equation) * math.prod(equation.outvars[0].aval.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCount:
    """How much a body does in one step of the grid, as far as its text tells.

    Attributes:
      flops: operations of its dots; a loop whose length is a value counts once.
      accesses: reads, writes and copies of memory, counted likewise.
      terms: the most terms that one dot or sum adds up for an element, times the iterations of the loops around it.
      roundings: the most iterations of the loops around a dot.
      is_counted: whether the iterations of all loops around dots are known.
      float32_dots: equations of the float32 dots at default precision.
    """

    flops: float = 0.0
    accesses: int = 0
    terms: int = 1
    roundings: int = 1
    is_counted: bool = True
    float32_dots: tuple[Any, ...] = ()

    def __add__(self, other: OpCount) -> OpCount:
        return OpCount(
            flops=self.flops + other.flops,
            accesses=self.accesses + other.accesses,
            terms=max(self.terms, other.terms),
            roundings=max(self.roundings, other.roundings),
            is_counted=self.is_counted and other.is_counted,
            float32_dots=(*self.float32_dots, *other.float32_dots),
        )


def op_count(body: Any, iterations: int | None = 1) -> OpCount:
    """Counts what a jaxpr does when it runs `iterations` times; None: an unknown number of times."""
    total, often = OpCount(), iterations or 1
    for equation in body.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            total += OpCount(
                flops=dot_flops(equation) * often,
                terms=_depth(equation) * often,
                roundings=often,
                is_counted=iterations is not None,
                float32_dots=(equation,) if _is_plain_float32(equation) else (),
            )
        elif name in _ACCESSES:
            total += OpCount(accesses=often)
        elif name == "reduce_sum":
            operand = equation.invars[0].aval
            total += OpCount(terms=operand.size // max(equation.outvars[0].aval.size, 1) * often)
        inner = [op_count(each, loop_iterations(equation, iterations)) for each in inner_bodies(equation)]
        for each in inner:
            total += each
        if name == "cond" and inner:  # only one of the branches is taken
            flops = [each.flops for each in inner]
            total = replace(total, flops=total.flops - sum(flops) + max(flops))
    return total


def loop_iterations(equation: Any, around: int | None) -> int | None:
    """Says how often the inside of an equation runs, itself run `around` times; None: an unknown number of times."""
    if equation.primitive.name == "while" or around is None:
        return None
    return around * equation.params["length"] if equation.primitive.name == "scan" else around


def _depth(dot: Any) -> int:
    (contracted, _), _ = dot.params["dimension_numbers"]
    return math.prod(dot.invars[0].aval.shape[dimension] for dimension in contracted)


def _is_plain_float32(dot: Any) -> bool:
    precision = dot.params.get("precision")
    asked = precision if isinstance(precision, tuple) else (precision,)
    plain = all(each is None or str(getattr(each, "name", each)).upper() == "DEFAULT" for each in asked)
    return plain and all(str(atom.aval.dtype) == "float32" for atom in dot.invars[:2])
