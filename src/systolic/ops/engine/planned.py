"""Calls of Pallas kernels with the tiles of the planner in use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import jax

from systolic.ops.planner import Plans, planner_in_use

P = ParamSpec("P")
R = TypeVar("R")


def with_plans(*, static: int) -> Callable[[Callable[Concatenate[Plans, P], R]], Callable[P, R]]:
    """Return a decorator that jits a call of a kernel and hands it the plans of the planner in use.

    Plans are static, so that another planner, or the same one when there is a new winner, has other kernels; after them
    come `static` static arguments.
    """

    def decorate(call: Callable[Concatenate[Plans, P], R]) -> Callable[P, R]:
        jitted = jax.jit(call, static_argnums=tuple(range(static + 1)))

        @functools.wraps(call)
        def run(*args: P.args, **keywords: P.kwargs) -> R:
            return jitted(planner_in_use().plans, *args, **keywords)

        return run

    return decorate
