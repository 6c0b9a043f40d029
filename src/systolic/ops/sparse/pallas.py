"""Block-sparse products by Pallas kernels, with the tiles of their plans."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from systolic.compat import interpret_mode_is_forced
from systolic.kernels.interpreted import tracing_for
from systolic.kernels.sparse.lines import ProductOperands
from systolic.kernels.sparse.lists import Places as KernelPlaces
from systolic.kernels.sparse.product import sparse_product
from systolic.kernels.sparse.sampled import sparse_sampled
from systolic.kernels.sparse.samples import SampledOperands
from systolic.ops.planner import Plans, planner_in_use
from systolic.ops.sparse.product import Places, SparseProduct
from systolic.ops.target import for_a_tpu
from systolic.schedule import LANES
from systolic.schedule.grouped import padded
from systolic.schedule.sparse import ProductSchedule, SampledSchedule
from systolic.spec import dtype_bytes


def product_by_pallas(product: SparseProduct, blocks: Array, dense: Array, bias: Any, places: Places) -> Array:
    """The sparse matrix times a dense one, or a dense one times it, with the tiles of the planner in use."""
    return _product(product, planner_in_use().plans, blocks, dense, bias, places)


def sampled_by_pallas(product: SparseProduct, lhs: Array, rhs: Array, places: Places) -> Array:
    """Blocks of `lhs @ rhs`, with the tiles of the planner in use."""
    return _sampled(product, planner_in_use().plans, lhs, rhs, places)


# Static, so that another planner, or the same one when there is a new winner, has other kernels.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _product(product: SparseProduct, plans: Plans, blocks: Array, dense: Array, bias: Any, places: Places) -> Array:
    chip, turned = product.backend.chip, product.kind == "dds"
    assert chip is not None  # else it is computed by XLA
    axis = 0 if turned else 1
    size = dense.shape[axis]
    multiple = 32 // min(dtype_bytes(blocks.dtype.name), dtype_bytes(product.dtype_out)) if turned else LANES
    dense = _longer(_on_tpu(product, dense), axis, padded(size, multiple))
    if bias is not None:
        bias = bias.astype(jnp.float32)[None]
        bias = bias if turned else _longer(bias, 1, dense.shape[1])
    spec = product.spec(dense.shape[axis], blocks.dtype.name, blocks.shape[0], bias=bias is not None)
    chosen = plans(spec, chip, product.backend.tiles)
    # A TPU's scalar unit has 32 bits, and so has every number in a kernel.
    with jax.enable_x64(False), tracing_for(chip):
        out = sparse_product(
            ProductOperands(_in_smem(places), blocks, dense, bias),
            spec=spec,
            schedule=ProductSchedule.of(spec, chosen.config, chip),
            cores=chip.cores_per_device,
            activation=product.function,
            vmem_limit_bytes=chosen.vmem_limit_bytes,
            interpret=product.backend.interpret,
        )
    return out[:size] if turned else out[:, :size]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _sampled(product: SparseProduct, plans: Plans, lhs: Array, rhs: Array, places: Places) -> Array:
    chip, k = product.backend.chip, padded(lhs.shape[1], LANES)
    assert chip is not None
    lhs, rhs = _longer(_on_tpu(product, lhs), 1, k), _longer(rhs, 1 if product.transpose_rhs else 0, k)
    spec = product.spec(k, lhs.dtype.name, places.rows.shape[0])
    chosen = plans(spec, chip, product.backend.tiles)
    with jax.enable_x64(False), tracing_for(chip):
        return sparse_sampled(
            SampledOperands(_in_smem(places), lhs, rhs),
            spec=spec,
            schedule=SampledSchedule.of(spec, chosen.config, chip),
            band=(product.lower, product.upper),
            cores=chip.cores_per_device,
            vmem_limit_bytes=chosen.vmem_limit_bytes,
            interpret=product.backend.interpret,
        )


def _in_smem(places: Places) -> KernelPlaces:
    return KernelPlaces(*(jnp.asarray(one, jnp.int32) for one in places))


def _longer(array: Array, axis: int, size: int) -> Array:
    more = [(0, size - array.shape[axis] if axis == one else 0) for one in range(array.ndim)]
    return jnp.pad(array, more) if size > array.shape[axis] else array


def _on_tpu(product: SparseProduct, array: Array) -> Array:
    needs_one = product.backend.implementation == "pallas" and not interpret_mode_is_forced()
    return for_a_tpu(array) if needs_one else array
