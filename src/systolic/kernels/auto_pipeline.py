"""The matmul on Pallas' own pipelines: out[i, j] = epilogue(Σₖ lhs_fn(lhs[i, k]) · rhs_fn(rhs[k, j])), for every size.

Grid: (*batch, i, j, kk), or (*batch, j, i, kk) where columns are the outer ones; kk is innermost, so that one output
block stays in VMEM while its sum runs. In VMEM: `num_stages` blocks of each operand and of each fused operand, two of
the output, and where k takes several steps one sum in float32 or int32.

A step multiplies its tile in subtiles, each one stretch of straight code: the matrix units are refilled and drained
once a subtile, so subtiles are as long as the size of the code allows (`schedule.KernelConfig`).

Two pipelines run the same body. `pallas_call`'s has two stages. `emit_pipeline` has three, which hides the large store
at the end of an output tile; it runs on one core. Edges: Pallas clips the last blocks' copies; what lies past the end
along k is zeroed on both operands, because it may be anything, also NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Shaped

from systolic.chips import Chip
from systolic.compat import shape_with_mesh_axes
from systolic.kernels.interpreted import as_stored, shape_as_stored, tracing_for
from systolic.kernels.step import Functions, Place, step
from systolic.schedule import (
    KernelConfig,
    block_shape,
    blocked_traffic,
    dimensions,
    extra_block,
    is_resident,
    scratch_buffers,
)
from systolic.spec import MatmulSpec

SMALL_ELEMENTS = 1024  # XLA may insist on another place for a few numbers


def auto_pipeline_matmul(
    lhs: Shaped[Array, "*batch rows columns"],
    rhs: Shaped[Array, "*batch rows columns"],
    extras: Sequence[Shaped[Array, "*batch rows columns"]],
    *,
    spec: MatmulSpec,
    functions: Functions,
    config: KernelConfig,
    chip: Chip,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> tuple[Shaped[Array, "*batch m n"], ...]:
    """All outputs of the product, the first as `spec.dtype_out`.

    Args:
      lhs: [*batch, m, k], or [*batch, k, m] with `spec.transpose_lhs`. A batch dimension is as long as the batch's,
        or 1: the same matrix for all. All arrays have the same number of dimensions.
      rhs: [*batch, k, n] or [*batch, n, k].
      extras: one array for each of `spec.fusion.extras`.
      config: legal for the product, with the pipeline auto or emit; `ops` sees to it.
      chip: decides how many cores share the grid.
    """
    arrays = [array if interpret else from_hbm(array) for array in (lhs, rhs, *extras)]
    batch = tuple(max(sizes) for sizes in zip(*(array.shape[:-2] for array in arrays), strict=True))
    tiles = config.tiles
    grid_m, grid_n, grid_k = tiles.grid(spec)
    # Each batch dimension is an axis of the grid: reshaping them into one would make operands intermediates, which XLA
    # then likes to copy to VMEM as a whole.
    grid = (*batch, *((grid_m, grid_n) if config.grid_order == "m" else (grid_n, grid_m)), grid_k)

    def block(array: Any, shape: tuple[int, int], along: tuple[str, str], num_stages: int) -> pl.BlockSpec:
        def index(*at: Any) -> tuple[Any, ...]:
            i, j = at[-3:-1] if config.grid_order == "m" else (at[-2], at[-3])
            named = {"m": i, "n": j, "k": at[-1], "": 0}
            own = [place if size > 1 else 0 for place, size in zip(at, array.shape[:-2], strict=False)]
            return *own, named[along[0]], named[along[1]]

        mode = pl.Buffered(num_stages) if num_stages > 2 else None
        return pl.BlockSpec((*(None for _ in batch), *shape), index, pipeline_mode=mode)

    in_specs = [
        block(lhs, block_shape(spec, tiles, "lhs"), dimensions(spec, "lhs"), config.num_stages),
        block(rhs, block_shape(spec, tiles, "rhs"), dimensions(spec, "rhs"), config.num_stages),
    ]
    resident = [False, False]
    for array, extra in zip(extras, spec.fusion.extras, strict=True):
        rows, columns = dimensions(spec, extra.beside)
        stays = is_resident(spec, tiles, extra)
        which = ("", "") if stays else (rows if extra.rows else "", columns if extra.columns else "")
        resident.append(stays and math.prod(array.shape[:-2]) == 1)
        if resident[-1]:
            arrays[len(in_specs)] = array.reshape(array.shape[-2:])
            in_specs.append(pl.BlockSpec(array.shape[-2:], lambda *_: (0, 0)))
        else:
            in_specs.append(block(array, extra_block(spec, tiles, extra), which, config.num_stages))
    out_shapes = [
        shape_with_mesh_axes((*batch, spec.m, spec.n), dtype, arrays)
        for dtype in (spec.dtype_out, *spec.fusion.more_outputs)
    ]
    out_specs = [block(out, (tiles.tile_m, tiles.tile_n), ("m", "n"), 2) for out in out_shapes]
    if interpret and config.pipeline == "emit":
        arrays = [as_stored(array, its) for array, its in zip(arrays, in_specs, strict=True)]
        out_shapes = [shape_as_stored(out, its, arrays) for out, its in zip(out_shapes, out_specs, strict=True)]

    def body(*refs: Any) -> None:
        place = Place.of_grid(len(grid) - 1, config)
        step(place, *refs, spec=spec, functions=functions, config=config)

    scratch = [pltpu.VMEM(b.shape, jnp.dtype(b.dtype)) for b in scratch_buffers(spec, config)]
    cost = pl.CostEstimate(
        flops=spec.flops * spec.passes,
        transcendentals=functions.transcendentals,
        bytes_accessed=blocked_traffic(spec, config).hbm_bytes,
    )
    name = f"systolic_matmul_{spec.dtype_lhs}_{spec.m}_{spec.k}_{spec.n}"
    call = functools.partial(pl.pallas_call, out_shape=out_shapes, cost_estimate=cost, interpret=interpret, name=name)
    if config.pipeline == "auto":
        # Cores share whole output blocks: the outer axis first, and the batch where there is one.
        semantics = ("parallel",) * (len(grid) - 1) + ("arbitrary",)
        run = call(
            body,
            grid=grid,
            in_specs=in_specs,
            out_specs=out_specs,
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=vmem_limit_bytes),
        )
    else:
        inputs, outputs = len(arrays), len(out_shapes)

        def whole(*refs: Any) -> None:
            streamed = [number for number in range(inputs) if not resident[number]]

            def one(*blocks: Any) -> None:
                given = list(refs[:inputs])
                for number, block in zip(streamed, blocks, strict=False):
                    given[number] = block
                body(*given, *blocks[len(streamed) :], *refs[inputs + outputs :])

            with tracing_for(chip):
                pltpu.emit_pipeline(
                    one, grid=grid, in_specs=[in_specs[number] for number in streamed], out_specs=out_specs
                )(*(refs[number] for number in streamed), *refs[inputs : inputs + outputs])

        run = call(
            whole,
            in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM if stays else pltpu.HBM) for stays in resident],
            out_specs=[pl.BlockSpec(memory_space=pltpu.HBM)] * outputs,
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=vmem_limit_bytes),
        )
    with jax.named_scope("systolic.matmul"):
        outs = tuple(run(*arrays))
    return outs if not interpret else tuple(out[..., : spec.m, : spec.n] for out in outs)


def from_hbm(array: Array) -> Array:
    """The array, to be read from HBM by blocks.

    Left to itself XLA likes to copy a whole operand to VMEM ahead of the call, from where blocks move slower.
    """
    return array if array.size <= SMALL_ELEMENTS else pltpu.with_memory_space_constraint(array, pltpu.HBM)
