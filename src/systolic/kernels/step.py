"""One step of the blocked matmul: a tile of each operand, made ready, multiplied in slices, finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from systolic.kernels.slices import Slice, multiply, times, zero_past
from systolic.problem import Extra, MatmulProblem
from systolic.tiling import (
    Blocking,
    Tiles,
    dimensions,
    has_accumulator,
    has_last_step,
    is_resident,
    is_split,
    is_staged,
)

_STAGED_ROWS = 256  # of an operand that are rewritten at once

Fn = Callable[..., Any]
Ready = tuple[Any, ...]  # refs of an operand, ready to be multiplied: one, or its high and its low part


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Functions:
    """What the kernel applies to blocks; each takes the block and, after it, the blocks of its extras.

    Elementwise functions that broadcast. `epilogue` takes the sum and returns one block for each output.
    """

    epilogue: Fn
    lhs_fn: Fn | None = None
    rhs_fn: Fn | None = None
    transcendentals: int = 0  # of the whole product, for the cost estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which blocks a step works on: rows and columns of blocks of the output, and blocks along k."""

    i: Any
    j: Any
    kk: Any

    @classmethod
    def of_grid(cls, axis_k: int, blocking: Blocking) -> Place:
        """The place of a pipeline's step whose last axis is `axis_k`."""
        i, j = (pl.program_id(axis_k - 2), pl.program_id(axis_k - 1))[:: 1 if blocking.outer == "m" else -1]
        return cls(i=i, j=j, kk=pl.program_id(axis_k))


def step(
    place: Place,
    *refs: Any,
    problem: MatmulProblem,
    functions: Functions,
    blocking: Blocking,
    finished: Callable[[Slice], None] = lambda _: None,
    first: Callable[[Ready, Ready, Any], None] | None = None,
) -> None:
    """One step of the grid: refs of lhs, rhs, extras, outputs, then scratch, all in VMEM.

    Args:
      finished: called for each slice that has been written to the outputs: in the last step over k, or in each one
        where that is cheaper than code of its own.
      first: computes the sum of the first step of all, from both operands into the accumulator, in place of `step`.
    """
    extras_of = problem.fusion.extras
    n_extras, n_outs = len(extras_of), 1 + len(problem.fusion.more_outputs)
    lhs_vmem, rhs_vmem, *rest = refs
    extras, outs, scratch = rest[:n_extras], rest[n_extras : n_extras + n_outs], list(rest[n_extras + n_outs :])
    tiles = blocking.tiles
    grid_k = tiles.grid(problem)[2]
    acc_vmem = scratch.pop(0) if has_accumulator(problem, blocking) else None
    kk = place.kk
    extras = [_own_columns(ref, extra, problem, tiles, place) for ref, extra in zip(extras, extras_of, strict=True)]

    def beside(side: str) -> list[tuple[Extra, Any]]:
        return [pair for pair in zip(extras_of, extras, strict=True) if pair[0].beside == side]

    lhs = _ready("lhs", lhs_vmem, beside("lhs"), functions.lhs_fn, scratch, kk, problem, blocking)
    rhs = _ready("rhs", rhs_vmem, beside("rhs"), functions.rhs_fn, scratch, kk, problem, blocking)

    def finish(total: Array, piece: Slice) -> None:
        read = [_broadcastable(ref, extra, piece) for extra, ref in beside("out")]
        for out, value in zip(outs, functions.epilogue(total, *read), strict=True):
            out[piece.rows, piece.columns] = value.astype(out.dtype)

    def part(piece: Slice) -> Array:
        with jax.named_scope("multiply"):
            return multiply(lhs, rhs, piece, problem)

    def slices(one: Callable[[Slice], None]) -> None:
        loop(blocking.slices, lambda number: one(Slice.number(number, blocking)))

    def finish_last(total: Array, piece: Slice) -> None:
        finish(total, piece)
        finished(piece)

    def sum_so_far(piece: Slice) -> Array:
        assert acc_vmem is not None
        found = part(piece)
        return jnp.where(kk == 0, jnp.zeros_like(found), acc_vmem[piece.rows, piece.columns]) + found

    def add(piece: Slice) -> None:
        assert acc_vmem is not None
        acc_vmem[piece.rows, piece.columns] = sum_so_far(piece)

    def add_and_finish(piece: Slice) -> None:
        assert acc_vmem is not None
        total = sum_so_far(piece)
        acc_vmem[piece.rows, piece.columns] = total
        finish(total, piece)  # in every step; only the last one's is copied out
        finished(piece)

    def usual() -> None:
        if grid_k == 1:
            slices(lambda piece: finish_last(part(piece), piece))
        elif not has_last_step(problem, tiles):
            slices(add_and_finish)
        else:
            # Code of its own for the last step: the epilogue of some columns overlaps the products of the next ones.
            pl.when(kk < grid_k - 1)(lambda: slices(add))
            pl.when(kk == grid_k - 1)(lambda: slices(lambda piece: finish_last(sum_so_far(piece), piece)))

    if first is not None:
        assert acc_vmem is not None
        is_first = jnp.logical_and(jnp.logical_and(place.i == 0, place.j == 0), kk == 0)

        @pl.when(is_first)
        def _first() -> None:
            first(lhs, rhs, acc_vmem)
            if grid_k == 1:
                slices(lambda piece: finish_last(acc_vmem[piece.rows, piece.columns], piece))

        pl.when(jnp.logical_not(is_first))(usual)
    else:
        usual()


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


def _own_columns(ref: Any, extra: Extra, problem: MatmulProblem, tiles: Tiles, place: Place) -> Any:
    """The step's part of a row that stays in VMEM as a whole; other extras are blocks already."""
    if not extra.columns or not is_resident(problem, tiles, extra):
        return ref
    dimension = dimensions(problem, extra.beside)[1]
    columns = getattr(tiles, f"tile_{dimension}")
    at = {"m": place.i, "n": place.j, "k": place.kk}[dimension]
    if columns == ref.shape[-1]:
        return ref
    return ref.at[:, pl.ds(pl.multiple_of(at * columns, columns), columns)]


def _broadcastable(ref: Any, extra: Extra, piece: Slice) -> Array:
    rows = piece.rows if extra.rows else slice(None)
    columns = piece.columns if extra.columns else slice(None)
    return ref[rows, columns]


def _strips(rows: int, step: int, body: Callable[[Any], None]) -> None:
    """`body` for strips of `step` rows, and for the rest; twice in the code at the most."""
    if rows >= step:
        loop(rows // step, lambda number: body(pl.ds(times(number, step), step)))
    if rows % step:
        body(pl.ds(rows // step * step, rows % step))


def loop(count: int, body: Callable[[Any], None]) -> None:
    """`body(0)` … `body(count - 1)`, once in the code."""
    if count == 1:
        body(0)
        return

    def step(number: Any, carry: None) -> None:
        body(number)
        return carry

    lax.fori_loop(0, count, step, None)
