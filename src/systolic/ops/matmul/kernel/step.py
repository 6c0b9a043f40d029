"""One step of a matmul: a tile of each operand, made ready, multiplied in subtiles, finished."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from systolic.kernels.epilogue import Functions, outputs
from systolic.kernels.operands import Operand, multiply, part_of, ready
from systolic.kernels.subtiles import Subtile, loop
from systolic.schedule import Block, KernelConfig, Scratch, TileIndex, Tiles, has_last_step, operand_blocks, row_chunk
from systolic.spec import MatmulSpec, Operands

Sums = tuple[Array, ...]  # of a subtile


def index_in_grid(axis_k: int, config: KernelConfig) -> TileIndex:
    """Return the tiles of a pipeline's step whose last axis is `axis_k`."""
    i, j = (pl.program_id(axis_k - 2), pl.program_id(axis_k - 1))[:: 1 if config.grid_order == "m" else -1]
    return TileIndex(i=i, j=j, kk=pl.program_id(axis_k))


def step(
    index: TileIndex,
    operands: Operands,
    outs: tuple[Any, ...],
    scratch: Scratch,
    *,
    spec: MatmulSpec,
    functions: Functions,
    config: KernelConfig,
    stored: Callable[[Subtile], None] = lambda _: None,
    first: Callable[[Operand, Operand, tuple[Any, ...]], None] | None = None,
) -> None:
    """Run one step of the grid, on refs that are all in VMEM.

    Args:
      stored: called for each subtile that has been written to the outputs: in the last step over k, or in each step if
        that is cheaper than code of its own.
      first: computes the sums of the first step of all, from both operands into the accumulators, in place of `step`.
    """
    tiles = config.tiles
    grid_k = tiles.grid(spec)[2]
    sums_vmem, kk = scratch.sums, index.kk
    refs = operands.map(lambda ref, block: _own_columns(ref, block, tiles, index), operand_blocks(spec, tiles))
    lhs = ready("lhs", refs, functions.lhs, scratch.lhs, kk, spec, config)
    rhs = ready("rhs", refs, functions.rhs, scratch.rhs, kk, spec, config)

    def finish(totals: Sums, subtile: Subtile) -> None:
        read = refs.of_output.map(
            lambda ref, facts: ref[part_of(facts, subtile.rows, subtile.columns)], spec.operands.of_output
        )
        results = outputs(totals, read, spec.epilogue, functions, spec.dtype_out, spec.pairing)
        for out, value in zip(outs, results, strict=True):
            out[subtile.rows, subtile.columns] = value.astype(out.dtype)

    def products(subtile: Subtile) -> Sums:
        with jax.named_scope("multiply"):
            return multiply(lhs, rhs, subtile, spec)

    def subtiles(act: Callable[[Subtile], None]) -> None:
        loop(config.subtiles, lambda number: act(Subtile.number(number, config)))

    def finish_last(totals: Sums, subtile: Subtile) -> None:
        finish(totals, subtile)
        stored(subtile)

    def sums_so_far(subtile: Subtile) -> Sums:
        return tuple(
            jnp.where(kk == 0, jnp.zeros_like(added), sum_vmem[subtile.rows, subtile.columns]) + added
            for added, sum_vmem in zip(products(subtile), sums_vmem, strict=True)
        )

    def keep(totals: Sums, subtile: Subtile) -> None:
        for total, sum_vmem in zip(totals, sums_vmem, strict=True):
            sum_vmem[subtile.rows, subtile.columns] = total

    def add(subtile: Subtile) -> None:
        keep(sums_so_far(subtile), subtile)

    def add_and_finish(subtile: Subtile) -> None:
        totals = sums_so_far(subtile)
        keep(totals, subtile)
        finish(totals, subtile)  # in every step; only the last one's is copied out
        stored(subtile)

    def usual() -> None:
        if grid_k == 1:
            subtiles(lambda subtile: finish_last(products(subtile), subtile))
        elif not has_last_step(spec, tiles):
            subtiles(add_and_finish)
        else:
            # Code of its own for the last step: the epilogue of some columns overlaps the products of the next ones.
            pl.when(kk < grid_k - 1)(lambda: subtiles(add))
            pl.when(kk == grid_k - 1)(lambda: subtiles(lambda subtile: finish_last(sums_so_far(subtile), subtile)))

    if first is None:
        usual()
        return
    is_first = jnp.logical_and(jnp.logical_and(index.i == 0, index.j == 0), kk == 0)

    @pl.when(is_first)
    def _first() -> None:
        first(lhs, rhs, sums_vmem)
        if grid_k == 1:
            rows = row_chunk(spec, config)
            subtiles(
                lambda subtile: subtile.row_chunks(
                    rows,
                    lambda part: finish_last(tuple(sum_vmem[part.rows, part.columns] for sum_vmem in sums_vmem), part),
                )
            )

    pl.when(jnp.logical_not(is_first))(usual)


def _own_columns(ref: Any, block: Block, tiles: Tiles, index: TileIndex) -> Any:
    """Return the step's part of a row that stays in VMEM as a whole; other operands are blocks already."""
    if block.cut is None:
        return ref
    columns = getattr(tiles, f"tile_{block.cut}")
    if columns == ref.shape[-1]:
        return ref
    return ref.at[:, pl.ds(pl.multiple_of(index.along(block.cut) * columns, columns), columns)]
