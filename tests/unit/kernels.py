"""Small Pallas calls that tests trace and pick apart; none is executed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.checking.calls import KernelCall, kernel_calls
from systolic.checking.visits import CallOnGrid, calls_on_grids


def shape(dtype: Any, *sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def product(
    lhs: Any,
    rhs: Any,
    *,
    tile_m: int = 256,
    tile_k: int = 256,
    tile_n: int = 256,
    grid: tuple[int, int, int] | None = None,
    order: str = "mnk",
    semantics: Sequence[str] | None = None,
    **options: Any,
) -> Any:
    """lhs @ rhs with the sum in scratch; `order` names the axes of the grid."""
    (m, k), n = lhs.shape, rhs.shape[1]
    last = order.index("k")

    def kernel(lhs_vmem, rhs_vmem, out_vmem, acc_vmem):
        @pl.when(pl.program_id(last) == 0)
        def _():
            acc_vmem[...] = jnp.zeros_like(acc_vmem)

        acc_vmem[...] += jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(last) == pl.num_programs(last) - 1)
        def _():
            out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)

    def at(*axes: str) -> Callable[..., tuple[Any, ...]]:
        return lambda *ids: tuple(ids[order.index(axis)] for axis in axes)

    steps = dict(zip("mnk", grid or (m // tile_m, n // tile_n, k // tile_k), strict=True))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        grid=tuple(steps[axis] for axis in order),
        in_specs=[pl.BlockSpec((tile_m, tile_k), at("m", "k")), pl.BlockSpec((tile_k, tile_n), at("k", "n"))],
        out_specs=pl.BlockSpec((tile_m, tile_n), at("m", "n")),
        scratch_shapes=[pltpu.VMEM((tile_m, tile_n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
        name="product",
        **options,
    )(lhs, rhs)


def traced(fn: Callable[..., Any], *args: Any) -> tuple[Any, list[CallOnGrid]]:
    """A function's jaxpr, and its Pallas calls with what their grids visit. Arrays are known, shapes are not."""
    jaxpr = jax.make_jaxpr(fn)(*args)
    values = [leaf if isinstance(leaf, np.ndarray) else None for leaf in jax.tree.leaves(args)]
    return jaxpr, calls_on_grids(jaxpr, values)


def call_of(fn: Callable[..., Any], *args: Any) -> KernelCall:
    """The only Pallas call of a function."""
    (call,) = kernel_calls(jax.make_jaxpr(fn)(*args))
    return call
