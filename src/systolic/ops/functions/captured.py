"""Turn arrays of one element that a function closes over into numbers, because a kernel has no constants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from systolic.compat.jaxpr_values import bound, evaluate
from systolic.compat.jaxprs import called_function

Fn = Callable[..., Any]


@functools.lru_cache(maxsize=256)
def with_numbers(fn: Fn) -> Fn:
    """Return the function with captured arrays of one element as literals of its jaxpr."""

    @functools.wraps(fn)
    def numbered(*args: Any) -> Any:
        return evaluate(jax.make_jaxpr(fn)(*args), args, _step, constant=_number)[0]

    return numbered


def _step(equation: Any, operands: Sequence[Any]) -> list[Any]:
    if equation.primitive.name == "jit":  # keeps its constants to itself
        return evaluate(called_function(equation), operands, _step, constant=_number)
    return bound(equation, operands)


def _number(constant: Any) -> Any:
    """Return a constant of one element as a literal of the jaxpr; others unchanged."""
    if np.size(constant) != 1:
        return constant
    number = np.asarray(constant).reshape(())[()]
    return number if np.ndim(constant) == 0 else jnp.full(np.shape(constant), number)
