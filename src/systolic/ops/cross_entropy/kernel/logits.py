"""Logits of a subtile, beside elementwise work on the subtile before.

The compiler schedules a stretch of straight code from its end, and puts elementwise work that nothing waits for before
or after the products, where it takes time of its own. Here each chunk of that work comes before a part of the products,
because some of their rows wait for its result: their first lanes are added to a zero that the compiler cannot foresee.
The chunks come evenly along the products: where five pieces each came before one product, arithmetic took all slots for
a while, and matrix units waited (gradients of 2048·2560·262144 with kept logits on v6e: 6.97 ms, evenly 6.58,
simulated).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from systolic.kernels.dots import dot
from systolic.kernels.subtiles import loop, quotient, times
from systolic.ops.cross_entropy.schedule import ROWS, LossSchedule
from systolic.schedule import LANES

# The least finite number: the logit of a column past the end, and the maximum of no logits. Exponentials of differences
# with it are zero; with infinities they would be NaN.
LOWEST = float(jnp.finfo(jnp.float32).min)
IGNORED = -(2**24)  # label of a row without one; float32 holds it, and no column comes near it

_SLICE = 256  # of k, between whose products it is spread: the depth of a matrix unit of v6e and v7x
CHUNK_ROWS = 64  # of the elementwise work on values in registers: 8 registers a value


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Rows of the tile, and the first column of a subtile in the tile."""

    row: Any
    column: Any


def place_of(number: Any, schedule: LossSchedule) -> Place:
    """Return the place of a subtile; subtiles are counted down the rows first, so that weights are used again."""
    config = schedule.config
    down = config.tiles.tile_m // config.subtile_m
    if isinstance(number, int):
        row, column = number % down, number // down
    else:
        row, column = lax.rem(number, jnp.int32(down)), quotient(number, down)
    return Place(row=times(row, config.subtile_m), column=times(column, config.subtile_n))


def chunk_rows(schedule: LossSchedule) -> int:
    """Return the rows of elementwise work at once."""
    return math.gcd(CHUNK_ROWS, schedule.config.subtile_m)


def by_rows(n_rows: int, body: Callable[[Any], None], at_once: int = CHUNK_ROWS) -> None:
    """Call `body` with slices of at most `at_once` rows, with the body once in the code."""
    size = math.gcd(n_rows, at_once)
    loop(n_rows // size, lambda number: body(pl.ds(times(number, size), size)))


def soft_capped(logits: Array, cap: float | None) -> Array:
    return logits if cap is None else cap * jnp.tanh(logits * (1 / cap))


def multiply_beside(
    schedule: LossSchedule,
    x_vmem: Any,
    w_vmem: Any,
    place: Place,
    work: Callable[[int], Array],
) -> Array:
    """Return the logits of a subtile, float32, and do elementwise work meanwhile.

    Args:
      work: takes the first of `chunk_rows` rows of the subtile, does their work, and returns numbers that depend on all
        of it and are not negative: [rows, 128].
    """
    config, spec = schedule.config, schedule.spec
    rows = pl.ds(place.row, config.subtile_m)
    columns = pl.ds(place.column, config.subtile_n)
    starts = range(0, schedule.depth, _SLICE)
    done = [work(chunk) for chunk in range(0, config.subtile_m, chunk_rows(schedule))]
    # The first slice waits for nothing; each of the others waits for an equal share of the work.
    ends = [number * len(done) // max(len(starts) - 1, 1) for number in range(len(starts))]
    total = None
    for number, start in enumerate(starts):
        depth = slice(start, min(start + _SLICE, schedule.depth))
        x = x_vmem[rows, depth]
        if number:
            x = after_all(x, done[ends[number - 1] : ends[number]])
        part = dot(x, w_vmem[depth, columns], (1, 0), spec)
        total = part if total is None else total + part
    assert total is not None
    return total


def after_all(x: Array, done: list[Array]) -> Array:
    """Return x, some of whose rows the compiler has to compute after each of `done`, in this order."""
    for number, numbers in enumerate(done):
        x = _after(x, numbers, x.shape[0] * number // len(done) // ROWS * ROWS)
    return x


def _after(x: Array, done: Array, first: int) -> Array:
    """Return x, whose rows from `first` on the compiler has to compute after `done`."""
    zero = jnp.where(done < 0, 1.0, 0.0).astype(x.dtype)
    last = first + done.shape[0]
    width = min(x.shape[1], LANES)
    pieces = [x[:first, :width], x[first:last, :width] + zero[:, :width], x[last:, :width]]
    lanes = jnp.concatenate([piece for piece in pieces if piece.shape[0]], axis=0)
    return lanes if x.shape[1] == width else jnp.concatenate([lanes, x[:, LANES:]], axis=1)
