"""A buffer of rows in VMEM from which single rows are read, at an index that is known when the program runs.

Eight rows of an array are consecutive registers of 8 × 128 elements in HBM, and so they are in this buffer. Row r has
one sublane of each; a load with a stride collects it from eight registers. Rows of 16 bits are stored in pairs, the
even row in the low half of each 32-bit word: the load takes a pair, and a shift one of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Shaped

from systolic.kernels.launch import from_hbm
from systolic.schedule.legality import LANES
from systolic.spec import dtype_bytes

SUBLANES = 8
PACKED_DTYPES = ("bfloat16", "float32")
_SHIFT_BITS = 5  # of a code of a row, below its first word
_HIGH_HALF = -(2**16)


def row_codes(rows: Any, registers: int, dtype: str) -> Any:
    """Return codes of the rows of a buffer: the first word's row among rows of 128 words, and the shift of its half."""
    pack = 4 // dtype_bytes(dtype)
    sublane = rows % SUBLANES
    word = rows // SUBLANES * (registers * SUBLANES // pack) + sublane // pack
    shift = 16 * (pack - 1 - sublane % pack)
    return (word << _SHIFT_BITS) + shift


def in_tiles(array: Shaped[Array, "rows d"], interpret: bool | pltpu.InterpretParams) -> Array:
    """Return an array in HBM as [tiles, registers, 8, 128]."""
    rows, d = array.shape
    tiles = array.reshape(rows // SUBLANES, SUBLANES, d // LANES, LANES).transpose(0, 2, 1, 3)
    return tiles if interpret else from_hbm(tiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Slots of `tiles` times eight rows, of `registers` times 128 columns."""

    slots: int
    tiles: int
    registers: int
    dtype: str
    # JAX' interpret mode has neither another shape nor another dtype of a ref: there the buffer has the rows' dtype.
    is_interpreted: bool

    @property
    def _pack(self) -> int:
        return 4 // dtype_bytes(self.dtype)

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.slots, self.tiles, self.registers

    @property
    def scratch(self) -> Any:
        if self.is_interpreted:
            return pltpu.VMEM((*self._shape, SUBLANES, LANES), jnp.dtype(self.dtype))
        words = self.slots * self._slot_words
        return pltpu.VMEM((words, LANES), jnp.float32 if self._pack == 1 else jnp.int32)

    @property
    def _slot_words(self) -> int:
        """Rows of 128 words of a slot."""
        return self.tiles * self.registers * SUBLANES // self._pack

    def in_tiles(self, ref: Any) -> Any:
        """Return the buffer as copies write it: [slots, tiles, registers, 8, 128] of the rows' dtype."""
        if self.is_interpreted:
            return ref
        words = ref.reshape(*self._shape, SUBLANES // self._pack, LANES)
        return words if self._pack == 1 else words.bitcast(jnp.dtype(self.dtype))

    def row(self, ref: Any, slot: Any, code: Any) -> list[Array]:
        """Return a row in float32, in registers of [8, 128] and a last one that may be smaller."""
        words, shift = self._words(ref, slot, code)
        if self._pack == 1:
            return words
        return [lax.bitcast_convert_type((word << shift) & _HIGH_HALF, jnp.float32) for word in words]

    def copy(
        self, ref: Any, slot: Any, codes: list[Any], target: PackedRows, target_ref: Any, target_slot: Any, tile: Any
    ) -> None:
        """Copy eight rows to a tile of another buffer, with as many columns."""
        packed = self.packed(ref, slot, codes)
        for word, registers in enumerate(packed):
            for number, register in enumerate(registers):
                target._store(target_ref, target_slot, tile, word, number * SUBLANES, register)

    def packed(self, ref: Any, slot: Any, codes: list[Any]) -> list[list[Array]]:
        """Return the words of rows, two rows of 16 bits in a word, in registers as `row` does."""
        rows = [self._words(ref, slot, code) for code in codes]
        if self._pack == 1:
            return [words for words, _ in rows]
        return [
            [
                (low_word >> (16 - low_shift)) & ~_HIGH_HALF | (high_word << high_shift) & _HIGH_HALF
                for low_word, high_word in zip(low_words, high_words, strict=True)
            ]
            for (low_words, low_shift), (high_words, high_shift) in zip(rows[::2], rows[1::2], strict=True)
        ]

    def _words(self, ref: Any, slot: Any, code: Any) -> tuple[list[Any], Any]:
        """Return the words that hold a row, and the shift that moves the row to their high half."""
        first, shift = code >> _SHIFT_BITS, code & (2**_SHIFT_BITS - 1)
        sublanes = SUBLANES // self._pack
        registers = []
        for at in range(0, self.registers, SUBLANES):
            count = min(SUBLANES, self.registers - at)
            if self.is_interpreted:
                tile, word = first // (self.registers * sublanes), first % sublanes
                rows = ref[slot, tile, at : at + count, pl.ds(word * self._pack, self._pack), :]
                registers.append(rows[:, 0] if self._pack == 1 else pltpu.bitcast(rows, jnp.int32)[:, 0])
            else:
                begin = slot * self._slot_words + first + at * sublanes
                registers.append(ref[pl.ds(begin, count, stride=sublanes), :])
        return registers, shift

    def _store(self, ref: Any, slot: Any, tile: Any, word: int, at: int, register: Any) -> None:
        sublanes, count = SUBLANES // self._pack, register.shape[0]
        if self.is_interpreted:
            rows = register[:, None] if self._pack == 1 else pltpu.bitcast(register[:, None], ref.dtype)
            ref[slot, tile, at : at + count, word * self._pack : (word + 1) * self._pack, :] = rows
            return
        begin = slot * self._slot_words + tile * (self.registers * sublanes) + at * sublanes + word
        ref[pl.ds(begin, count, stride=sublanes), :] = register

    def zero(self, ref: Any, tile: int) -> None:
        """Set eight rows of each slot to zero."""
        for slot in range(self.slots):
            if self.is_interpreted:
                ref[slot, tile] = jnp.zeros(ref.shape[2:], ref.dtype)
                continue
            words = self._slot_words // self.tiles
            ref[pl.ds(slot * self._slot_words + tile * words, words), :] = jnp.zeros((words, LANES), ref.dtype)
