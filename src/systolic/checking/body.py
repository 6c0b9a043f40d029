"""A kernel's body, equation by equation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from systolic.compiler import inner_jaxprs


def body_equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr in the order of its text, each followed by those inside: branches, loops, calls."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_jaxprs(equation.params):
            yield from body_equations(inner.jaxpr)
