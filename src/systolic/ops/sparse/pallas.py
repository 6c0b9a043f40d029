"""Block-sparse products by Pallas kernels, with the tiles of their plans."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from systolic.compat import varying_alike
from systolic.kernels.interpreted import tracing_for
from systolic.kernels.launch import HbmKernel
from systolic.ops.engine.planned import with_plans
from systolic.ops.planner import Plans
from systolic.ops.sparse.call_lists import calls_of, one_call
from systolic.ops.sparse.kernel.lines import ProductOperands
from systolic.ops.sparse.kernel.lists import Places as KernelPlaces
from systolic.ops.sparse.kernel.product import sparse_product
from systolic.ops.sparse.kernel.sampled import sparse_sampled
from systolic.ops.sparse.kernel.samples import SampledOperands
from systolic.ops.sparse.product import Places, SparseProduct
from systolic.ops.sparse.schedule import ProductSchedule, SampledSchedule
from systolic.ops.sparse.spec import SparseSpec
from systolic.ops.sparse.xla import dense_of, finished
from systolic.schedule import LANES
from systolic.schedule.sizes import padded
from systolic.spec import dtype_bytes


@with_plans(static=1)
def product_by_pallas(
    plans: Plans, product: SparseProduct, blocks: Array, dense: Array, bias: Any, places: Places
) -> Array:
    """Return the sparse matrix times a dense one, or a dense one times it, by the Pallas kernel."""
    chip, turned = product.backend.chip, product.kind == "dds"
    assert chip is not None  # else it is computed by XLA
    axis = 0 if turned else 1
    size = dense.shape[axis]
    multiple = 32 // min(dtype_bytes(blocks.dtype.name), dtype_bytes(product.dtype_out)) if turned else LANES
    dense = _longer(product.backend.on_tpu(dense), axis, padded(size, multiple))
    if bias is not None:
        bias = bias.astype(jnp.float32)[None]
        bias = bias if turned else _longer(bias, 1, dense.shape[1])
    spec = product.spec(dense.shape[axis], blocks.dtype.name, blocks.shape[0], bias=bias is not None)
    call = one_call(spec, chip)
    plan = plans(call, chip, product.backend.tiles)
    schedule = ProductSchedule.of(call, plan.config, chip)
    kernel = HbmKernel(
        spec=call,
        schedule=schedule,
        chip=chip,
        vmem_limit_bytes=plan.vmem_limit_bytes,
        interpret=product.backend.interpret,
    )

    def run(operands: ProductOperands, activation: Any) -> Array:
        with tracing_for(chip):
            return sparse_product(operands, kernel, cores=chip.cores_per_device, activation=activation)

    if call is spec:
        out = run(ProductOperands(_in_smem(places), blocks, dense, bias), product.function)
    else:
        blocks = _longer(blocks, 0, padded(blocks.shape[0], schedule.fetched))

        # A line that crosses a cut has sums in two calls, so all results are added up.
        def add(total: Array, part: tuple[Array, KernelPlaces]) -> tuple[Array, None]:
            first, places = part
            return total + run(ProductOperands(places, blocks, dense, None, first), None), None

        zeros = jnp.zeros((spec.m, spec.n), call.dtype_out)
        zeros, *_ = varying_alike([zeros, blocks, dense, places.rows])
        total, _ = lax.scan(add, zeros, _parts(product, spec, call, places))
        out = finished(product, total, bias)
    return out[:size] if turned else out[:, :size]


@with_plans(static=1)
def sampled_by_pallas(plans: Plans, product: SparseProduct, lhs: Array, rhs: Array, places: Places) -> Array:
    chip, k = product.backend.chip, padded(lhs.shape[1], LANES)
    assert chip is not None
    lhs, rhs = _longer(product.backend.on_tpu(lhs), 1, k), _longer(rhs, 1 if product.transpose_rhs else 0, k)
    spec = product.spec(k, lhs.dtype.name, places.rows.shape[0])
    call = one_call(spec, chip)
    plan = plans(call, chip, product.backend.tiles)
    kernel = HbmKernel(
        spec=call,
        schedule=SampledSchedule.of(call, plan.config, chip),
        chip=chip,
        vmem_limit_bytes=plan.vmem_limit_bytes,
        interpret=product.backend.interpret,
    )

    def run(places: KernelPlaces) -> Array:
        with tracing_for(chip):
            return sparse_sampled(
                SampledOperands(places, lhs, rhs),
                kernel,
                band=(product.lower, product.upper) if call is spec else (None, None),
                cores=chip.cores_per_device,
            )

    if call is spec:
        return run(_in_smem(places))
    _, lists = _parts(product, spec, call, places)
    blocks = lax.map(run, lists).reshape(-1, *product.block)[: spec.most_blocks]
    return dense_of(product, blocks, places) if product.dense_out else blocks


def _parts(product: SparseProduct, spec: SparseSpec, call: SparseSpec, places: Places) -> tuple[Array, KernelPlaces]:
    """Return the lists of several calls, one after another, and the first block of each; the last ends in padding."""
    calls, call_blocks = calls_of(spec, call), call.most_blocks
    rows, columns = _in_smem(places)
    rows = jnp.pad(rows, (0, calls * call_blocks - len(rows)), constant_values=product.grid[0])
    columns = _longer(columns, 0, calls * call_blocks)
    first = call_blocks * jnp.arange(calls, dtype=jnp.int32)[:, None]
    return first, KernelPlaces(rows.reshape(calls, call_blocks), columns.reshape(calls, call_blocks))


def _in_smem(places: Places) -> KernelPlaces:
    return KernelPlaces(*(jnp.asarray(place, jnp.int32) for place in places))


def _longer(array: Array, axis: int, size: int) -> Array:
    padding = [(0, size - array.shape[axis] if axis == index else 0) for index in range(array.ndim)]
    return jnp.pad(array, padding) if size > array.shape[axis] else array
