"""One step of the blocked matmul: a tile of each operand, made ready, multiplied in slices, finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from systolic.kernels.operands import Operand, multiply, ready
from systolic.kernels.subtiles import Slice, loop
from systolic.schedule import KernelConfig, Tiles, dimensions, has_accumulator, has_last_step, is_resident, row_chunk
from systolic.spec import Extra, MatmulSpec

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which blocks a step works on: rows and columns of blocks of the output, and blocks along k."""

    i: Any
    j: Any
    kk: Any

    @classmethod
    def of_grid(cls, axis_k: int, config: KernelConfig) -> Place:
        """The place of a pipeline's step whose last axis is `axis_k`."""
        i, j = (pl.program_id(axis_k - 2), pl.program_id(axis_k - 1))[:: 1 if config.grid_order == "m" else -1]
        return cls(i=i, j=j, kk=pl.program_id(axis_k))


def step(
    place: Place,
    *refs: Any,
    spec: MatmulSpec,
    functions: Functions,
    config: KernelConfig,
    finished: Callable[[Slice], None] = lambda _: None,
    first: Callable[[Operand, Operand, Any], None] | None = None,
) -> None:
    """One step of the grid: refs of lhs, rhs, extras, outputs, then scratch, all in VMEM.

    Args:
      finished: called for each slice that has been written to the outputs: in the last step over k, or in each one
        where that is cheaper than code of its own.
      first: computes the sum of the first step of all, from both operands into the accumulator, in place of `step`.
    """
    extras_of = spec.fusion.extras
    n_extras, n_outs = len(extras_of), 1 + len(spec.fusion.more_outputs)
    lhs_vmem, rhs_vmem, *rest = refs
    extras, outs, scratch = rest[:n_extras], rest[n_extras : n_extras + n_outs], list(rest[n_extras + n_outs :])
    tiles = config.tiles
    grid_k = tiles.grid(spec)[2]
    acc_vmem = scratch.pop(0) if has_accumulator(spec, config) else None
    kk = place.kk
    extras = [_own_columns(ref, extra, spec, tiles, place) for ref, extra in zip(extras, extras_of, strict=True)]

    def beside(side: str) -> list[tuple[Extra, Any]]:
        return [pair for pair in zip(extras_of, extras, strict=True) if pair[0].beside == side]

    lhs = ready("lhs", lhs_vmem, beside("lhs"), functions.lhs_fn, scratch, kk, spec, config)
    rhs = ready("rhs", rhs_vmem, beside("rhs"), functions.rhs_fn, scratch, kk, spec, config)

    def finish(total: Array, piece: Slice) -> None:
        read = [_broadcastable(ref, extra, piece) for extra, ref in beside("out")]
        for out, value in zip(outs, functions.epilogue(total, *read), strict=True):
            out[piece.rows, piece.columns] = value.astype(out.dtype)

    def part(piece: Slice) -> Array:
        with jax.named_scope("multiply"):
            return multiply(lhs, rhs, piece, spec)

    def subtiles(one: Callable[[Slice], None]) -> None:
        loop(config.subtiles, lambda number: one(Slice.number(number, config)))

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
            subtiles(lambda piece: finish_last(part(piece), piece))
        elif not has_last_step(spec, tiles):
            subtiles(add_and_finish)
        else:
            # Code of its own for the last step: the epilogue of some columns overlaps the products of the next ones.
            pl.when(kk < grid_k - 1)(lambda: subtiles(add))
            pl.when(kk == grid_k - 1)(lambda: subtiles(lambda piece: finish_last(sum_so_far(piece), piece)))

    if first is not None:
        assert acc_vmem is not None
        is_first = jnp.logical_and(jnp.logical_and(place.i == 0, place.j == 0), kk == 0)

        @pl.when(is_first)
        def _first() -> None:
            first(lhs, rhs, acc_vmem)
            if grid_k == 1:
                rows = row_chunk(spec, config)
                subtiles(
                    lambda piece: piece.strips(rows, lambda part: finish_last(acc_vmem[part.rows, part.columns], part))
                )

        pl.when(jnp.logical_not(is_first))(usual)
    else:
        usual()


def _own_columns(ref: Any, extra: Extra, spec: MatmulSpec, tiles: Tiles, place: Place) -> Any:
    """The step's part of a row that stays in VMEM as a whole; other extras are blocks already."""
    if not extra.columns or not is_resident(spec, tiles, extra):
        return ref
    dimension = dimensions(spec, extra.beside)[1]
    columns = getattr(tiles, f"tile_{dimension}")
    at = {"m": place.i, "n": place.j, "k": place.kk}[dimension]
    if columns == ref.shape[-1]:
        return ref
    return ref.at[:, pl.ds(pl.multiple_of(at * columns, columns), columns)]


def _broadcastable(ref: Any, extra: Extra, piece: Slice) -> Array:
    rows = piece.rows if extra.rows else slice(None)
    columns = piece.columns if extra.columns else slice(None)
    return ref[rows, columns]
