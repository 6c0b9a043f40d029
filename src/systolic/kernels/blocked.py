"""The blocked matmul: out[i, j] = epilogue(Σₖ lhs_fn(lhs[i, k]) · rhs_fn(rhs[k, j])), for every size.

Grid: (*batch, i, j, kk), or (*batch, j, i, kk) where columns are the outer ones; kk is innermost, so that one output
block stays in VMEM while its sum runs. In VMEM: a block of each operand and of whatever is read beside them, twice or
three times, the output's block twice, and where k takes several steps one sum in float32 or int32.

A step multiplies its tile in slices, each one piece of straight code: the matrix units are refilled and drained once a
slice, so slices are as long as the size of the code allows (`tiling.Blocking`).

Two pipelines run the same body. `pallas_call`'s keeps two buffers. `emit_pipeline` keeps three, which hides the large
store at the end of a run over k; it runs on one core. Edges: Pallas clips the last blocks' copies; what lies past the
end along k is zeroed on both operands, for it may be anything, also NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Shaped

from systolic.chips import Chip
from systolic.compat import shape_with_mesh_axes
from systolic.kernels.interpreted import as_stored, shape_as_stored, tracing_for
from systolic.kernels.slices import Slice, multiply, zero_past
from systolic.problem import Extra, MatmulProblem
from systolic.tiling import Blocking, block_shape, blocked_traffic, extra_block, is_split, is_staged, scratch_buffers

# Vector operations an element up to which the epilogue runs in every step over k: cheaper than a pass of its own.
_CHEAP_EPILOGUE_OPS = 1
# Rows of the output that an expensive epilogue does at once. Its code is straight, and heavy activations have much.
_EPILOGUE_ROWS = 64
_SMALL_ELEMENTS = 1024  # XLA may insist on another place for a few numbers
_STAGED_ROWS = 256  # of an operand that are rewritten at once

Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Functions:
    """What the kernel applies to blocks; each takes the block and, after it, the blocks of its extras.

    Elementwise functions that broadcast. `epilogue` takes the sum and returns one block for each output.
    """

    epilogue: Fn
    lhs_fn: Fn | None = None
    rhs_fn: Fn | None = None
    transcendentals: int = 0  # of the whole product, for the cost estimate


def blocked_matmul(
    lhs: Shaped[Array, "*batch rows columns"],
    rhs: Shaped[Array, "*batch rows columns"],
    extras: Sequence[Shaped[Array, "*batch rows columns"]],
    *,
    problem: MatmulProblem,
    functions: Functions,
    blocking: Blocking,
    chip: Chip,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> tuple[Shaped[Array, "*batch m n"], ...]:
    """All outputs of the product, the first as `problem.dtype_out`.

    Args:
      lhs: [*batch, m, k], or [*batch, k, m] with `problem.transpose_lhs`. A batch dimension is as long as the batch's,
        or 1: the same matrix for all. All arrays have the same number of dimensions.
      rhs: [*batch, k, n] or [*batch, n, k].
      extras: one array for each of `problem.fusion.extras`.
      blocking: legal for the problem; `ops` sees to it.
      chip: decides how many cores share the grid.
    """
    # Blocks come from HBM. XLA would copy a whole operand to VMEM ahead of the call, from where blocks move slower.
    arrays = [
        array if interpret or array.size <= _SMALL_ELEMENTS else pltpu.with_memory_space_constraint(array, pltpu.HBM)
        for array in (lhs, rhs, *extras)
    ]
    batch = tuple(max(sizes) for sizes in zip(*(array.shape[:-2] for array in arrays), strict=True))
    tiles = blocking.tiles
    grid_m, grid_n, grid_k = tiles.grid(problem)
    # Each batch dimension is an axis of the grid: reshaping them into one would make operands intermediates, which XLA
    # then likes to copy to VMEM as a whole.
    grid = (*batch, *((grid_m, grid_n) if blocking.outer == "m" else (grid_n, grid_m)), grid_k)

    def spec(array: Any, shape: tuple[int, int], along: tuple[str, str], buffers: int) -> pl.BlockSpec:
        def index(*at: Any) -> tuple[Any, ...]:
            i, j = at[-3:-1] if blocking.outer == "m" else (at[-2], at[-3])
            named = {"m": i, "n": j, "k": at[-1], "": 0}
            own = [place if size > 1 else 0 for place, size in zip(at, array.shape[:-2], strict=False)]
            return *own, named[along[0]], named[along[1]]

        mode = pl.Buffered(3) if buffers == 3 else None
        return pl.BlockSpec((*(None for _ in batch), *shape), index, pipeline_mode=mode)

    along = {
        "lhs": ("k", "m") if problem.transpose_lhs else ("m", "k"),
        "rhs": ("n", "k") if problem.transpose_rhs else ("k", "n"),
        "out": ("m", "n"),
    }
    in_specs = [
        spec(lhs, block_shape(problem, tiles, "lhs"), along["lhs"], blocking.buffers),
        spec(rhs, block_shape(problem, tiles, "rhs"), along["rhs"], blocking.buffers),
    ]
    for array, extra in zip(extras, problem.fusion.extras, strict=True):
        rows, columns = along[extra.beside]
        which = (rows if extra.rows else "", columns if extra.columns else "")
        in_specs.append(spec(array, extra_block(problem, tiles, extra), which, 2))
    out_shapes = [
        shape_with_mesh_axes((*batch, problem.m, problem.n), dtype, arrays)
        for dtype in (problem.dtype_out, *problem.fusion.more_outputs)
    ]
    out_specs = [spec(out, (tiles.tile_m, tiles.tile_n), along["out"], 2) for out in out_shapes]
    if interpret and blocking.buffers == 3:
        arrays = [as_stored(array, its) for array, its in zip(arrays, in_specs, strict=True)]
        out_shapes = [shape_as_stored(out, its, arrays) for out, its in zip(out_shapes, out_specs, strict=True)]
    body = functools.partial(_step, problem=problem, functions=functions, blocking=blocking, axis_k=len(grid) - 1)
    scratch = [pltpu.VMEM(b.shape, jnp.dtype(b.dtype)) for b in scratch_buffers(problem, blocking)]
    cost = pl.CostEstimate(
        flops=problem.flops * problem.passes,
        transcendentals=functions.transcendentals,
        bytes_accessed=blocked_traffic(problem, blocking).hbm_bytes,
    )
    name = f"systolic_matmul_{problem.dtype_lhs}_{problem.m}_{problem.k}_{problem.n}"
    call = functools.partial(pl.pallas_call, out_shape=out_shapes, cost_estimate=cost, interpret=interpret, name=name)
    if blocking.buffers == 2:
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
            operands_hbm, scratch_vmem = refs[: inputs + outputs], refs[inputs + outputs :]
            with tracing_for(chip):
                pltpu.emit_pipeline(
                    lambda *blocks: body(*blocks, *scratch_vmem), grid=grid, in_specs=in_specs, out_specs=out_specs
                )(*operands_hbm)

        run = call(
            whole,
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)] * inputs,
            out_specs=[pl.BlockSpec(memory_space=pltpu.HBM)] * outputs,
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=vmem_limit_bytes),
        )
    with jax.named_scope("systolic.matmul"):
        outs = tuple(run(*arrays))
    return outs if not interpret else tuple(out[..., : problem.m, : problem.n] for out in outs)


def _step(*refs: Any, problem: MatmulProblem, functions: Functions, blocking: Blocking, axis_k: int) -> None:
    """One step of the grid: refs of lhs, rhs, extras, outputs, then scratch, all in VMEM."""
    extras_of = problem.fusion.extras
    n_extras, n_outs = len(extras_of), 1 + len(problem.fusion.more_outputs)
    lhs_vmem, rhs_vmem, *rest = refs
    extras, outs, scratch = rest[:n_extras], rest[n_extras : n_extras + n_outs], list(rest[n_extras + n_outs :])
    tiles = blocking.tiles
    grid_k = tiles.grid(problem)[2]
    acc_vmem = scratch.pop(0) if grid_k > 1 else None
    kk = pl.program_id(axis_k)

    def beside(side: str) -> list[tuple[Extra, Any]]:
        return [pair for pair in zip(extras_of, extras, strict=True) if pair[0].beside == side]

    lhs = _ready("lhs", lhs_vmem, beside("lhs"), functions.lhs_fn, scratch, kk, problem, blocking)
    rhs = _ready("rhs", rhs_vmem, beside("rhs"), functions.rhs_fn, scratch, kk, problem, blocking)

    def finish(total: Array, piece: Slice) -> None:
        read = [_broadcastable(ref, extra, piece) for extra, ref in beside("out")]
        for out, value in zip(outs, functions.epilogue(total, *read), strict=True):
            out[piece.rows, piece.columns] = value.astype(out.dtype)

    def one(piece: Slice) -> None:
        with jax.named_scope("multiply"):
            part = multiply(lhs, rhs, piece, problem)
        if acc_vmem is None:
            finish(part, piece)
            return
        total = jnp.where(kk == 0, jnp.zeros_like(part), acc_vmem[piece.rows, piece.columns]) + part
        acc_vmem[piece.rows, piece.columns] = total
        if problem.fusion.epilogue_ops <= _CHEAP_EPILOGUE_OPS:
            finish(total, piece)  # in every step; only the last one's is copied out

    across = tiles.tile_n // blocking.slice_n
    _loop(blocking.slices, lambda s: one(Slice.number(s, across, blocking)))
    if acc_vmem is not None and problem.fusion.epilogue_ops > _CHEAP_EPILOGUE_OPS:

        @pl.when(kk == grid_k - 1)
        def _epilogue() -> None:
            def strip(at: Any) -> None:
                piece = Slice(rows=at, columns=slice(None))
                finish(acc_vmem[piece.rows, piece.columns], piece)

            with jax.named_scope("epilogue"):
                _strips(tiles.tile_m, _EPILOGUE_ROWS, strip)


def _ready(
    side: Literal["lhs", "rhs"],
    ref: Any,
    beside: Sequence[tuple[Extra, Any]],
    fn: Fn | None,
    scratch: list[Any],
    kk: Any,
    problem: MatmulProblem,
    blocking: Blocking,
) -> tuple[Any, ...]:
    """The refs to multiply: the block itself, what a function made of it, or its high and low bfloat16 part."""
    transposed = problem.transpose_lhs if side == "lhs" else problem.transpose_rhs
    axis_k = (1 if side == "lhs" else 0) ^ transposed
    staged: tuple[Any, ...] = (ref,)
    if is_staged(problem, side):
        staged = tuple(scratch.pop(0) for _ in range(2 if is_split(problem) else 1))

        def strip(at: Any) -> None:
            block = ref[at, :]
            if fn is not None:
                read = [extra_ref[at, :] if extra.rows else extra_ref[...] for extra, extra_ref in beside]
                block = fn(block, *read)
            if len(staged) == 1:
                staged[0][at, :] = _cast(block, staged[0].dtype)
                return
            high, low = split(block)
            staged[0][at, :], staged[1][at, :] = high, low

        with jax.named_scope(f"stage_{side}"):
            _strips(ref.shape[0], _STAGED_ROWS, strip)
    used = problem.k % blocking.tiles.tile_k
    if used:

        @pl.when(kk == blocking.tiles.grid(problem)[2] - 1)
        def _zero() -> None:
            for part in staged:
                zero_past(part, used, axis_k)

    return staged


def split(block: Array) -> tuple[Array, Array]:
    """A float32 block as two bfloat16 blocks whose sum is within 2^-16 of it.

    The high part is cut, not rounded: by a mask on the bits, which no compiler takes for a cast that it may skip.
    """
    bits = lax.bitcast_convert_type(block.astype(jnp.float32), jnp.uint32)
    high = lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32)
    return high.astype(jnp.bfloat16), (block - high).astype(jnp.bfloat16)


def _cast(block: Array, dtype: Any) -> Array:
    if jnp.issubdtype(block.dtype, jnp.integer) and jnp.dtype(dtype) == jnp.bfloat16:
        return block.astype(jnp.float32).astype(dtype)  # Mosaic has no direct cast on every chip
    return block.astype(dtype)


def _broadcastable(ref: Any, extra: Extra, piece: Slice) -> Array:
    rows = piece.rows if extra.rows else slice(None)
    columns = piece.columns if extra.columns else slice(None)
    return ref[rows, columns]


def _strips(rows: int, step: int, body: Callable[[Any], None]) -> None:
    """`body` for strips of `step` rows, and for the rest; twice in the code at the most."""
    if rows >= step:
        _loop(rows // step, lambda number: body(pl.ds(_times(number, step), step)))
    if rows % step:
        body(pl.ds(rows // step * step, rows % step))


def _times(number: Any, step: int) -> Any:
    return number * step if isinstance(number, int) else pl.multiple_of(number * step, step)


def _loop(count: int, body: Callable[[Any], None]) -> None:
    """`body(0)` … `body(count - 1)`, once in the code."""
    if count == 1:
        body(0)
        return

    def step(number: Any, carry: None) -> None:
        body(number)
        return carry

    lax.fori_loop(0, count, step, None)
