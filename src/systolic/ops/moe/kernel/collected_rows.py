"""The rows of a block, copied together from tokens in VMEM as matrix units take them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.packed_rows import SUBLANES, PackedRows
from systolic.ops.moe.blocks import ROW_TILE
from systolic.schedule.legality import LANES


class CollectedRows:
    """A buffer of int32 words, [words, 128]: rows of 16 bits in registers of 16 rows."""

    def __init__(self, ref: Any, tokens: PackedRows, codes: Any) -> None:
        self._ref, self._tokens, self._codes = ref, tokens, codes

    @staticmethod
    def scratch(rows: int, columns: int) -> Any:
        return pltpu.VMEM((rows * columns // 2 // LANES, LANES), jnp.int32)

    def collect(self, tokens_ref: Any, slot: Any, code: Any, rows: Any) -> None:
        """Copy whole registers of rows together from a slot of tokens; `code` is the number of the first row's code."""

        def tile(number: Any, carry: None) -> None:
            self.collect_tile(tokens_ref, slot, code, number)
            return carry

        lax.fori_loop(0, lax.div(rows, jnp.int32(ROW_TILE)), tile, None)

    def collect_tile(self, tokens_ref: Any, slot: Any, code: Any, number: Any) -> None:
        """Copy the rows of one register of a block."""
        registers = self._tokens.registers
        codes = [self._codes[code + number * ROW_TILE + row] for row in range(ROW_TILE)]
        for word, words in enumerate(self._tokens.packed(tokens_ref, slot, codes)):
            for at, register in enumerate(words):
                first = (number * registers + at * SUBLANES) * SUBLANES + word
                self._ref[pl.ds(first, register.shape[0], stride=SUBLANES), :] = register

    def columns(self, rows: int, first: int, count: int) -> Array:
        """Return columns of a block's rows, from a first one and of a number."""
        registers, dtype = self._tokens.registers, jnp.dtype(self._tokens.dtype)

        def tile(number: int) -> Array:
            begin = number * registers + first // LANES
            firsts = range(begin * SUBLANES, (begin + count // LANES) * SUBLANES, SUBLANES)
            return jnp.concatenate([pltpu.bitcast(self._ref[pl.ds(at, SUBLANES), :], dtype) for at in firsts], 1)

        return jnp.concatenate([tile(number) for number in range(rows // ROW_TILE)])
