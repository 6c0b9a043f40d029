"""Copies of manual DMA: operands that arrive by blocks, outputs that leave by subtiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.ring import Ring
from systolic.kernels.subtiles import Subtile, quotient, times
from systolic.schedule import LANES, Block, GridSchedule, TileIndex

# Blocks in VMEM of an output, and of an operand that stays for several steps: one is used while the other moves.
SLOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """An operand that arrives by blocks. The block of a step stays for `reuse_distance` steps."""

    hbm: Any
    vmem: Any  # [num_stages, *block.shape]
    sem: Any  # [num_stages]
    block: Block
    schedule: GridSchedule
    reuse_distance: int
    num_stages: int

    @property
    def ring(self) -> Ring:
        return Ring(
            slots=self.num_stages,
            copies=lambda number, act: act(self._copy(number)),
            reuse_distance=self.reuse_distance,
            described_first=True,
        )

    def ref(self, number: Any) -> Any:
        return self.vmem.at[self._slot(number)]

    def _slot(self, number: Any) -> Any:
        return quotient(number, self.reuse_distance) % self.num_stages

    def _copy(self, number: Any) -> Any:
        index = self.schedule.tile_index(number, quotient)
        rows, columns = (
            pl.ds(times(index.along(dimension), size), size)
            for dimension, size in zip(self.block.along, self.block.shape, strict=True)
        )
        slot = self._slot(number)
        columns = _moved(columns, self.block.first_column)
        return pltpu.make_async_copy(self.hbm.at[rows, columns], self.vmem.at[slot], self.sem.at[slot])

    def fill_chunk(self, number: Any, fill_chunks: int, sem: Any) -> Any:
        rows, columns = self.along_k(number, fill_chunks)
        hbm = self.hbm.at[rows, _moved(columns, self.block.first_column)]
        return pltpu.make_async_copy(hbm, self.vmem.at[0, rows, columns], sem)

    def along_k(self, number: Any, fill_chunks: int) -> tuple[Any, Any]:
        axis = self.block.along.index("k")
        size = self.block.shape[axis] // fill_chunks
        at: list[Any] = [pl.ds(0, side) for side in self.block.shape]
        at[axis] = pl.ds(times(number, size), size)
        return at[0], at[1]


@dataclass(frozen=True, slots=True)
class OutputStream:
    """An output: tiles in VMEM, whose subtiles are copied out one by one."""

    hbm: Any
    vmem: Any  # [SLOTS, tile_m, tile_n]
    sem: Any  # [SLOTS]
    tile_m: int
    tile_n: int
    first_column: int = 0  # of the output, where it follows another one in an array

    def copy(self, part: Subtile, tile: Any, index: TileIndex) -> Any:
        rows, columns = part.moved(times(index.i, self.tile_m), times(index.j, self.tile_n))
        columns = _moved(columns, self.first_column)
        slot = tile % SLOTS
        return pltpu.make_async_copy(
            self.vmem.at[slot, part.rows, part.columns], self.hbm.at[rows, columns], self.sem.at[slot]
        )


def _moved(columns: Any, offset: int) -> Any:
    """Return columns of a matrix as columns of the array in which it begins at column `offset`."""
    if not offset:
        return columns
    start = columns.start
    return pl.ds(start + offset if isinstance(start, int) else pl.multiple_of(start + offset, LANES), columns.size)
