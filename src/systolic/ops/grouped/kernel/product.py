"""Rows in groups, each group multiplied by its matrix: `out[rows of g] = lhs[rows of g] @ rhs[g]`.

Rows go through VMEM in panels: as many rows of consecutive groups as fit. For each tile of columns of the result, the
outer loop, the weights of the panel's groups pass one after another, and each is multiplied by all rows of its group.
So rows are read once, and weights once for each panel in which their group has rows. Large and small groups alternate:
while the matrix units are busy with a large one, weights of the next groups arrive.

A group's rows need not begin at a whole register. The register that two groups share is computed by both; the first
group leaves its rows in VMEM, and the second one stores the whole register. Every block of the result is stored once.

Two cores share the tiles of columns: each has all rows, and weights of its own columns.

In VMEM: one or two panels, a ring of tiles of weights, a ring of blocks of the result, and a row of shared registers;
of an array that is added, the panel's rows of this tile of columns and of the next.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Shaped

from systolic.kernels.launch import HbmKernel, core_number, on_cores, vmem_shapes
from systolic.ops.grouped.kernel.product_arrays import Buffers, GroupedOperands
from systolic.ops.grouped.kernel.product_outputs import Outputs
from systolic.ops.grouped.kernel.product_steps import Fn, Steps
from systolic.ops.grouped.kernel.visits import Field
from systolic.ops.grouped.schedule import GroupedSchedule
from systolic.ops.grouped.spec import GroupedSpec


def grouped_product(
    operands: GroupedOperands, kernel: HbmKernel[GroupedSpec, GroupedSchedule], *, activation: Fn | None
) -> Shaped[Array, "m n"]:
    """Return the product; rows that no group has are zero, or unchanged in the array that it is written into.

    Args:
      operands: `m` is a multiple of `schedule.row_multiple`.
      activation: the function that `spec.activation` names.
    """
    spec, schedule = kernel.spec, kernel.schedule
    vmem = vmem_shapes(schedule.buffers)
    buffers = Buffers(
        table=pltpu.SMEM((Field.COUNT, schedule.most_visits), jnp.int32),
        stored=pltpu.SMEM((schedule.out_slots + 1,), jnp.int32),
        stored_tile=pltpu.SMEM((schedule.out_slots,), jnp.int32) if schedule.step_n != schedule.tile_n else None,
        rows=vmem["rows"],
        scale=vmem.get("row scale"),
        lhs_scale=vmem.get("lhs scale"),
        weights=vmem["rhs"],
        # A row of a few KiB, which the estimate leaves to the compiler's share.
        bias=pltpu.VMEM((schedule.weight_slots, 1, schedule.tile_n), jnp.float32) if spec.bias else None,
        rhs_scale=vmem.get("rhs scale"),
        column_scale=vmem.get("column scale"),
        residual=vmem.get("residual"),
        acc=vmem.get("acc"),
        out=vmem["out"],
        shared=vmem["shared rows"],
        rows_sem=pltpu.SemaphoreType.DMA((schedule.weight_slots,)),
        scale_sem=pltpu.SemaphoreType.DMA((schedule.weight_slots,)),
        lhs_scale_sem=pltpu.SemaphoreType.DMA((schedule.weight_slots,)) if spec.lhs_scale else None,
        weights_sem=pltpu.SemaphoreType.DMA((schedule.weight_slots,)),
        bias_sem=pltpu.SemaphoreType.DMA((schedule.weight_slots,)),
        rhs_scale_sem=pltpu.SemaphoreType.DMA((schedule.weight_slots,)) if spec.dtype_rhs else None,
        residual_sem=pltpu.SemaphoreType.DMA((schedule.weight_slots,)),
        out_sem=pltpu.SemaphoreType.DMA((schedule.out_slots,)),
    )

    def body(refs: GroupedOperands, out_hbm: Any, buffers: Buffers) -> None:
        first = core_number(schedule.cores) * schedule.core_n
        outputs = Outputs(out_hbm=out_hbm, buffers=buffers, spec=spec, schedule=schedule, first_tile=first)
        Steps(refs=refs, buffers=buffers, spec=spec, schedule=schedule, activation=activation, outputs=outputs).run()

    dtypes = "_".join(filter(None, (spec.dtype, spec.dtype_rhs)))
    scalars, hbm = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.HBM)
    return kernel.launch(
        body,
        operands,
        GroupedOperands(scalars, scalars, *[hbm] * (len(GroupedOperands._fields) - 2)),
        (spec.m, spec.n),
        from_hbm=("rhs", "up"),
        activations=("lhs", "residual"),
        scratch_shapes=(buffers,),
        input_output_aliases={} if operands.existing is None else {len(jax.tree.leaves(operands)) - 1: 0},
        name=f"systolic_grouped_{dtypes}_{spec.groups}_{spec.m}_{spec.k}_{spec.n}",
        **on_cores(schedule.cores, vmem_limit_bytes=kernel.vmem_limit_bytes),
    )
