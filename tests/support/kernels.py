"""Pallas calls that tests trace and pick apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from slow_products import product

from systolic.analysis import CallOnGrid, KernelCall, calls_on_grids, kernel_calls

__all__ = ["call_of", "product", "shape", "traced"]


def shape(dtype: Any, *sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def traced(fn: Callable[..., Any], *args: Any) -> tuple[Any, list[CallOnGrid]]:
    """A function's jaxpr, and its Pallas calls with what their grids visit. Arrays are known, shapes are not."""
    jaxpr = jax.make_jaxpr(fn)(*args)
    values = [leaf if isinstance(leaf, np.ndarray) else None for leaf in jax.tree.leaves(args)]
    return jaxpr, calls_on_grids(jaxpr, values)


def call_of(fn: Callable[..., Any], *args: Any) -> KernelCall:
    """The only Pallas call of a function."""
    (call,) = kernel_calls(jax.make_jaxpr(fn)(*args))
    return call
