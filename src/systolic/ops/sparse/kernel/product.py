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
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Shaped

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.launch import from_hbm, vmem_shapes
from systolic.ops.sparse.kernel.lines import Buffers, Kernel, ProductOperands
from systolic.ops.sparse.kernel.lists import Places, list_buffers, listed
from systolic.ops.sparse.schedule import ProductSchedule
from systolic.ops.sparse.spec import SparseSpec


def sparse_product(
    operands: ProductOperands,
    *,
    spec: SparseSpec,
    schedule: ProductSchedule,
    cores: int,
    activation: Callable[[Array], Array] | None,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> Shaped[Array, "m n"]:
    """Return the product; lines without a block are zero, or bias and activation of zero. `cores` share the panels."""
    its = schedule
    buffers = Buffers(
        list=list_buffers(spec),
        **vmem_shapes(its.buffers),
        blocks_sem=pltpu.SemaphoreType.DMA((its.under_way,)),
        panel_sem=pltpu.SemaphoreType.DMA((its.panel_slots,)),
        out_sem=pltpu.SemaphoreType.DMA((its.out_slots,)),
    )

    def kernel(refs: ProductOperands, out_hbm: Any, its: Buffers) -> None:
        Kernel(
            refs=refs,
            out_hbm=out_hbm,
            its=its,
            list=listed(refs.places, its.list, spec),
            spec=spec,
            schedule=schedule,
            cores=cores,
            activation=activation,
        ).run()

    arrays = operands
    if not interpret:
        arrays = operands._replace(blocks=from_hbm(operands.blocks), dense=from_hbm(operands.dense))
    scalars, hbm = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.HBM)
    bias = None if arrays.bias is None else pl.BlockSpec(memory_space=pltpu.VMEM)
    first = None if arrays.first is None else scalars
    return pl.pallas_call(
        kernel,
        grid=(cores,),
        in_specs=(ProductOperands(Places(scalars, scalars), hbm, hbm, bias, first),),
        out_specs=hbm,
        out_shape=shape_with_mesh_axes(
            (spec.m, spec.n), jnp.dtype(spec.dtype_out), [operands.blocks, operands.dense, operands.places.rows]
        ),
        scratch_shapes=(buffers,),
        compiler_params=pltpu.CompilerParams(
            vmem_limit_bytes=vmem_limit_bytes, dimension_semantics=("parallel" if cores > 1 else "arbitrary",)
        ),
        cost_estimate=pl.CostEstimate(
            flops=spec.flops * spec.passes, transcendentals=0, bytes_accessed=spec.least_hbm_bytes
        ),
        interpret=interpret,
        name=f"systolic_{spec.kind}_{spec.dtype}_{spec.m}_{spec.k}_{spec.n}",
    )(arrays)
