"""A product by a Pallas kernel, with the tiles of its plan."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
from jax import Array

from systolic.chips import Chip
from systolic.compat import interpret_mode_is_forced
from systolic.kernels.auto_pipeline import auto_pipeline_matmul
from systolic.kernels.interpreted import as_traceable, tracing_for
from systolic.kernels.manual_dma import manual_dma_matmul
from systolic.kernels.step import Functions
from systolic.ops.matmul.orientation import Orientation
from systolic.ops.matmul.product import Product, epilogue_work, spec_of
from systolic.ops.planner import Plans, planner_in_use
from systolic.ops.shapes import fold
from systolic.ops.target import for_a_tpu


def by_pallas(product: Product, *arrays: Array) -> tuple[Array, ...]:
    """The product by the Pallas kernel, with the tiles of the planner in use."""
    return _by_pallas(product, planner_in_use().plans, *arrays)


# Static, so that another planner, or the same one when there is a new winner, has other kernels.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _by_pallas(product: Product, plans: Plans, *arrays: Array) -> tuple[Array, ...]:
    if product.where.implementation == "pallas" and not interpret_mode_is_forced():
        arrays = (for_a_tpu(arrays[0]), *arrays[1:])
    chip = product.where.chip
    assert chip is not None  # else it is computed by XLA
    # A TPU's scalar unit has 32 bits, and so has every number in a kernel: its own, those of Pallas' pipelines, and
    # what functions of users make of Python's.
    with jax.enable_x64(False), tracing_for(chip):
        return _kernel(product, arrays, plans, chip)


def _kernel(product: Product, arrays: Sequence[Array], plans: Plans, chip: Chip) -> tuple[Array, ...]:
    folded, batch = fold(product.transpose_lhs, product.beside, arrays)
    spec = spec_of(product, folded)
    chosen = plans(spec, chip, product.where.tiles)
    orientation = Orientation.of(spec)
    transcendentals = epilogue_work(product).transcendentals * spec.batch * spec.m * spec.n
    lhs, rhs, *extras = orientation.arrays(folded, product.beside)
    swap = orientation.swap
    config = as_traceable(chosen.config)
    kernel = manual_dma_matmul if config.pipeline == "manual" else functools.partial(auto_pipeline_matmul, chip=chip)
    outs = kernel(
        lhs,
        rhs,
        extras,
        spec=chosen.computed,
        functions=Functions(
            epilogue=product.epilogue,
            lhs_fn=product.rhs_fn if swap else product.lhs_fn,
            rhs_fn=product.lhs_fn if swap else product.rhs_fn,
            transcendentals=transcendentals,
        ),
        config=config,
        vmem_limit_bytes=chosen.vmem_limit_bytes,
        interpret=product.where.interpret,
    )
    outs = tuple(out.mT for out in outs) if swap else outs
    return tuple(out.reshape(*batch, -1, out.shape[-1]) for out in outs) if batch is not None else outs
