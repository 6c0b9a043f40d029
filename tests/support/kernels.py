"""Pallas calls that tests trace and pick apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from slow_products import product

from systolic.analysis import CallOnGrid, KernelCall, calls_on_grids, kernel_calls

__all__ = ["call_of", "called", "copy_call", "product", "product_call", "shape", "traced"]


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


def called(fn: Callable[..., Any], *shapes: tuple[tuple[int, ...], str]) -> KernelCall:
    (call,) = kernel_calls(
        jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct(shape, jnp.dtype(name)) for shape, name in shapes))
    )
    return call


def copy_call(
    shape: tuple[int, ...],
    block: tuple[int, ...],
    dtype: str = "float32",
    *,
    index_map: Callable[..., Any] = lambda i, j: (i, j),
    grid: tuple[int, ...] = (4, 3),
    scratch: Sequence[Any] = (),
    limit_bytes: int | None = None,
    **options: Any,
) -> KernelCall:
    def body(in_vmem, out_vmem, *scratch_refs):
        out_vmem[...] = in_vmem[...]

    def launch(array):
        return pl.pallas_call(
            body,
            out_shape=array,
            grid=grid,
            in_specs=[pl.BlockSpec(block, index_map, **options)],
            out_specs=pl.BlockSpec(block, lambda *at: (*at, 0, 0)[: len(block)]),
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=limit_bytes),
        )(array)

    return called(launch, (shape, dtype))


def product_call(m: int, k: int, n: int, steps: int, *, scratch: bool = False, dtype: str = "bfloat16") -> KernelCall:
    """A product of one block of m × k × n, summed up over `steps` of them."""

    def body(lhs_vmem, rhs_vmem, out_vmem, *acc_vmem):
        total = acc_vmem[0] if scratch else out_vmem

        @pl.when(pl.program_id(1) == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=jnp.float32)
        if scratch:

            @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
            def _():
                out_vmem[...] = total[...]

    def launch(lhs, rhs):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((2 * m, n), jnp.float32),
            grid=(2, steps),
            in_specs=[pl.BlockSpec((m, k), lambda i, kk: (i, kk)), pl.BlockSpec((k, n), lambda i, kk: (kk, 0))],
            out_specs=pl.BlockSpec((m, n), lambda i, kk: (i, 0)),
            scratch_shapes=[pltpu.VMEM((m, n), jnp.float32)] if scratch else [],
        )(lhs, rhs)

    return called(launch, ((2 * m, steps * k), dtype), ((steps * k, n), dtype))
