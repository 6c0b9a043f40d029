"""A product with a quantized weight by its Pallas kernel, with the tiles of its plan."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from systolic.kernels.interpreted import tracing_for
from systolic.kernels.launch import HbmKernel
from systolic.ops.engine.planned import with_plans
from systolic.ops.planner import Plans
from systolic.ops.quantized.kernel.copies import QuantizedOperands
from systolic.ops.quantized.kernel.product import quantized_product
from systolic.ops.quantized.product import Operands, QuantizedProduct
from systolic.ops.quantized.schedule import QuantizedSchedule, aligned_sizes
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import LANES


@with_plans(static=1)
def by_pallas(plans: Plans, product: QuantizedProduct, operands: Operands) -> Array:
    chip = product.backend.chip
    assert chip is not None  # else it is computed by XLA
    operands = operands._replace(lhs=product.backend.on_tpu(operands.lhs))
    m, n = operands.lhs.shape[0], product.columns(operands)
    if n % LANES:
        operands = product.apart(operands)  # tiles of one weight must not reach into the other
    operands = _aligned(operands)
    spec = product.spec(operands)
    plan = plans(spec, chip, product.backend.tiles)
    schedule = QuantizedSchedule.of(spec, plan.config, chip)
    rows = schedule.grid_m * schedule.tile_m - m
    with tracing_for(chip):
        out = quantized_product(
            QuantizedOperands(
                lhs=_padded(operands.lhs, rows, 0),
                values=_as_stored(operands.values, spec),
                scales=operands.scales,
                bias=None if operands.bias is None else operands.bias.astype(jnp.float32)[None],
                residual=_padded(operands.residual, rows, 0),
                lhs_scales=_padded(operands.lhs_scales, rows, 0),
                out_scale=None if operands.out_scale is None else operands.out_scale.astype(jnp.float32)[None],
                up_values=None if operands.up_values is None else _as_stored(operands.up_values, spec),
                up_scales=operands.up_scales,
            ),
            HbmKernel(
                spec=spec,
                schedule=schedule,
                chip=chip,
                vmem_limit_bytes=plan.vmem_limit_bytes,
                interpret=product.backend.interpret,
            ),
            activation=product.function,
        )
    return out[:m, :n]


def _as_stored(values: Array, spec: QuantizedSpec) -> Array:
    """Return values as the kernel reads them: a weight in float32 is rounded."""
    return values if values.dtype.name == spec.dtype_rhs else values.astype(spec.dtype_rhs)


def _aligned(operands: Operands) -> Operands:
    """Return operands with k and n in whole registers: a weight of other sizes is copied, with zeros after it."""
    (k, n), blocks = operands.values.shape, operands.scales.shape[0]
    block = k // blocks
    k_aligned, n_aligned = aligned_sizes(k, n, block)
    more_k, more_n = k_aligned - k, n_aligned - n
    if not more_k and not more_n:
        return operands
    more_blocks = more_k // block if blocks > 1 else 0
    scales_by_block = operands.lhs_scales is not None and operands.lhs_scales.shape[1] > 1
    return Operands(
        lhs=_padded(operands.lhs, 0, more_k),
        values=_padded(operands.values, more_k, more_n),
        scales=_padded(operands.scales, more_blocks, more_n),
        bias=None if operands.bias is None else jnp.pad(operands.bias, [(0, more_n)]),
        residual=_padded(operands.residual, 0, more_n),
        lhs_scales=_padded(operands.lhs_scales, 0, more_k // block) if scales_by_block else operands.lhs_scales,
        out_scale=None if operands.out_scale is None else jnp.pad(operands.out_scale, [(0, more_n)]),
        up_values=_padded(operands.up_values, more_k, more_n),
        up_scales=_padded(operands.up_scales, more_blocks, more_n),
    )


def _padded(array: Any, rows: int, columns: int) -> Any:
    return jnp.pad(array, [(0, rows), (0, columns)]) if array is not None and (rows or columns) else array
