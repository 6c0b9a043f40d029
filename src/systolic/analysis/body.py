"""Count the operations in a kernel's body in one step of the grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from systolic.compat.jaxpr_values import bound, calls_inside, evaluate, unknown
from systolic.compat.jaxprs import functions_inside, iterations

# Primitives that read or write memory.
_ACCESSES = ("get", "swap", "addupdate", "masked_load", "masked_swap", "dma_start", "dma_wait")


def read_references(jaxpr: Any) -> set[int]:
    """Return the numbers of the parameters that a body reads or adds to anywhere."""
    places: set[int | None] = set()

    def step(equation: Any, inputs: list[int | None]) -> tuple[()]:
        if equation.primitive.name in ("get", "addupdate", "masked_load"):
            places.add(inputs[0])
        for function, operands in calls_inside(equation, inputs):
            evaluate(function, operands, step, literal=unknown, constant=unknown)
        return ()

    evaluate(jaxpr, range(len(jaxpr.invars)), step, literal=unknown, constant=unknown)
    return {place for place in places if place is not None}


def elementwise_results(equation: Any, operands: Sequence[Any]) -> list[np.ndarray] | None:
    """Apply a scalar operation to many scalars at once, with its own primitive; None if it is not elementwise.

    Each operand is a number, or an array; arrays have equal sizes.
    """
    if equation.effects:
        return None
    try:
        return [np.asarray(result) for result in bound(equation, operands)]
    except Exception:  # noqa: BLE001 -- an operation that needs other shapes
        return None


def dot_flops(equation: Any) -> float:
    """Count the operations of a `dot_general`: two for each product of elements."""
    return 2.0 * _depth(equation) * math.prod(equation.outvars[0].aval.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCount:
    """The operations of a kernel's body in one step of the grid, as far as its text tells."""

    flops: float = 0.0  # operations of its dots; a loop of unknown length counts once
    accesses: int = 0  # reads, writes and copies of memory, counted the same way
    # The most terms that one dot or sum adds for an element, times the iterations of the loops around it.
    terms: int = 1
    roundings: int = 1  # the most iterations of the loops around a dot
    is_counted: bool = True  # the iterations of all loops around dots are known
    float32_dots: tuple[Any, ...] = ()  # equations of the float32 dots at default precision

    def __add__(self, other: OpCount) -> OpCount:
        return OpCount(
            flops=self.flops + other.flops,
            accesses=self.accesses + other.accesses,
            terms=max(self.terms, other.terms),
            roundings=max(self.roundings, other.roundings),
            is_counted=self.is_counted and other.is_counted,
            float32_dots=(*self.float32_dots, *other.float32_dots),
        )


def op_count(body: Any, times: int | None = 1) -> OpCount:
    """Count the operations of `times` executions of a jaxpr; None: an unknown number."""
    total, often = OpCount(), times or 1
    for equation in body.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            total += OpCount(
                flops=dot_flops(equation) * often,
                terms=_depth(equation) * often,
                roundings=often,
                is_counted=times is not None,
                float32_dots=(equation,) if _is_plain_float32(equation) else (),
            )
        elif name in _ACCESSES:
            total += OpCount(accesses=often)
        elif name == "reduce_sum":
            operand = equation.invars[0].aval
            total += OpCount(terms=operand.size // max(equation.outvars[0].aval.size, 1) * often)
        inside = times_inside(equation, times)
        counts = [op_count(function.jaxpr, inside) for function in functions_inside(equation)]
        total = sum(counts, total)
        if name == "cond" and counts:  # only one of the branches is taken
            flops = [count.flops for count in counts]
            total = replace(total, flops=total.flops - sum(flops) + max(flops))
    return total


def times_inside(equation: Any, times: int | None) -> int | None:
    """Count how often the inside of an equation runs in `times` executions of it; None: an unknown number."""
    rounds = iterations(equation)
    return None if times is None or rounds is None else times * rounds


def _depth(dot: Any) -> int:
    (contracted, _), _ = dot.params["dimension_numbers"]
    return math.prod(dot.invars[0].aval.shape[dimension] for dimension in contracted)


def _is_plain_float32(dot: Any) -> bool:
    precision = dot.params.get("precision")
    precisions = precision if isinstance(precision, tuple) else (precision,)
    plain = all(
        precision_of is None or str(getattr(precision_of, "name", precision_of)).upper() == "DEFAULT"
        for precision_of in precisions
    )
    return plain and all(str(atom.aval.dtype) == "float32" for atom in dot.invars[:2])
