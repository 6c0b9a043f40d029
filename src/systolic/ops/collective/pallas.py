"""Products across chips by the Pallas kernels, with the schedules of their plans."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.chips import Chip
from systolic.compat.mesh_values import mesh_value
from systolic.kernels.interpreted import tracing_for
from systolic.ops.collective.axis_ring import AxisRing
from systolic.ops.collective.configs import ring_schedule_of, weight_schedule_of
from systolic.ops.collective.kernel.gather import all_gather_matmul
from systolic.ops.collective.kernel.launch import RingKernel, RingOperands, S
from systolic.ops.collective.kernel.scatter import matmul_reduce_scatter
from systolic.ops.collective.kernel.weights import matmul_gathered_weight
from systolic.ops.collective.product import RingProduct
from systolic.ops.collective.sizes import RingSizes, WeightSizes
from systolic.ops.collective.wire import packed
from systolic.ops.engine.planned import with_plans
from systolic.ops.planner import Plans
from systolic.ops.quantized.array import Quantized
from systolic.schedule.legality import IllegalTilesError, Violation


@with_plans(static=1)
def by_pallas(
    plans: Plans, product: RingProduct, x: Array, w: tuple[Array | Quantized, ...], bias: Array | None
) -> tuple[Array, ...]:
    """Return the results of `product`, the gathered rows last if it keeps them."""
    chip = product.backend.chip
    assert chip is not None  # else it is computed by XLA
    sizes = sizes_of(product, x, w)
    values = tuple(side.values if isinstance(side, Quantized) else side for side in w)
    # One quantized weight alone.
    scales = (jnp.broadcast_to(side.scales.ravel(), sizes.columns) for side in w if isinstance(side, Quantized))
    x, ring = product.backend.on_tpu(x), _ring(product)
    with tracing_for(chip):
        operands = RingOperands(x=x, w=values, ring=ring, bias=bias, scales=next(scales, None))
        if isinstance(sizes, WeightSizes):
            return _gathered_weight(plans, product, sizes, chip, operands)
        return _on_ring(plans, product, sizes, chip, operands)


def sizes_of(product: RingProduct, x: Array, w: tuple[Array | Quantized, ...]) -> RingSizes | WeightSizes:
    """Return the sizes of `product`; raise IllegalTilesError if the kernel has no such product at any size."""
    _require_support(product, x.dtype.name, w)
    shared: dict[str, Any] = {
        "devices": product.devices,
        "k": x.shape[1],
        "columns": w[0].shape[0 if product.transpose_rhs else 1],
        "dtype": x.dtype.name,
        "dtype_out": product.dtype_out,
        "weights": len(w),
        "outs": product.outs,
        "transpose_rhs": product.transpose_rhs,
        "precision": product.precision,
        "slice_mesh": product.slice_mesh,
    }
    if product.weight_cut is not None:
        return WeightSizes(rows=x.shape[0], cut=product.weight_cut, **shared)
    scatters = product.kind == "scatter"
    return RingSizes(
        rows=x.shape[0] // product.devices if scatters else x.shape[0],
        scatters=scatters,
        wire_dtype=product.wire_dtype,
        weight_dtype=next((side.values.dtype.name for side in w if isinstance(side, Quantized)), None),
        **shared,
    )


def _on_ring(
    plans: Plans, product: RingProduct, sizes: RingSizes, chip: Chip, operands: RingOperands
) -> tuple[Array, ...]:
    """Return the results of a product whose rows are gathered, or whose sum is scattered."""
    scatters, devices, rows = sizes.scatters, sizes.devices, sizes.rows
    plan = plans(sizes, chip, product.backend.tiles)
    schedule = ring_schedule_of(sizes, plan.config, chip)
    kernel = _kernel(product, schedule, plan.vmem_limit_bytes)
    bias, scales = (_of_blocks(array, schedule.block) for array in (operands.bias, operands.scales))
    wire_dtype = sizes.rows_wire_dtype
    x = operands.x if wire_dtype is None else packed(operands.x, wire_dtype)
    operands = operands._replace(
        x=_with_rows(x, devices if scatters else 1, schedule.chunk_rows), bias=bias, scales=scales
    )
    results = (matmul_reduce_scatter if scatters else all_gather_matmul)(operands, kernel)
    return tuple(_with_rows(out, 1 if scatters else devices, rows) for out in jax.tree.leaves(results))


def _gathered_weight(
    plans: Plans, product: RingProduct, sizes: WeightSizes, chip: Chip, operands: RingOperands
) -> tuple[Array, ...]:
    """Return the results of a product whose weight is gathered."""
    plan = plans(sizes, chip, product.backend.tiles)
    schedule = weight_schedule_of(sizes, plan.config, chip)
    kernel = _kernel(product, schedule, plan.vmem_limit_bytes)
    bias = _of_blocks(operands.bias, schedule.width)
    results = matmul_gathered_weight(operands._replace(x=_with_rows(operands.x, 1, schedule.rows), bias=bias), kernel)
    return tuple(_with_rows(out, 1, sizes.rows) for out in results.outs)


def _kernel(product: RingProduct, schedule: S, vmem_limit_bytes: int) -> RingKernel[S]:
    return RingKernel(
        schedule=schedule,
        axis_name=product.axis_name,
        collective_id=product.collective_id,
        dtype_out=product.dtype_out,
        precision=lax.Precision[product.precision.upper()],
        finish=product.finished,
        keeps_x=product.keeps_x,
        vmem_limit_bytes=vmem_limit_bytes,
        interpret=product.backend.interpret,
    )


def _ring(product: RingProduct) -> Array:
    if product.ring is not None:
        return jnp.asarray(product.ring, jnp.int32)
    return mesh_value(AxisRing(axis_name=product.axis_name, size=product.devices), product.devices)


def _of_blocks(row: Array | None, block: int) -> Array | None:
    """Return numbers of columns in blocks of columns."""
    return None if row is None else row.astype(jnp.float32).reshape(-1, 1, block)


def _with_rows(array: Array, chunks: int, rows: int) -> Array:
    """Pad each chunk of rows, or cut it off."""
    (height, width) = array.shape
    if height == chunks * rows:
        return array
    cut = array.reshape(chunks, height // chunks, width)[:, :rows]
    return jnp.pad(cut, [(0, 0), (0, rows - cut.shape[1]), (0, 0)]).reshape(chunks * rows, width)


def _require_support(product: RingProduct, dtype: str, w: tuple[Array | Quantized, ...]) -> None:
    violations: list[Violation] = []
    for side in w:
        if isinstance(side, Quantized) and side.scales.size not in (1, side.shape[0 if product.transpose_rhs else 1]):
            value = f"scales {list(side.scales.shape)} of w {list(side.shape)}"
            limit = "the kernel scales sums, by one number for each column"
            violations.append(Violation(rule="scales", value=value, limit=limit, fix="quantize with one for a column"))
    if product.precision == "high" and dtype == "float32":
        fix = "use default or highest"
        limit = "the kernel multiplies in one or six passes"
        violations.append(Violation(rule="precision", value="high", limit=limit, fix=fix))
    if product.kept_sum not in (None, product.dtype_out):
        value = f"results are {product.dtype_out}, and sums for a derivative {product.kept_sum}"
        limit = "the kernel stores all results in one dtype"
        fix = "leave out preferred_element_type"
        violations.append(Violation(rule="dtype", value=value, limit=limit, fix=fix))
    if violations:
        raise IllegalTilesError("a product on a ring", violations)
