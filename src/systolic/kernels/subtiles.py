"""The subtiles of a step: their rows and columns, and the loop over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from systolic.schedule import KernelConfig, Tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtile:
    """Rows and columns of the output tile, from `row` and `column` on."""

    row: Any
    column: Any
    n_rows: int
    n_columns: int

    @classmethod
    def number(cls, number: Any, config: KernelConfig) -> Subtile:
        """Return the subtile of that number, counted along the rows of subtiles."""
        across = config.tiles.tile_n // config.subtile_n
        row, column = (number, 0) if across == 1 else (quotient(number, across), number % across)
        if config.tiles.tile_m == config.subtile_m:
            row, column = 0, number
        return cls(
            row=times(row, config.subtile_m),
            column=times(column, config.subtile_n),
            n_rows=config.subtile_m,
            n_columns=config.subtile_n,
        )

    @classmethod
    def whole(cls, tiles: Tiles) -> Subtile:
        return cls(row=0, column=0, n_rows=tiles.tile_m, n_columns=tiles.tile_n)

    @property
    def rows(self) -> Any:
        return pl.ds(self.row, self.n_rows)

    @property
    def columns(self) -> Any:
        return pl.ds(self.column, self.n_columns)

    def row_chunks(self, rows: int, body: Callable[[Subtile], None]) -> None:
        """Call `body` for each chunk of the subtile's rows; chunks divide them."""

        def chunk(number: Any) -> None:
            row = self.row + times(number, rows)
            body(replace(self, row=row if isinstance(row, int) else pl.multiple_of(row, rows), n_rows=rows))

        loop(self.n_rows // rows, chunk)

    def moved(self, row: Any, column: Any) -> tuple[Any, Any]:
        """Return the subtile's rows and columns in a matrix whose tile begins at `row`, `column`."""
        return pl.ds(row + self.row, self.n_rows), pl.ds(column + self.column, self.n_columns)


def times(number: Any, step: int) -> Any:
    """Return a multiple of `step`, declared as one to the compiler."""
    return number * step if isinstance(number, int) else pl.multiple_of(number * step, step)


def quotient(number: Any, divisor: int) -> Any:
    """Return `number // divisor`, known or traced.

    The operations are JAX's for `//`, but for the sign of the number. To lower JAX's sign, Pallas asks for the chip,
    which a machine without one does not know, and under `jax_enable_x64` it takes 64 bits, which no TPU has.
    """
    if isinstance(number, int):
        return number // divisor
    truncated = lax.div(number, np.int32(divisor))
    sign = (number > 0).astype(np.int32) - (number < 0).astype(np.int32)
    return jnp.where((sign != 1) & (lax.rem(number, np.int32(divisor)) != 0), truncated - 1, truncated)


def loop(count: int, body: Callable[[Any], None]) -> None:
    """Call `body(0)` … `body(count - 1)`, with the body once in the code."""
    if count == 1:
        body(0)
        return

    def step(number: Any, carry: None) -> None:
        body(number)
        return carry

    lax.fori_loop(0, count, step, None)
