"""Tiles of the loss kernels, their VMEM buffers, and the rules that both obey."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from systolic.chips import Chip
from systolic.cost.roofline import dtype_on, mxu_rows_per_cycle
from systolic.ops.cross_entropy.spec import CrossEntropySpec
from systolic.schedule import LANES, KernelConfig, Violation, VmemBuffer, total_bytes
from systolic.schedule.legality import above_matrix, misaligned, require_none, vmem_violations
from systolic.schedule.sizes import padded
from systolic.schedule.vmem import buffer_bytes
from systolic.spec import dtype_bytes

ROWS = 16  # of a register of bfloat16: tiles of rows are multiples of it
ROW_COLUMNS = 8  # numbers of a row, in HBM: its label, its statistics, their cotangents
DW_SLOTS = 3  # one is read, one is computed with, one is written
CONVERTED_SLOTS = DW_SLOTS - 1  # of sums in w's dtype, which are not read again
# Cycles of the matrix units in one stretch of straight code. A bundle takes at least a cycle, so this bounds the code;
# stretches of half the length waste 3 % more on filling and draining the units (simulated on v6e).
MAX_STRETCH_CYCLES = 8192

# VMEM that the compiler takes for values of the gradients' kernel that do not fit its registers (seen: 4.6 MiB).
_SPILL_BYTES = 5 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSchedule:
    """A configuration's grid: tiles of rows, and for each of them all tiles of the vocabulary.

    Attributes:
      rows: padded to whole tiles, for gradients as many on each core.
      depth: k in VMEM, for gradients in parts of equal size, which are `tile_k`.
      stored_depth: k of w and its gradient in HBM, in rows of whole registers: XLA copies an operand that is padded.
      columns: n, in whole registers.
    """

    spec: CrossEntropySpec
    config: KernelConfig
    rows: int
    depth: int
    stored_depth: int
    columns: int
    cores: int  # each sums its own gradient of w
    adds_in_units: bool  # matrix units add products of parts of a sum
    # With kept logits, two slots of errors take turns in code that is there twice; else errors move to the other slot.
    alternates: bool
    streams_x: bool = False  # for gradients, x passes through VMEM for each tile of the vocabulary

    @classmethod
    def of(cls, spec: CrossEntropySpec, config: KernelConfig, chip: Chip) -> LossSchedule:
        """Return the schedule of a configuration; raise IllegalTilesError if it breaks rules."""
        tile_m, tile_k, tile_n = config.tiles.tile_m, config.tiles.tile_k, config.tiles.tile_n
        cycles = spec.products * stretch_cycles(spec, tile_m, tile_n, tile_k, chip)
        # A single tile of rows uses one core; in the forward kernel cores share no output.
        cores = chip.cores_per_device if spec.kind == "gradients" and spec.m > tile_m else 1
        stored_depth = padded(spec.k, ROWS)
        depth = stored_depth if spec.kind == "forward" else padded(spec.k, tile_k)
        schedule = cls(
            spec=spec,
            config=config,
            cores=cores,
            rows=padded(spec.m, tile_m * cores),
            depth=depth,
            stored_depth=stored_depth,
            columns=padded(spec.n, LANES),
            alternates=cycles <= MAX_STRETCH_CYCLES,
            adds_in_units=chip.machine.weight_push_cycles < 1,
        )
        usable_bytes = buffer_bytes(chip)
        if spec.kind == "gradients":
            usable_bytes = max(usable_bytes, chip.usable_vmem_bytes_per_core - _SPILL_BYTES)
            if total_bytes(schedule.buffers) > usable_bytes:
                schedule = replace(schedule, streams_x=schedule.parts > 1)
        require_none(config, [*schedule._violations(), *vmem_violations(schedule.buffers, usable_bytes)])
        return schedule

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles of rows and of the vocabulary."""
        return self.rows // self.config.tiles.tile_m, -(-self.spec.n // self.config.tiles.tile_n)

    @property
    def core_grid(self) -> tuple[int, int, int]:
        """Cores, the tiles of rows of each, and the tiles of the vocabulary."""
        return self.cores, self.grid[0] // self.cores, self.grid[1]

    @property
    def parts(self) -> int:
        """Parts of the features in the gradients' kernel."""
        return self.depth // self.config.tiles.tile_k

    @property
    def lag(self) -> int:
        """Tiles of the vocabulary between the newest tile of a gradients' step and the tile whose gradients it adds."""
        return 1 if self.spec.keep_logits else 2

    @property
    def last_features(self) -> int:
        """Features of the last part in HBM."""
        return self.stored_depth - (self.parts - 1) * self.config.tiles.tile_k

    @property
    def last_columns(self) -> int:
        """Columns of the last tile of the vocabulary, in whole registers."""
        return self.columns - (self.grid[1] - 1) * self.config.tiles.tile_n

    @property
    def sums_shape(self) -> tuple[int, int]:
        """Rows and columns of w's gradient in float32, between tiles of rows; a register if there is only one."""
        return (self.cores * self.stored_depth, self.columns) if self.core_grid[1] > 1 else (8, LANES)

    @property
    def dw_dtype(self) -> str:
        """The dtype of w's gradient from the kernel: float32 if gradients of several cores must still be summed."""
        return self.spec.dtype if self.cores == 1 else "float32"

    @property
    def converts_dw(self) -> bool:
        """True if the last sums become another dtype in VMEM of their own, from which they are written."""
        return self.dw_dtype != "float32"

    @property
    def has_sums(self) -> bool:
        """True if VMEM has sums of w's gradient in float32: they are read again, or are the gradient."""
        return self.core_grid[1] > 1 or not self.converts_dw

    @property
    def hbm_bytes(self) -> int:
        """Bytes that the kernel reads and writes."""
        item, (grid_m, _) = dtype_bytes(self.spec.dtype), self.grid
        x, w = self.rows * self.depth, self.stored_depth * self.columns
        forward = x * item + grid_m * w * item + 4 * LANES * 2 * self.rows + self.spec.logits_bytes
        if self.spec.kind == "forward":
            return forward
        if not self.spec.keep_logits:  # for the logits, and again for the products of the step after
            forward += grid_m * w * item
        sums = 8 * w * (grid_m - self.cores)
        if self.streams_x:
            forward += (self.grid[1] - 1) * x * item
        return forward + 4 * x + sums + w * self.cores * dtype_bytes(self.dw_dtype)

    @property
    def buffers(self) -> tuple[VmemBuffer, ...]:
        spec, tiles, config = self.spec, self.config.tiles, self.config
        tile_m, part = tiles.tile_m, (tiles.tile_k, tiles.tile_n)
        kept_logits = VmemBuffer(name="kept", shape=(tile_m, tiles.tile_n), dtype=spec.dtype, copies=2)
        if spec.kind == "forward":
            x = VmemBuffer(name="x", shape=(tile_m, self.depth), dtype=spec.dtype, copies=2)
            w = VmemBuffer(name="w", shape=(self.depth, tiles.tile_n), dtype=spec.dtype, copies=2)
            rows = VmemBuffer(name="rows", shape=(tile_m, LANES), dtype="float32", copies=4)
            # One is the kernel's; the others are sums that the compiler keeps on the way (seen: 1.5 to 2.1).
            logits = VmemBuffer(name="logits", shape=(config.subtile_m, config.subtile_n), dtype="float32", copies=3)
            statistics = VmemBuffer(name="statistics", shape=(tile_m, LANES), dtype="float32", copies=5)
            return rows, x, w, logits, statistics, *((kept_logits,) if spec.keep_logits else ())
        rows = VmemBuffer(name="rows", shape=(tile_m, LANES), dtype="float32", copies=5 + spec.total)
        x = VmemBuffer(name="x", shape=(tile_m, self.depth), dtype=spec.dtype, copies=1)
        if self.streams_x:
            x = replace(x, shape=(tile_m, tiles.tile_k), copies=2)
        dx = VmemBuffer(name="dx", shape=(tile_m, self.depth), dtype="float32", copies=1)
        w = VmemBuffer(name="w", shape=part, dtype=spec.dtype, copies=2 if spec.keep_logits else 4)
        logits = VmemBuffer(name="logits", shape=(tile_m, tiles.tile_n), dtype="float32", copies=2)
        errors = VmemBuffer(name="errors", shape=(tile_m, tiles.tile_n), dtype=spec.dtype, copies=2)
        sums = VmemBuffer(name="sums", shape=part, dtype="float32", copies=DW_SLOTS)
        dw = VmemBuffer(name="dw", shape=part, dtype=self.dw_dtype, copies=CONVERTED_SLOTS)
        fixed = rows, x, dx, w, kept_logits if spec.keep_logits else logits, errors
        return *fixed, *((sums,) if self.has_sums else ()), *((dw,) if self.converts_dw else ())

    def _violations(self) -> Iterator[Violation]:
        tiles = self.config.tiles
        if tiles.tile_m % ROWS:
            yield misaligned("m", tiles.tile_m, ROWS, "blocks", padded(tiles.tile_m, ROWS))
        if tiles.tile_m >= self.spec.m + ROWS:
            yield above_matrix("m", tiles.tile_m, padded(self.spec.m, ROWS), "rows that are not there")
        if self.spec.kind == "gradients":
            yield from self._gradient_violations()
        elif tiles.tile_k != self.spec.k:
            yield Violation(
                rule="tile-depth",
                value=f"tile_k={tiles.tile_k}",
                limit="a step computes whole logits",
                fix=f"use tile_k={self.spec.k}",
            )
        for name, size in (("tile_n", tiles.tile_n), ("subtile_n", self.config.subtile_n)):
            if size % LANES:
                yield Violation(
                    rule="tile-alignment",
                    value=f"{name}={size} is not a multiple of {LANES}",
                    limit="columns are computed by registers",
                    fix=f"use {name}={padded(size, LANES)}",
                )
        if tiles.tile_n >= self.spec.n + LANES:
            yield above_matrix("n", tiles.tile_n, self.columns, "columns that are not there")
        if self.config.subtile_m % ROWS:
            yield Violation(
                rule="tile-alignment",
                value=f"subtile_m={self.config.subtile_m} is not a multiple of {ROWS}",
                limit="rows are computed by registers",
                fix=f"use subtile_m={padded(self.config.subtile_m, ROWS)}",
            )

    def _gradient_violations(self) -> Iterator[Violation]:
        tiles = self.config.tiles
        if tiles.tile_k % LANES:
            yield misaligned("k", tiles.tile_k, LANES, "parts", padded(tiles.tile_k, LANES))
        if tiles.tile_k >= self.spec.k + LANES:
            yield above_matrix("k", tiles.tile_k, padded(self.spec.k, LANES), "features that are not there")
        if self.config.subtiles > 1:
            yield Violation(
                rule="one-stretch",
                value=f"{self.config.subtiles} subtiles",
                limit="a step of the gradients is one stretch of code",
                fix=f"use subtile_m={tiles.tile_m}, subtile_n={tiles.tile_n}, and a smaller tile_k for less code",
            )
        _, grid_m, grid_n = self.core_grid
        if grid_m > 1 and grid_n * self.parts < DW_SLOTS:
            yield Violation(
                rule="dw-in-order",
                value=f"{grid_n} tiles of the vocabulary of {self.parts} parts for {grid_m} tiles of rows",
                limit=f"sums of w's gradient are read again after {DW_SLOTS - 1} further parts",
                fix="use a smaller tile_n",
            )


def stretch_cycles(spec: CrossEntropySpec, rows: int, columns: int, depth: int, chip: Chip) -> float:
    """Return the matrix units' time for one stretch of straight code."""
    machine = chip.machine
    rate = machine.mxu_count * machine.mxu_rows * machine.mxu_columns * mxu_rows_per_cycle(dtype_on(spec, chip), chip)
    # 128 columns fill half of a unit of 256, as results of the logits and as the depth of x's gradient.
    return spec.passes * rows * padded(columns, machine.mxu_columns) * depth / rate
