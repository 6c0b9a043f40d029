"""Grouped products by Pallas kernels, with the tiles of their plans."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from systolic.kernels.interpreted import tracing_for
from systolic.kernels.launch import HbmKernel
from systolic.ops.engine.planned import with_plans
from systolic.ops.grouped.kernel.gradient import GradientOperands, grouped_gradient
from systolic.ops.grouped.kernel.product import grouped_product
from systolic.ops.grouped.kernel.product_arrays import GroupedOperands
from systolic.ops.grouped.product import Fused, GroupedProduct, Grouping
from systolic.ops.grouped.schedule import GradientSchedule, GroupedSchedule, registers_rows
from systolic.ops.planner import Plans
from systolic.schedule.sizes import padded


@with_plans(static=1)
def product_by_pallas(
    plans: Plans, product: GroupedProduct, lhs: Array, rhs: Array, grouping: Grouping, fused: Fused
) -> Array:
    chip, m = product.backend.chip, lhs.shape[0]
    assert chip is not None  # else it is computed by XLA
    spec = product.spec(lhs, rhs, fused)
    lhs = _of_whole_registers(product.backend.on_tpu(lhs), *spec.row_dtypes)
    bias, row_scale, up, residual, existing, rhs_scale, lhs_scale = fused
    if bias is not None:
        bias = bias.astype(jnp.float32)[:, None, :]
    row_scale, lhs_scale = (
        None if scale is None else jnp.pad(scale.astype(jnp.float32)[:, None], [(0, lhs.shape[0] - m), (0, 0)])
        for scale in (row_scale, lhs_scale)
    )
    residual, existing = (
        None if array is None else jnp.pad(array, [(0, lhs.shape[0] - m), (0, 0)]) for array in (residual, existing)
    )
    spec = replace(spec, m=lhs.shape[0])
    plan = plans(spec, chip, product.backend.tiles)
    with tracing_for(chip):
        out = grouped_product(
            GroupedOperands(
                grouping.sizes, grouping.offset, lhs, rhs, bias, row_scale, up, residual, rhs_scale, lhs_scale, existing
            ),
            HbmKernel(
                spec=spec,
                schedule=GroupedSchedule.of(spec, plan.config, chip),
                chip=chip,
                vmem_limit_bytes=plan.vmem_limit_bytes,
                interpret=product.backend.interpret,
            ),
            activation=product.function,
        )
    return out[:m]


@with_plans(static=2)
def gradient_by_pallas(
    plans: Plans, product: GroupedProduct, groups: int, lhs: Array, cotangent: Array, grouping: Grouping
) -> Array:
    chip = product.backend.chip
    assert chip is not None
    lhs, cotangent = (
        _of_whole_registers(array, array.dtype.name, product.dtype_out)
        for array in (product.backend.on_tpu(lhs), cotangent)
    )
    spec = product.gradient_spec(lhs, cotangent, groups)
    plan = plans(spec, chip, product.backend.tiles)
    with tracing_for(chip):
        return grouped_gradient(
            GradientOperands(grouping.sizes, grouping.offset, lhs, cotangent),
            HbmKernel(
                spec=spec,
                schedule=GradientSchedule.of(spec, plan.config, chip),
                chip=chip,
                vmem_limit_bytes=plan.vmem_limit_bytes,
                interpret=product.backend.interpret,
            ),
        )


def _of_whole_registers(array: Array, *dtypes: str) -> Array:
    """Pad rows to a multiple of a register's rows, by a copy if they are none."""
    rows = padded(array.shape[0], registers_rows(*dtypes))
    return jnp.pad(array, [(0, rows - array.shape[0]), (0, 0)]) if rows > array.shape[0] else array
