"""A product by a Pallas kernel, with the tiles of its plan."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from systolic.chips import Chip
from systolic.kernels.interpreted import as_traceable, tracing_for
from systolic.ops.engine.planned import with_plans
from systolic.ops.engine.shapes import fold
from systolic.ops.matmul.kernel.auto_pipeline import auto_pipeline_matmul
from systolic.ops.matmul.kernel.launch import MatmulKernel
from systolic.ops.matmul.kernel.manual_dma import manual_dma_matmul
from systolic.ops.matmul.orientation import Orientation
from systolic.ops.matmul.product import Product, spec_of
from systolic.ops.planner import Plans
from systolic.schedule import can_join_outputs
from systolic.spec import Operands


@with_plans(static=1)
def by_pallas(plans: Plans, product: Product, operands: Operands) -> tuple[Array, ...]:
    operands = operands._replace(lhs=product.backend.on_tpu(operands.lhs))
    chip = product.backend.chip
    assert chip is not None  # else it is computed by XLA
    with tracing_for(chip):
        return _kernel(product, operands, plans, chip)


def _kernel(product: Product, operands: Operands, plans: Plans, chip: Chip) -> tuple[Array, ...]:
    operands, batch = fold(product.transpose_lhs, operands)
    spec = spec_of(product, operands)
    if spec.joined_outputs and not can_join_outputs(spec, chip.cores_per_device):
        return (jnp.concatenate(_kernel(replace(product, side_by_side=False), operands, plans, chip), axis=-1),)
    plan = plans(spec, chip, product.backend.tiles)
    orientation = Orientation.of(spec)
    config = as_traceable(plan.config)
    multiply = manual_dma_matmul if config.pipeline == "manual" else auto_pipeline_matmul
    kernel = MatmulKernel(
        spec=plan.computed,
        functions=product.functions.swapped() if orientation.swap_ab else product.functions,
        config=config,
        chip=chip,
        vmem_limit_bytes=plan.vmem_limit_bytes,
        interpret=product.backend.interpret,
    )
    outs = multiply(orientation.operands(operands, lambda array: array.swapaxes(-1, -2)), kernel)
    outs = tuple(out.mT for out in outs) if orientation.swap_ab else outs
    return tuple(out.reshape(*batch, -1, out.shape[-1]) for out in outs) if batch is not None else outs
