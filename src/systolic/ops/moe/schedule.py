"""The cutting of the kernels that move rows of tokens and of experts, chosen by a model of their time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from systolic.chips import Chip
from systolic.kernels.packed_rows import SUBLANES, PackedRows
from systolic.schedule.buffers import VmemBuffer, total_bytes
from systolic.schedule.config import KernelConfig
from systolic.schedule.legality import LANES, legal_sides, require_none, vmem_violations
from systolic.schedule.sizes import padded
from systolic.schedule.tiles import Tiles
from systolic.schedule.vmem import buffer_bytes
from systolic.spec import dtype_bytes

SUMMED_TOKENS = 16  # whose sums are converted together: the rows of a register of 16 bits
GRANULE_TOKENS = 128  # an expert's rows are counted per granule of this many tokens; a block is a multiple
_MAX_CHOICES = 8192  # of a block, whose codes and weights take 128 KiB of SMEM in two copies
# Cycles of the loop for one choice: scalar code, and for each register of the row.
# Source: bundles of the kernel on v6e, bfloat16: 6.4 a choice with two registers.
_CHOICE_CYCLES, REGISTER_CYCLES = 4.4, 1.0
COPY_CYCLES = 2.5  # and of the loop that only copies rows
BLOCK_SLOTS = 4  # blocks in VMEM: with two, a copy's latency delays every second block
CHUNK_BLOCKS = 8  # whose codes are in SMEM, so that their copy arrives in time after the blocks' own copies
_SPREAD_ROWS = 256  # of a block: copies of 1 MiB and more, so that their start does not count
_RUN_CYCLES = 20  # scalar code around the start of a copy, in the same listing


@dataclass(frozen=True, slots=True, kw_only=True)
class CombineSpec:
    """Sums of `top_k` rows of [d] for each token, from at most `rows` rows of experts."""

    tokens: int
    top_k: int
    experts: int
    d: int  # a multiple of 128
    dtype: str
    dtype_out: str

    @classmethod
    def of(cls, *, d: int, **sizes: Any) -> CombineSpec:
        """Return the spec for any d: the kernel takes whole tiles of columns."""
        return cls(d=padded(d, LANES), **sizes)

    @property
    def flops(self) -> int:
        return 2 * self.tokens * self.top_k * self.d

    @property
    def least_hbm_bytes(self) -> int:
        return self.tokens * self.d * (self.top_k * dtype_bytes(self.dtype) + dtype_bytes(self.dtype_out))


@dataclass(frozen=True, slots=True, kw_only=True)
class CombineSchedule:
    tokens: int  # of a block
    blocks: int
    columns: int  # of a slab
    slabs: int
    tiles: int  # of eight rows, in a slot of VMEM: a block's rows, the ends of runs, and a tile of zeros
    buffers: tuple[VmemBuffer, ...]

    @classmethod
    def of(cls, spec: CombineSpec, chip: Chip) -> CombineSchedule:
        """Return the fastest schedule by arithmetic."""
        fitting = [schedule for schedule in _schedules(spec) if total_bytes(schedule.buffers) <= buffer_bytes(chip)]
        assert fitting  # the smallest takes 2 MiB for each row of 128 tokens' choices that has 128 columns
        return min(fitting, key=lambda schedule: schedule.time_us(spec, chip))

    def packed_rows(self, spec: CombineSpec, is_interpreted: bool) -> PackedRows:
        registers = self.columns // LANES
        return PackedRows(
            slots=2, tiles=self.tiles, registers=registers, dtype=spec.dtype, is_interpreted=is_interpreted
        )

    def time_us(self, spec: CombineSpec, chip: Chip, used_rows: int | None = None) -> float:
        """Return the time: copies of a step's rows overlap with the sums of the step before.

        Choices without an expert have no row to copy. None: all have one.
        """
        machine, item = chip.machine, dtype_bytes(spec.dtype)
        choices = min(self.tokens, spec.tokens) * spec.top_k
        used = choices if used_rows is None else -(-used_rows * choices // (spec.tokens * spec.top_k))
        runs = min(spec.experts, used)
        # A run begins and ends within a tile, by three and a half rows each on average.
        bytes_in = (used + runs * (SUBLANES - 1)) * self.columns * item
        bytes_out = min(self.tokens, spec.tokens) * self.columns * dtype_bytes(spec.dtype_out)
        registers = -(-self.columns // (LANES * SUBLANES))
        start_cycles = runs * (_RUN_CYCLES + machine.dma_issue_cycles)
        cycles = choices * (_CHOICE_CYCLES + REGISTER_CYCLES * registers) + start_cycles
        copy_us = (bytes_in + bytes_out) / machine.hbm_bytes_per_s * 1e6
        code_us = cycles / machine.clock_hz * 1e6
        return self.blocks * self.slabs * max(copy_us, code_us) + min(copy_us, code_us)


def _schedules(spec: CombineSpec) -> Iterator[CombineSchedule]:
    tokens = GRANULE_TOKENS
    while True:
        for columns in legal_sides(spec.d, LANES):
            yield combine_schedule(spec, tokens, columns)
        tokens *= 2
        if tokens * spec.top_k > _MAX_CHOICES or tokens >= 2 * padded(spec.tokens, GRANULE_TOKENS):
            return


def combine_schedule(spec: CombineSpec, tokens: int, columns: int) -> CombineSchedule:
    """Return the schedule with blocks of `tokens`, whole granules, and slabs of `columns`, a divisor of d."""
    choices = tokens * spec.top_k
    # A run of n rows lies in tiles of at most n + 14 rows.
    tiles = -(-(choices + 2 * (SUBLANES - 1) * min(spec.experts, choices)) // SUBLANES) + 1
    return CombineSchedule(
        tokens=tokens,
        blocks=-(-spec.tokens // tokens),
        columns=columns,
        slabs=spec.d // columns,
        tiles=tiles,
        buffers=(
            VmemBuffer(name="rows", shape=(tiles * SUBLANES, columns), dtype=spec.dtype, copies=2),
            VmemBuffer(name="sums", shape=(SUMMED_TOKENS, columns), dtype="float32", copies=1),
            VmemBuffer(name="out", shape=(tokens, columns), dtype=spec.dtype_out, copies=2),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadSpec:
    """Copies of tokens' rows of [d] in another order: [rows, d] of [tokens, d]."""

    tokens: int
    rows: int
    d: int  # a multiple of 128
    dtype: str
    permutes: bool = False  # True if rows are the first tokens in another order: tokens after them are not read

    @classmethod
    def of(cls, tokens: int, rows: int, d: int, dtype: str, *, permutes: bool = False) -> SpreadSpec:
        """Return the spec for any sizes: the kernel takes whole tiles of rows and columns."""
        sizes = {"tokens": padded(tokens, SUBLANES), "rows": padded(rows, SUBLANES), "d": padded(d, LANES)}
        return cls(**sizes, dtype=dtype, permutes=permutes)

    @property
    def least_hbm_bytes(self) -> int:
        return (self.tokens + self.rows) * self.d * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadSchedule:
    rows: int  # of a block
    chunks: int  # of rows, CHUNK_BLOCKS blocks each
    columns: int  # of a slab
    slabs: int
    buffers: tuple[VmemBuffer, ...]

    @property
    def slots(self) -> int:
        """Slabs of tokens in VMEM."""
        return min(self.slabs, 2)

    @classmethod
    def of(cls, spec: SpreadSpec, chip: Chip) -> SpreadSchedule:
        """Return the fastest schedule by arithmetic; raise IllegalTilesError if no slab of all tokens fits VMEM."""
        tiles = Tiles(tile_m=spec.tokens, tile_k=spec.d, tile_n=LANES)
        config = KernelConfig(tiles=tiles, subtile_m=SUBLANES, subtile_n=LANES, pipeline="manual")
        smallest = spread_schedule(spec, LANES)
        require_none(config, vmem_violations(smallest.buffers, buffer_bytes(chip)))
        schedules = (spread_schedule(spec, columns) for columns in legal_sides(spec.d, LANES))
        fitting = [schedule for schedule in schedules if total_bytes(schedule.buffers) <= buffer_bytes(chip)]
        return min(fitting, key=lambda schedule: schedule.time_us(spec, chip))

    def time_us(self, spec: SpreadSpec, chip: Chip, used_rows: int | None = None) -> float:
        """Return the time: nothing hides the arrival of the first slab. Rows without an expert are not copied."""
        machine, item = chip.machine, dtype_bytes(spec.dtype)
        rows = spec.rows if used_rows is None else used_rows
        tokens = rows if spec.permutes else spec.tokens
        registers = -(-self.columns // (LANES * SUBLANES))
        cycles = self.slabs * rows * (COPY_CYCLES + REGISTER_CYCLES * registers)
        first_us = tokens * self.columns * item / machine.hbm_bytes_per_s * 1e6
        copy_us = (tokens + rows) * spec.d * item / machine.hbm_bytes_per_s * 1e6 - first_us
        return first_us + max(copy_us, cycles / machine.clock_hz * 1e6)


def spread_schedule(spec: SpreadSpec, columns: int) -> SpreadSchedule:
    """Return the schedule with slabs of `columns` columns, a divisor of d."""
    rows = min(_SPREAD_ROWS, padded(spec.rows, SUBLANES))
    slabs = spec.d // columns
    buffers = (
        VmemBuffer(name="tokens", shape=(spec.tokens, columns), dtype=spec.dtype, copies=min(slabs, 2)),
        VmemBuffer(name="rows", shape=(rows, columns), dtype=spec.dtype, copies=BLOCK_SLOTS),
    )
    return SpreadSchedule(
        rows=rows, chunks=-(-spec.rows // (CHUNK_BLOCKS * rows)), columns=columns, slabs=slabs, buffers=buffers
    )
