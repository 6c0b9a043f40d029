"""A product with a quantized weight: `(activation(lhs @ (values · scales) + bias) + residual) · out_scale`.

Or, gated, with two weights: `activation(lhs @ gate) · (lhs @ up)`. Tiles of both pass together, and meet the same rows.

Rows of lhs are floats, or quantized: in HBM, with scales of rows or of blocks of k, or here, when a block of rows is
new, with a scale for each row. Scales of rows and of columns are applied to sums separately.

Grid: (i, j, kk), kk innermost. Rows of lhs stay in VMEM with all of k while the weight passes, tile by tile, as it is
stored: nothing but its few bits crosses HBM. Each tile is converted to the form of its route (`quantized.route`), a
subtile at a time in parallel with the products; weights that several subtiles of rows meet are converted once and kept.
Scales multiply the sums of their blocks, or the weights.

In VMEM: a block of rows, and one more as they are multiplied if they are stored in another dtype, or else for the next
block, with their scales;
a ring of tiles of the weight and its scales, a ring of tiles of the result, where k takes several steps one sum, and
where weights are pushed with an offset the sums of the rows of lhs, which the matrix units make.

With a weight that is not quantized, or one whose scale is one number, `kernels.auto_pipeline` is as fast.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Shaped

from systolic.kernels.launch import HbmKernel, vmem_shapes
from systolic.ops.quantized.kernel.copies import Buffers, QuantizedOperands
from systolic.ops.quantized.kernel.step import Fn, Step
from systolic.ops.quantized.schedule import QuantizedSchedule
from systolic.ops.quantized.spec import QuantizedSpec


def quantized_product(
    operands: QuantizedOperands, kernel: HbmKernel[QuantizedSpec, QuantizedSchedule], *, activation: Fn | None
) -> Shaped[Array, "m n"]:
    """Return the product.

    Args:
      operands: lhs, and the residual, have `schedule.grid_m · schedule.tile_m` rows; k and n are multiples of 128.
        Scales are [blocks, n]. A gated product has both weights, or one [k, 2n] with up after gate.
      activation: the function that `spec.activation` names.
    """
    spec, interpret = kernel.spec, kernel.interpret
    schedule = _as_interpreted(kernel.schedule, spec) if interpret else kernel.schedule
    ring_schedule, m = schedule, schedule.grid_m * schedule.tile_m
    out_tile = (ring_schedule.tile_m, ring_schedule.tile_n)

    def load(array: Any, *, of_bits: bool = False) -> Any:
        return _as_loaded(array, of_bits) if interpret and array is not None else array

    made_of_bits = ring_schedule.route.made == "bits"
    arrays = operands._replace(
        lhs=load(operands.lhs, of_bits=ring_schedule.route.rows_of_bits),
        values=load(operands.values, of_bits=made_of_bits),
        scales=_tiled(operands.scales, ring_schedule),
        up_values=load(operands.up_values, of_bits=made_of_bits),
        up_scales=None if operands.up_scales is None else _tiled(operands.up_scales, ring_schedule),
    )
    row = pl.BlockSpec((1, spec.n), lambda i, j, kk: (0, 0))
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    places = QuantizedOperands(
        lhs=hbm,
        values=hbm,
        scales=hbm,
        bias=row,
        residual=pl.BlockSpec(out_tile, lambda i, j, kk: (i, j)),
        lhs_scales=pl.BlockSpec((ring_schedule.tile_m, spec.lhs_blocks), lambda i, j, kk: (i, 0)),
        out_scale=row,
        up_values=hbm,
        up_scales=hbm,
    )

    def body(refs: QuantizedOperands, out_hbm: Any, scratch: Buffers) -> None:
        Step.of_the_grid(refs, out_hbm, scratch, spec, schedule, activation).run()

    return kernel.launch(
        body,
        arrays,
        places,
        (m, spec.n),
        from_hbm=("values", "scales", "up_values", "up_scales"),
        activations=("lhs",),
        grid=(ring_schedule.grid_m, ring_schedule.grid_n, ring_schedule.grid_k),
        scratch_shapes=(_buffers(spec, schedule, arrays),),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",) * 3, vmem_limit_bytes=kernel.vmem_limit_bytes
        ),
        name=_name(spec),
    )


def _name(spec: QuantizedSpec) -> str:
    formats = spec.dtype_rhs if spec.row_format is None else f"{spec.row_format}_{spec.dtype_rhs}"
    op = "systolic_quantized_gated" if spec.gated else "systolic_quantized"
    return f"{op}_{formats}_{spec.block}_{spec.m}_{spec.k}_{spec.n}"


def _as_interpreted(schedule: QuantizedSchedule, spec: QuantizedSpec) -> QuantizedSchedule:
    """Cast int4 to int8 on a CPU, where XLA does not compile products of int4."""
    route = schedule.route
    if route.rows != "int4":
        return schedule
    return schedule.with_route(spec, replace(route, rows="int8", pushed="int8", made="cast"))


def _as_loaded(values: Array, of_bits: bool) -> Array:
    """Return integers of the same bits in interpret mode, where a ref has one dtype: for fp4 and floats of bits."""
    if values.dtype == jnp.float4_e2m1fn:
        return _fp4_bits(values.astype(jnp.float32)).astype(jnp.int4)
    is_float8 = jnp.issubdtype(values.dtype, jnp.floating) and values.dtype.itemsize == 1
    return lax.bitcast_convert_type(values, jnp.int8) if of_bits and is_float8 else values


def _fp4_bits(values: Array) -> Array:
    """Return the code of each number of float4_e2m1fn, -8 to 7.

    Not by a bitcast: some of XLA's emitters for the CPU fuse it with the pad before it into a faulty program.
    """
    reached = (jnp.abs(values) >= magnitude for magnitude in (0.5, 1, 1.5, 2, 3, 4, 6))
    return sum(reached, start=-8 * jnp.signbit(values).astype(jnp.int32))


def _tiled(scales: Array, schedule: QuantizedSchedule) -> Array:
    """Return scales with a whole axis for each tile; with a multiple of eight blocks this copies nothing."""
    return scales.reshape(-1, schedule.tile_blocks, scales.shape[1])


def _buffers(spec: QuantizedSpec, schedule: QuantizedSchedule, arrays: QuantizedOperands) -> Buffers:
    # In interpret mode arrays may come in another dtype.
    vmem = vmem_shapes(schedule.buffers, lhs=arrays.lhs.dtype, values=arrays.values.dtype)
    slots = (schedule.slots, spec.weights)
    return Buffers(
        lhs=vmem["lhs"],
        values=vmem["values"],
        scales=vmem["scales"],
        out=vmem["out"],
        rows=vmem.get("rows"),
        row_scales=vmem.get("row scales"),
        row_sums=vmem.get("row sums"),
        acc=vmem.get("acc"),
        weights=vmem.get("weights"),
        lhs_sem=pltpu.SemaphoreType.DMA((schedule.row_slots, -(-schedule.tile_m // schedule.rows_at_once))),
        values_sem=pltpu.SemaphoreType.DMA(slots),
        scales_sem=pltpu.SemaphoreType.DMA(slots),
        out_sem=pltpu.SemaphoreType.DMA((schedule.out_slots,)),
    )
