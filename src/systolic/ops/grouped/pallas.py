"""Grouped products by Pallas kernels, with the tiles of their plans."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from systolic.kernels.interpreted import tracing_for
from systolic.ops.grouped.kernel.gradient import GradientOperands, grouped_gradient
from systolic.ops.grouped.kernel.product import grouped_product
from systolic.ops.grouped.kernel.product_arrays import GroupedOperands
from systolic.ops.grouped.product import Fused, GroupedProduct, Grouping
from systolic.ops.grouped.schedule import GradientSchedule, GroupedSchedule, registers_rows
from systolic.ops.planner import Plans, planner_in_use
from systolic.schedule.sizes import padded


def product_by_pallas(product: GroupedProduct, lhs: Array, rhs: Array, grouping: Grouping, fused: Fused) -> Array:
    """`lhs[rows of g] @ rhs[g]` by the Pallas kernel, with the tiles of the planner in use."""
    return _product(product, planner_in_use().plans, lhs, rhs, grouping, fused)


def gradient_by_pallas(product: GroupedProduct, groups: int, lhs: Array, cotangent: Array, grouping: Grouping) -> Array:
    """`lhs[rows of g]ᵀ @ cotangent[rows of g]` by the Pallas kernel, with the tiles of the planner in use."""
    return _gradient(product, planner_in_use().plans, groups, lhs, cotangent, grouping)


# Static, so that another planner, or the same one when there is a new winner, has other kernels.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _product(product: GroupedProduct, plans: Plans, lhs: Array, rhs: Array, grouping: Grouping, fused: Fused) -> Array:
    chip, m = product.backend.chip, lhs.shape[0]
    assert chip is not None  # else it is computed by XLA
    spec = product.spec(lhs, rhs, fused)
    lhs = _of_whole_registers(product.backend.on_tpu(lhs), *spec.row_dtypes)
    bias, row_scale, up, residual, existing = fused
    if bias is not None:
        bias = bias.astype(jnp.float32)[:, None, :]
    if row_scale is not None:
        row_scale = jnp.pad(row_scale.astype(jnp.float32)[:, None], [(0, lhs.shape[0] - m), (0, 0)])
    residual, existing = (
        None if one is None else jnp.pad(one, [(0, lhs.shape[0] - m), (0, 0)]) for one in (residual, existing)
    )
    spec = replace(spec, m=lhs.shape[0])
    chosen = plans(spec, chip, product.backend.tiles)
    # A TPU's scalar unit has 32 bits, and so has every number in a kernel.
    with jax.enable_x64(False), tracing_for(chip):
        out = grouped_product(
            GroupedOperands(grouping.sizes, grouping.offset, lhs, rhs, bias, row_scale, up, residual, existing),
            spec=spec,
            schedule=GroupedSchedule.of(spec, chosen.config, chip),
            activation=product.function,
            vmem_limit_bytes=chosen.vmem_limit_bytes,
            interpret=product.backend.interpret,
        )
    return out[:m]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _gradient(
    product: GroupedProduct, plans: Plans, groups: int, lhs: Array, cotangent: Array, grouping: Grouping
) -> Array:
    chip = product.backend.chip
    assert chip is not None
    lhs, cotangent = (
        _of_whole_registers(one, one.dtype.name, product.dtype_out) for one in (product.backend.on_tpu(lhs), cotangent)
    )
    spec = product.gradient_spec(lhs, cotangent, groups)
    chosen = plans(spec, chip, product.backend.tiles)
    with jax.enable_x64(False), tracing_for(chip):
        return grouped_gradient(
            GradientOperands(grouping.sizes, grouping.offset, lhs, cotangent),
            spec=spec,
            schedule=GradientSchedule.of(spec, chosen.config, chip),
            vmem_limit_bytes=chosen.vmem_limit_bytes,
            interpret=product.backend.interpret,
        )


def _of_whole_registers(array: Array, *dtypes: str) -> Array:
    """Rows that are no multiple of a register's are copied to an array that is longer."""
    rows = padded(array.shape[0], registers_rows(*dtypes))
    return jnp.pad(array, [(0, rows - array.shape[0]), (0, 0)]) if rows > array.shape[0] else array
