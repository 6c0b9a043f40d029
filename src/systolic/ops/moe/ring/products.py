"""The cutting of the kernel that multiplies tokens by their experts' matrices while others travel round a ring.

All weights are read once, whatever arrives first: tokens travel in slabs of columns, and sums over the slabs stay in
VMEM. If more rows arrive at a device than there is room for, they are summed in panels, and weights are read once
for each panel.
"""

from __future__ import annotations

from dataclasses import dataclass

from systolic.chips import Chip
from systolic.cost.roofline import mxu_rows_per_cycle
from systolic.kernels.packed_rows import SUBLANES
from systolic.ops.moe.ring.matrices import MatrixForm
from systolic.ops.moe.ring.schedule import ScatterSchedule
from systolic.ops.moe.schedule import COPY_CYCLES, REGISTER_CYCLES, CombineSpec
from systolic.ops.moe.wire import ring_us
from systolic.schedule.buffers import VmemBuffer, total_bytes
from systolic.schedule.legality import LANES, IllegalTilesError, legal_sides
from systolic.schedule.sizes import padded
from systolic.schedule.vmem import buffer_bytes
from systolic.spec import dtype_bytes

ROW_TILE = 16  # rows of a register of 16 bits; rows of an expert begin at a whole one
STAGES = 2  # blocks of the result on their way to HBM
SUM_STAGES = 8  # sums of pieces on their way: two pairs to neighbors, and this device's own
_SLAB_COLUMNS = 1024  # at most: the columns of a row that one register has
_WEIGHT_SLOTS = 3
_SMALL_ROWS = 64
_MAX_ROWS = 512  # of a block
_COLUMNS = 512  # of a block at most
_MAX_CHOICES = 2**17  # whose codes take half of SMEM
# Cycles in which 1,024 products of a row are added to sums, in the code of a product; of a step without its products;
# in which a piece is sent; and in which a register of its sums is rounded.
# Source: simulated on v6e, 256 rows in products of 320 × 1,536 × 512, and pieces of 256 × 512.
_SUM_CYCLES, _STEP_CYCLES, _SEND_CYCLES, _ROUND_CYCLES = 2.5, 230, 200, 2
# Rows of a block and of a device over their means: about two and a half deviations of 256 rows drawn at random.
_BLOCK_SHARE, _ROOM_SHARE = 1.15, 1.08


@dataclass(frozen=True, slots=True, kw_only=True)
class RingProductsSpec:
    """Activated products of the rows of tokens that all devices send to this one's experts."""

    devices: int
    tokens: int  # of all devices
    choices: int  # of all tokens
    experts: int  # of this device
    d: int
    f: int
    products: int  # 2: gate and up
    dtype: str  # of rows
    matrices: MatrixForm  # of gate and up
    down: MatrixForm

    @property
    def hops(self) -> int:
        """Hops to the opposite device."""
        return self.devices // 2

    @property
    def early_hops(self) -> int:
        """Hops of the first slab before the kernel, while choices are sorted: the others while weights arrive.

        Source: simulated on v6e 2x4, 4,096 tokens: choices are sorted in the time of two hops of four, and the weights
        for which there is room arrive in the time of the other two.
        """
        return max(self.hops // 2, 1)

    @property
    def mean_rows(self) -> int:
        return -(-self.choices // self.devices)

    @property
    def rows(self) -> int:
        """Room for the rows of all choices, and for those between two experts."""
        return padded(self.choices + (ROW_TILE - 1) * self.experts, ROW_TILE)

    @property
    def flops(self) -> int:
        return 2 * self.mean_rows * self.d * self.f * self.products

    @property
    def least_hbm_bytes(self) -> int:
        weights_bytes = self.experts * self.products * self.matrices.bytes(self.d, self.f)
        return weights_bytes + self.mean_rows * self.f * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingProductsSchedule:
    columns: int  # of a slab; d consists of whole slabs
    slabs: int
    block_columns: int  # of f
    rows: tuple[int, int]  # of a large and a small block
    panel: int  # rows whose sums are in VMEM
    weight_slots: int
    buffers: tuple[VmemBuffer, ...]

    @classmethod
    def of(cls, spec: RingProductsSpec, chip: Chip) -> RingProductsSchedule | None:
        """Return the schedule, or None if sizes are no whole tiles or the rows do not fit in VMEM."""
        here, rest = divmod(spec.tokens, spec.devices)
        if spec.devices % 2 or rest or here % (2 * ROW_TILE) or spec.d % LANES or spec.f % LANES:
            return None
        if spec.dtype != "bfloat16" or not 0 < spec.choices <= _MAX_CHOICES:
            return None
        columns = max(side for side in legal_sides(spec.d, LANES) if side <= _SLAB_COLUMNS)
        if not spec.matrices.is_multiplied(spec.dtype, columns):
            return None
        block_columns = max(side for side in legal_sides(spec.f, LANES) if side <= _COLUMNS)
        scale_rows = spec.products * spec.matrices.scale_rows(columns)
        mean = -(-spec.choices // (spec.devices * spec.experts))
        large = min(padded(int(mean * _BLOCK_SHARE), _SMALL_ROWS), _MAX_ROWS)

        def schedule(panel: int) -> RingProductsSchedule:
            sums = (spec.products, panel + large, spec.f)
            weights = (spec.products, columns, spec.f)
            buffers = (
                VmemBuffer(name="tokens", shape=(spec.tokens, spec.d), dtype=spec.dtype, copies=1),
                VmemBuffer(name="rows", shape=(large, columns), dtype=spec.dtype, copies=1),
                VmemBuffer(name="weights", shape=weights, dtype=spec.matrices.dtype, copies=_WEIGHT_SLOTS),
                *spec.matrices.scale_buffers(scale_rows, spec.f, spec.f, _WEIGHT_SLOTS),
                VmemBuffer(name="sums", shape=sums, dtype="float32", copies=1),
                VmemBuffer(name="stages", shape=(large, spec.f), dtype=spec.dtype, copies=STAGES),
            )
            return cls(
                columns=columns,
                slabs=spec.d // columns,
                block_columns=block_columns,
                rows=(large, _SMALL_ROWS),
                panel=panel,
                weight_slots=_WEIGHT_SLOTS,
                buffers=buffers,
            )

        fixed_bytes = total_bytes(schedule(0).buffers)
        row_bytes = spec.products * spec.f * dtype_bytes("float32")
        fitting = (buffer_bytes(chip) - fixed_bytes) // row_bytes // ROW_TILE * ROW_TILE
        # With less room than routers usually need, weights would be read twice.
        least = int(spec.mean_rows * _ROOM_SHARE) + ROW_TILE * spec.experts
        return schedule(min(fitting, spec.rows)) if fitting >= min(least, spec.rows) else None

    def time_us(self, spec: RingProductsSpec, chip: Chip) -> float:
        """Return the time from the arrival of the first slab on: weights arrive while rows are multiplied."""
        cycles = spec.products * _product_cycles(spec, spec.matrices, self.rows, spec.d, spec.f, chip)
        cycles += self.slabs * spec.mean_rows * _row_cycles(self.columns)
        slab_bytes = spec.tokens * self.columns * dtype_bytes(spec.dtype)
        hbm_us = (spec.least_hbm_bytes + slab_bytes) / chip.machine.hbm_bytes_per_s * 1e6
        return max(hbm_us, cycles / chip.machine.clock_hz * 1e6)


def small_rows(rows: tuple[int, int]) -> int:
    """Return the rows of an expert up to which small blocks multiply them: one, or two that are less than a large one.

    Every block takes all weights into the matrix units, and converts codes.
    """
    large, small = rows
    return 2 * small if large > 2 * small else small


def _row_cycles(columns: int) -> float:
    return COPY_CYCLES + REGISTER_CYCLES * -(-columns // (LANES * SUBLANES))


def _product_cycles(
    spec: RingProductsSpec, matrices: MatrixForm, rows: tuple[int, int], k: int, n: int, chip: Chip
) -> float:
    """Return the cycles in which matrix units take the weights of a product, and the blocks of rows for each."""
    machine, (large, small) = chip.machine, rows
    mean = -(-spec.mean_rows // spec.experts)
    count = max(-(-(mean - small_rows(rows)) // large), 0)
    blocks = [large] * count + [small] * max(-(-(mean - count * large) // small), 0)
    deep = min(machine.mxu_rows, matrices.block or k)  # sums of blocks of k have scales of their own
    tiles = -(-k // deep) * -(-n // machine.mxu_columns) / machine.mxu_count
    push_bytes = deep * machine.mxu_columns * dtype_bytes(matrices.pushed(spec.dtype))
    pushes = push_bytes / 4096 * machine.weight_push_cycles
    rows_per_cycle = mxu_rows_per_cycle(spec.dtype, chip)
    return spec.experts * tiles * sum(size / rows_per_cycle + pushes for size in blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterProductsSchedule:
    """The cutting of the kernel that adds up experts' results and sends the sums while the next are multiplied."""

    tokens: int  # of all devices
    mean_rows: int
    dtype: str  # of rows
    down: MatrixForm
    columns: int  # of a tile
    tiles: int
    block_columns: int
    rows: tuple[int, int]  # of a large and a small block
    slots: int  # for weights
    places: int  # for the first rows of a step: one for each expert, or one for each slot
    keeps_rows: bool  # from the first tile on
    scatter: ScatterSchedule  # the pieces of tokens, and their order
    buffers: tuple[VmemBuffer, ...]

    @property
    def registers(self) -> int:
        """Registers of a row of a tile."""
        return self.columns // LANES

    @classmethod
    def of(
        cls, spec: RingProductsSpec, top_k: int, rows: tuple[int, int], chip: Chip
    ) -> ScatterProductsSchedule | None:
        """Return the schedule for the rows of another kernel, or None if no sums are sent in pieces or do not fit."""
        if spec.choices > _MAX_CHOICES // 2 or not spec.down.is_multiplied(spec.dtype, spec.f):
            return None
        sums = CombineSpec.of(
            tokens=spec.tokens,
            top_k=top_k,
            experts=spec.experts,
            d=spec.d,
            dtype=spec.dtype,
            dtype_out=spec.dtype,
        )
        widest = max(side for side in legal_sides(spec.d, LANES) if side <= _SLAB_COLUMNS)
        widths = [widest] if widest % (2 * LANES) else [widest, widest // 2]
        schedules = (cls._of_tiles(spec, sums, rows, chip, columns) for columns in widths)
        links_us = ring_us(sums, spec.devices, chip)
        fitting = [schedule for schedule in schedules if schedule is not None]
        return min(fitting, key=lambda schedule: schedule.time_us(spec, chip, links_us), default=None)

    @classmethod
    def _of_tiles(
        cls, spec: RingProductsSpec, sums: CombineSpec, rows: tuple[int, int], chip: Chip, columns: int
    ) -> ScatterProductsSchedule | None:
        tiles = spec.d // columns
        try:
            scatter = ScatterSchedule.of(sums, spec.devices, chip, tiles)
        except IllegalTilesError:
            return None
        piece = (scatter.combine.tokens, columns)
        others = (
            VmemBuffer(name="weights", shape=(spec.f, columns), dtype=spec.down.dtype, copies=_WEIGHT_SLOTS),
            *spec.down.scale_buffers(spec.down.scale_rows(spec.f), columns, spec.d, _WEIGHT_SLOTS),
            VmemBuffer(name="products", shape=(rows[0], columns), dtype="float32", copies=2),
            VmemBuffer(name="sums", shape=(spec.tokens + SUBLANES, columns), dtype="float32", copies=2),
            VmemBuffer(name="arrivals", shape=piece, dtype=spec.dtype, copies=tiles * scatter.arrivals + 1),
            VmemBuffer(name="stages", shape=piece, dtype=spec.dtype, copies=SUM_STAGES),
        )
        room = buffer_bytes(chip) - total_bytes(others)
        for places in (spec.experts, _WEIGHT_SLOTS):
            rows_buffer = VmemBuffer(name="rows", shape=(rows[0], spec.f), dtype=spec.dtype, copies=places + 1)
            if total_bytes([rows_buffer]) <= room:
                break
        else:
            return None
        return cls(
            tokens=spec.tokens,
            mean_rows=spec.mean_rows,
            dtype=spec.dtype,
            down=spec.down,
            columns=columns,
            tiles=tiles,
            block_columns=max(side for side in legal_sides(columns, LANES) if side <= _COLUMNS),
            rows=rows,
            slots=_WEIGHT_SLOTS,
            places=places,
            keeps_rows=places == spec.experts,
            scatter=scatter,
            buffers=(rows_buffer, *others),
        )

    def time_us(self, spec: RingProductsSpec, chip: Chip, links_us: float) -> float:
        """Return the time; links take `links_us`, and are idle while the first tile is made."""
        machine, item = chip.machine, dtype_bytes(spec.dtype)
        cycles = _product_cycles(spec, spec.down, self.rows, spec.f, spec.d, chip)
        cycles += spec.mean_rows * spec.d / _SLAB_COLUMNS * _SUM_CYCLES
        piece_registers = self.scatter.combine.tokens // SUBLANES * self.registers
        send_cycles = _SEND_CYCLES + piece_registers * _ROUND_CYCLES
        cycles += self.tiles * (spec.experts * _STEP_CYCLES + spec.devices * self.scatter.pieces * send_cycles)
        row_reads = 1 if self.keeps_rows else self.tiles
        read_bytes = spec.experts * spec.down.bytes(spec.f, spec.d) + row_reads * spec.mean_rows * spec.f * item
        products_us = max(cycles / machine.clock_hz, read_bytes / machine.hbm_bytes_per_s) * 1e6
        return products_us / self.tiles + max(
            products_us * (self.tiles - 1) / self.tiles + links_us / self.tiles, links_us
        )
