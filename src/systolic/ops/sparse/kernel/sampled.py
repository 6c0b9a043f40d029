"""Some blocks of a product of dense matrices: `out[block] = lhs[its row] @ rhs[:, its column]`.

The sums of a chunk of blocks stay in VMEM, while panels of rhs pass: rows of it, some of k, with all columns. For each
panel the rows of lhs that the chunk needs pass too, and each is multiplied by the panel's columns of its blocks. So lhs
is read once, and rhs once for each chunk. Unwanted blocks take no step. Neighbors in a row of blocks are joined to one
stretch of straight code.

If the result is a whole matrix, unwanted blocks are stored as zeros meanwhile, from one buffer.

In VMEM: the sums, two panels, a ring of blocks of lhs, a ring of blocks of the result.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Shaped

from systolic.kernels.launch import HbmKernel, vmem_shapes
from systolic.ops.sparse.kernel.lists import Places, launch, list_buffers
from systolic.ops.sparse.kernel.samples import Buffers, Kernel, SampledOperands
from systolic.ops.sparse.schedule import SampledSchedule
from systolic.ops.sparse.spec import SparseSpec


def sparse_sampled(
    operands: SampledOperands,
    kernel: HbmKernel[SparseSpec, SampledSchedule],
    *,
    band: tuple[int | None, int | None],
    cores: int,
) -> Shaped[Array, ...]:
    """Return the wanted blocks [most blocks, rows, columns], zero for padding; or a matrix [m, n], zero elsewhere.

    Args:
      band: of a matrix, the lowest and the highest diagonal that is not zero, column − row; None: there is none.
      cores: cores that share the work, each with some of the chunks.
    """
    spec, schedule = kernel.spec, kernel.schedule
    buffers = Buffers(
        list=list_buffers(spec),
        **vmem_shapes(schedule.buffers),
        under_way=pltpu.SMEM((len(schedule.zero_widths),), jnp.int32),
        panel_sem=pltpu.SemaphoreType.DMA((schedule.panel_slots,)),
        rows_sem=pltpu.SemaphoreType.DMA((schedule.row_slots,)),
        out_sem=pltpu.SemaphoreType.DMA((schedule.stages,)),
        zeros_sem=pltpu.SemaphoreType.DMA((len(schedule.zero_widths),)),
    )
    scalars, hbm = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.HBM)
    return launch(
        Kernel,
        operands,
        SampledOperands(Places(scalars, scalars), hbm, hbm),
        (spec.m, spec.n) if spec.dense_out else (spec.most_blocks, spec.block_rows, spec.block_columns),
        buffers,
        kernel,
        from_hbm=("lhs", "rhs"),
        cores=cores,
        band=band,
    )
