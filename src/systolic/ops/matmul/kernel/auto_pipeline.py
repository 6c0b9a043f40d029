"""The matmul on Pallas' own pipelines: out[i, j] = epilogue(Σₖ prologue(lhs[i, k]) · prologue(rhs[k, j])), every size.

Grid: (*batch, i, j, kk), or (*batch, j, i, kk) where columns change last; kk is innermost, so that one output block
stays in VMEM while its sum runs. In VMEM: `num_stages` blocks of each operand and of each fused operand, two of the
output, and where k takes several steps one sum in float32 or int32.

A step multiplies its tile in subtiles, each one stretch of straight code: the matrix units are refilled and drained
once a subtile, so subtiles are as long as the size of the code allows (`schedule.KernelConfig`).

Two pipelines run the same body. `pallas_call`'s has two stages. `emit_pipeline` has three, which hides the large store
at the end of an output tile; it runs on one core. Edges: Pallas clips the last blocks' copies; memory past the end
along k is zeroed on both operands, because it may hold anything, even NaN.

Products of one matrix that tiles divide lose less in `kernels.manual_dma`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Shaped

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.interpreted import as_stored, shape_as_stored, tracing_for
from systolic.kernels.launch import from_hbm
from systolic.ops.matmul.kernel.launch import MatmulKernel
from systolic.ops.matmul.kernel.step import index_in_grid, step
from systolic.schedule import Block, Dimension, operand_blocks
from systolic.spec import Operands


def auto_pipeline_matmul(operands: Operands, kernel: MatmulKernel) -> tuple[Shaped[Array, "*batch m n"], ...]:
    """Return all outputs of the product, with the dtypes `spec.dtypes_out`.

    Args:
      operands: arrays [*batch, rows, columns], all with the same number of dimensions. A batch dimension has the length
        of the batch's, or 1: the same matrix for all.
      kernel: its pipeline is auto or emit.
    """
    spec, config, interpret = kernel.spec, kernel.config, kernel.interpret
    arrays = operands if interpret else operands.map(from_hbm)
    batch = tuple(max(sizes) for sizes in zip(*(array.shape[:-2] for array in arrays.present()), strict=True))
    tiles = config.tiles
    grid_m, grid_n, grid_k = tiles.grid(spec)
    # Each batch dimension is an axis of the grid: reshaping them into one would make operands intermediates, which XLA
    # then likes to copy to VMEM as a whole.
    grid = (*batch, *((grid_m, grid_n) if config.grid_order == "m" else (grid_n, grid_m)), grid_k)

    def block_spec(
        array: Any,
        shape: tuple[int, int],
        along: tuple[Dimension | None, Dimension | None],
        num_stages: int,
        first_column: int = 0,
    ) -> pl.BlockSpec:
        def index(*at: Any) -> tuple[Any, ...]:
            i, j = at[-3:-1] if config.grid_order == "m" else (at[-2], at[-3])
            named = {"m": i, "n": j, "k": at[-1], None: 0}
            indices = [place if size > 1 else 0 for place, size in zip(at, array.shape[:-2], strict=False)]
            column = named[along[1]]
            return *indices, named[along[0]], column + first_column // shape[1] if first_column else column

        mode = pl.Buffered(num_stages) if num_stages > 2 else None
        return pl.BlockSpec((*(None for _ in batch), *shape), index, pipeline_mode=mode)

    def operand_spec(array: Array, block: Block) -> pl.BlockSpec:
        if is_resident(array, block):
            return pl.BlockSpec(array.shape[-2:], lambda *_: (0, 0))
        return block_spec(array, block.shape, block.along, config.num_stages, block.first_column)

    blocks = operand_blocks(spec, tiles)
    in_specs = arrays.map(operand_spec, blocks)
    arrays = arrays.map(
        lambda array, block: array.reshape(array.shape[-2:]) if is_resident(array, block) else array, blocks
    )
    all_blocks = arrays.present()
    out_shape = tuple(shape_with_mesh_axes((*batch, spec.m, spec.n), dtype, all_blocks) for dtype in spec.dtypes_out)
    out_specs = tuple(block_spec(out, (tiles.tile_m, tiles.tile_n), ("m", "n"), 2) for out in out_shape)
    if interpret and config.pipeline == "emit":
        arrays = arrays.map(as_stored, in_specs)
        out_shape = tuple(
            shape_as_stored(*shape_and_block, all_blocks) for shape_and_block in zip(out_shape, out_specs, strict=True)
        )

    def body(refs: Operands, outs: tuple[Any, ...], scratch: Any) -> None:
        index = index_in_grid(len(grid) - 1, config)
        step(index, refs, outs, scratch, spec=spec, functions=kernel.functions, config=config)

    rest: dict[str, Any] = {"scratch_shapes": (kernel.scratch_shapes,)}
    if config.pipeline == "auto":
        run, places, places_out = body, in_specs, out_specs
        # Cores share whole output blocks: the axis that changes last, and the batch where there is one.
        semantics = ("parallel",) * (len(grid) - 1) + ("arbitrary",)
        rest["grid"] = grid
        rest["compiler_params"] = pltpu.CompilerParams(
            dimension_semantics=semantics, vmem_limit_bytes=kernel.vmem_limit_bytes
        )
    else:
        moving = in_specs.map(
            lambda in_spec, array, block: None if is_resident(array, block) else in_spec, operands, blocks
        )
        pipelined, structure = jax.tree.flatten(moving)
        places = in_specs.map(
            lambda _, in_spec: pl.BlockSpec(memory_space=pltpu.VMEM if in_spec is None else pltpu.HBM), moving
        )
        places_out = tuple(pl.BlockSpec(memory_space=pltpu.HBM) for _ in out_specs)

        def run(refs: Operands, outs: tuple[Any, ...], scratch: Any) -> None:
            def one_step(*step_refs: Any) -> None:
                inputs = jax.tree.unflatten(structure, step_refs[: len(pipelined)])
                merged = refs.map(lambda ref, block: ref if block is None else block, inputs)
                body(merged, step_refs[len(pipelined) :], scratch)

            streamed = jax.tree.leaves(refs.map(lambda ref, in_spec: None if in_spec is None else ref, moving))
            with tracing_for(kernel.chip):
                pltpu.emit_pipeline(one_step, grid=grid, in_specs=pipelined, out_specs=out_specs)(*streamed, *outs)

        rest["compiler_params"] = pltpu.CompilerParams(vmem_limit_bytes=kernel.vmem_limit_bytes)
    outs = kernel.launch(run, arrays, in_specs=places, out_specs=places_out, out_shape=out_shape, **rest)
    return outs if not interpret else tuple(out[..., : spec.m, : spec.n] for out in outs)


def is_resident(array: Array, block: Block) -> bool:
    """True if all of an array stays in VMEM: it is the same for all of the batch."""
    return block.resident and math.prod(array.shape[:-2]) == 1
