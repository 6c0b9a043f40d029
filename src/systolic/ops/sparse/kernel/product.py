"""A block-sparse matrix times a dense one, or a dense one times it: `out[line] = Σ block · panel[place of the block]`.

Lines, rows of blocks of a sparse lhs or columns of blocks of a sparse rhs, go through VMEM in chunks: the lines whose
blocks fit at once. For each chunk the panels of the dense operand pass one after another, and each is multiplied by all
blocks of the chunk. So blocks are read once, and the dense operand once for each chunk. While the last panel of a chunk
is used, each line leaves its room to blocks of the next chunk.

Neighbors in a line are joined to one stretch of straight code, in which the sum over k goes through several blocks:
small blocks too fill a matrix unit's columns, and sums are loaded and stored less often. A line without a block costs a
store of zeros.

In VMEM: a ring of blocks, two panels, the sums of a line, a ring of lines of the result.
"""

from __future__ import annotations

from collections.abc import Callable

from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Shaped

from systolic.kernels.launch import HbmKernel, vmem_shapes
from systolic.ops.sparse.kernel.lines import Buffers, Kernel, ProductOperands
from systolic.ops.sparse.kernel.lists import Places, launch, list_buffers
from systolic.ops.sparse.schedule import ProductSchedule
from systolic.ops.sparse.spec import SparseSpec


def sparse_product(
    operands: ProductOperands,
    kernel: HbmKernel[SparseSpec, ProductSchedule],
    *,
    cores: int,
    activation: Callable[[Array], Array] | None,
) -> Shaped[Array, "m n"]:
    """Return the product; lines without a block are zero, or bias and activation of zero. `cores` share the panels."""
    spec, schedule = kernel.spec, kernel.schedule
    buffers = Buffers(
        list=list_buffers(spec),
        **vmem_shapes(schedule.buffers),
        blocks_sem=pltpu.SemaphoreType.DMA((schedule.under_way,)),
        panel_sem=pltpu.SemaphoreType.DMA((schedule.panel_slots,)),
        out_sem=pltpu.SemaphoreType.DMA((schedule.out_slots,)),
    )
    scalars, hbm = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.HBM)
    bias = pl.BlockSpec(memory_space=pltpu.VMEM)
    return launch(
        Kernel,
        operands,
        ProductOperands(Places(scalars, scalars), hbm, hbm, bias, scalars),
        (spec.m, spec.n),
        buffers,
        kernel,
        from_hbm=("blocks", "dense"),
        cores=cores,
        activation=activation,
    )
