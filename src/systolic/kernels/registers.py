"""Parts of refs, and registers of rows that belong to several groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from systolic.schedule import LANES


def part(number: Any, size: int, count: int) -> Any:
    """Return the slice of the part of that number; the whole ref if there is only one, which needs no alignment."""
    return slice(None) if count == 1 else pl.ds(pl.multiple_of(number * size, size), size)


class ColumnTiles(Protocol):
    """Tiles along the columns of an array. All but the last hold `step_n` columns; the last holds `tile_n`."""

    @property
    def grid_n(self) -> int: ...

    @property
    def step_n(self) -> int:
        """Columns from the start of one tile to the start of the next."""
        ...

    @property
    def tile_n(self) -> int: ...


def on_tile(number: Any, schedule: ColumnTiles, act: Callable[[Any, Any], None]) -> None:
    """Call `act` with the columns of a tile in an array, and in its buffer.

    If tiles do not divide the columns, the last one is wider than the others, which leave the end of a buffer
    unchanged.
    """
    count, step, width = schedule.grid_n, schedule.step_n, schedule.tile_n
    if step == width:
        act(part(number, width, count), slice(None))
        return
    last = count - 1
    pl.when(number < last)(lambda: act(part(number, step, count), pl.ds(0, step)))
    pl.when(number == last)(lambda: act(pl.ds(last * step, width), slice(None)))


def block_of(ref: Any, rows: Any, columns: Any) -> Any:
    """Return rows and columns of a ref, where the compiler does not know the number of rows.

    libtpu 0.0.42.1 ends ("Check failed: dynamic_dim_it != dynamic_sizes.end()") if both are cut in one step and the
    columns end in the middle of a register.
    """
    if isinstance(columns, pl.Slice) and columns.size % LANES:
        return ref.at[:, columns].at[rows]
    return ref.at[rows, columns]


class Parts(NamedTuple):
    """Parts of one size along an axis of a ref, visited by one loop."""

    how_many: int
    size: int
    at: Callable[[Any], Any]  # of the number of a part, what to index the ref with
    first: int = 0  # where the first part begins


def parts_of(length: int, size: int) -> list[Parts]:
    """Return equal parts of a size, and the shorter part after them if they do not divide it."""
    count, rest = divmod(length, size)
    result = [Parts(count, size, lambda number: part(number, size, count + (rest > 0)))]
    return [*result, Parts(1, rest, lambda _: pl.ds(count * size, rest), count * size)] if rest else result


def spread_over_registers(shared: Array, target: Any, first: Any) -> None:
    """Write each number of a row to all lanes of a register of the target's row.

    Args:
      shared: float32 [rows, numbers].
      target: float32 [rows, columns], whole registers.
      first: the number for the first register.
    """
    number = lax.broadcasted_iota(jnp.int32, shared.shape, 1)
    for register in range(target.shape[1] // LANES):
        value = jnp.where(number == first + register, shared, 0.0).sum(1, keepdims=True)
        target[:, register * LANES : (register + 1) * LANES] = jnp.broadcast_to(value, (shared.shape[0], LANES))


def wide(values: Any) -> Any:
    """Return values in 32 bits, in which rows of a register can be selected."""
    return values.astype(jnp.float32 if jnp.issubdtype(values.dtype, jnp.floating) else jnp.int32)


def keep_rows(ref: Any, *, size: Any, first: Any, end: Any, multiple: int, depth: int) -> None:
    """Zero all rows but those from `first` to `end`, up to the next multiple of `depth`.

    Args:
      ref: [rows, columns]; `size` rows of it have been copied, whole registers of `multiple` rows: the others are after
        `end`, and `first` is in the first one, `end` in the last.
    """
    width = ref.shape[1]

    def register(row: Any, keeps: Any) -> None:
        rows = pl.ds(pl.multiple_of(row, multiple), multiple)
        number = row + lax.broadcasted_iota(jnp.int32, (multiple, width), 0)
        ref[rows, :] = jnp.where(keeps(number), wide(ref[rows, :]), 0).astype(ref.dtype)

    pl.when(first > 0)(lambda: register(0, lambda number: number >= first))
    pl.when(end < size)(lambda: register(size - multiple, lambda number: number < end))
    tail = lax.div(size + (depth - 1), depth) * depth - size

    def zero(index: Any, carry: None) -> None:
        row = pl.multiple_of(size + index * multiple, multiple)
        ref[pl.ds(row, multiple), :] = jnp.zeros((multiple, width), ref.dtype)
        return carry

    lax.fori_loop(0, lax.div(tail, multiple), zero, None)
