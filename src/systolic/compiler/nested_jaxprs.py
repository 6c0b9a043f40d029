"""The jaxprs inside of a jaxpr's equations, and which equations matter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.compiler.mesh_place import names_axis


@dataclass(frozen=True, slots=True)
class _Closed:
    """A jaxpr without constants, in the form of one that has them."""

    jaxpr: Any
    consts: tuple[()] = ()


def used_equations(jaxpr: Any, used: Sequence[bool] | None) -> dict[int, list[bool]]:
    """Return the equations that matter, by number, and which results of each. The compiler drops the others."""
    live = {atom for at, atom in enumerate(jaxpr.outvars) if not hasattr(atom, "val") and (used is None or used[at])}
    wanted: dict[int, list[bool]] = {}
    for number in reversed(range(len(jaxpr.eqns))):
        equation = jaxpr.eqns[number]
        results = [each in live for each in equation.outvars]
        if any(results) or equation.effects:
            wanted[number] = results
            live.update(atom for atom in equation.invars if not hasattr(atom, "val"))
    return wanted


def names_axes(closed: Any) -> bool:
    """True if an operation of a jaxpr asks which device it is on, or asks others."""
    return any(
        names_axis(equation) or any(map(names_axes, inner_jaxprs(equation.params))) for equation in closed.jaxpr.eqns
    )


def inner_jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the jaxprs among an equation's parameters, each with `jaxpr` and `consts`."""
    for value in params.values():
        for inner in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(inner, "jaxpr") and hasattr(inner, "consts"):
                yield inner
            elif hasattr(inner, "eqns") and hasattr(inner, "constvars") and not inner.constvars:
                yield _Closed(inner)


def holds(primitive: str, closed: Any) -> bool:
    """True if a jaxpr, or one within it, has an operation of this name."""
    return any(
        equation.primitive.name == primitive or any(holds(primitive, inner) for inner in inner_jaxprs(equation.params))
        for equation in closed.jaxpr.eqns
    )
