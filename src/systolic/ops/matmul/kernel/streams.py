"""What manual DMA moves: operands that come by blocks, outputs that leave by subtiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.subtiles import Subtile, quotient, times
from systolic.schedule import LANES, Block, GridSchedule, TileIndex

# Blocks in VMEM of an output, and of an operand that stays for several steps: one is used while the other moves.
SLOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """An operand that comes by blocks. Its block number f is used in the steps from f · reuse_distance on."""

    hbm: Any
    vmem: Any  # [num_stages, *block.shape]
    sem: Any  # [num_stages]
    block: Block
    reuse_distance: int
    num_stages: int

    def slot(self, number: Any) -> Any:
        """Which buffer holds the block of a step."""
        return quotient(number, self.reuse_distance) % self.num_stages

    def ref(self, number: Any) -> Any:
        """The block of a step."""
        return self.vmem.at[self.slot(number)]

    def copy(self, number: Any, schedule: GridSchedule) -> Any:
        """The copy of a step's block."""
        index = schedule.tile_index(number, quotient)
        rows, columns = (
            pl.ds(times(index.along(dimension), size), size)
            for dimension, size in zip(self.block.along, self.block.shape, strict=True)
        )
        slot = self.slot(number)
        columns = moved(columns, self.block.first_column)
        return pltpu.make_async_copy(self.hbm.at[rows, columns], self.vmem.at[slot], self.sem.at[slot])

    def fill_chunk(self, number: Any, fill_chunks: int, sem: Any) -> Any:
        """The copy of a chunk along k of the first step's block."""
        rows, columns = self.along_k(number, fill_chunks)
        hbm = self.hbm.at[rows, moved(columns, self.block.first_column)]
        return pltpu.make_async_copy(hbm, self.vmem.at[0, rows, columns], sem)

    def along_k(self, number: Any, fill_chunks: int) -> tuple[Any, Any]:
        """Rows and columns of a chunk along k."""
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
    first_column: int = 0  # of the output, where it lies behind another one in an array

    def copy(self, part: Subtile, tile: Any, index: TileIndex) -> Any:
        """The copy of a part of the output tile number `tile`."""
        rows, columns = part.moved(times(index.i, self.tile_m), times(index.j, self.tile_n))
        columns = moved(columns, self.first_column)
        slot = tile % SLOTS
        return pltpu.make_async_copy(
            self.vmem.at[slot, part.rows, part.columns], self.hbm.at[rows, columns], self.sem.at[slot]
        )


def moved(columns: Any, by: int) -> Any:
    """Columns of a matrix as those of the array in which it begins at column `by`."""
    if not by:
        return columns
    start = columns.start
    return pl.ds(start + by if isinstance(start, int) else pl.multiple_of(start + by, LANES), columns.size)
