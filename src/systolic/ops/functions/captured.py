"""Makes numbers of the arrays of one element that a function closes over, because a kernel has no constants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Fn = Callable[..., Any]


@functools.lru_cache(maxsize=256)
def with_numbers(fn: Fn) -> Fn:
    """The same function; in the jaxpr that is traced of it, captured arrays of one element are literals."""

    @functools.wraps(fn)
    def numbered(*args: Any) -> Any:
        closed = jax.make_jaxpr(fn)(*args)
        return _evaluated(closed, args)[0]

    return numbered


def _evaluated(closed: Any, args: Sequence[Any]) -> list[Any]:
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

    jaxpr = closed.jaxpr
    values = dict(zip(jaxpr.constvars, map(_number, closed.consts), strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def of(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        if equation.primitive.name in ("jit", "pjit"):  # keeps its constants to itself
            outs = _evaluated(equation.params["jaxpr"], [of(atom) for atom in equation.invars])
        else:
            inputs = {atom: of(atom) for atom in equation.invars if not hasattr(atom, "val")}
            described = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
            alone = jaxpr.replace(
                eqns=[equation], constvars=[], invars=list(inputs), outvars=equation.outvars, debug_info=described
            )
            outs = jaxpr_as_fun(ClosedJaxpr(alone, ()))(*inputs.values())
        values.update(zip(equation.outvars, outs, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _number(constant: Any) -> Any:
    """A constant of one element as a literal of the jaxpr; others as they are."""
    if np.size(constant) != 1:
        return constant
    number = np.asarray(constant).reshape(())[()]
    return number if np.ndim(constant) == 0 else jnp.full(np.shape(constant), number)
