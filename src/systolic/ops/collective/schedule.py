"""The cutting of products across chips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from systolic.schedule import VmemBuffer
from systolic.schedule.legality import LANES, IllegalTilesError, Violation
from systolic.schedule.sizes import largest_divisor
from systolic.spec import dtype_bytes

_REGISTER_ROW_BYTES = 32  # of a column of a register: 8 rows of 32 bits, 16 of bfloat16
# A copy of this many columns still reaches HBM's rate, in pieces of 16 KiB, and their product with 256 rows 0.9 of the
# matrix unit's rate.
_MAX_FIRST_BLOCK = 512
WAYS = 2  # round the ring
PART_SLOTS = 2  # parts of the rows that are in VMEM
# A device sends the next part when its neighbors have forwarded some of this one, and so have multiplied the last part,
# whose place it takes. With fewer devices nothing is forwarded that late.
_MIN_DEVICES_FOR_PARTS = 5
MIN_BYTE_ROWS = 16  # of a piece in eight bits: it has half a register of rows, or whole registers
_BYTES = "int8"  # of rows and sums that travel in a dtype of eight bits
OUT_SLOTS = 2  # blocks of the result that are on their way to HBM


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProduct:
    """One device's share of a product across chips."""

    devices: int  # on the ring
    rows: int  # of x on this device, or of a result that is scattered
    columns: int  # of the weights that this device has
    dtype: str  # of x, and of the weights unless they are quantized
    weights: int = 1  # matrices of weights
    outs: int = 1  # results, each of all columns
    transpose_rhs: bool = False  # weights are stored as [columns, k]

    @property
    def cores(self) -> int:
        """Cores of the device that compute it."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSchedule(DeviceProduct):
    """The schedule of all-gather × matmul, or of matmul × reduce-scatter, on one device, or on each of its cores.

    A chunk is the rows that one device has before all-gather, or after reduce-scatter. A step sends one piece of a
    chunk in each direction, and a slot of VMEM holds both. Before all-gather two weights multiply the same rows, each
    with a sum of its own; for reduce-scatter the products of two are added, by the two halves of k.

    Attributes:
      pieces: pieces of a chunk, or of a part of it. It is even, because each direction brings half of the opposite
        device's chunk.
      slots_at_once: slots that are multiplied at once. In the first pass of reduce-scatter they may be more; if others
        follow, they are multiplied one by one.
      block: columns that are multiplied at once.
      row_cores: cores that share the rows of every chunk; `rows` counts one core's.
      column_cores: cores that share the columns; `columns` counts one core's. At most one of the two is above one.
      parts: of every chunk. All-gather × matmul sends and multiplies them one after another, and has two in VMEM.
      wire_dtype: of rows or sums while they travel, each with its scale in the lanes after its values; None: their own.
      weight_dtype: of quantized weights; None: dtype.

    Raises:
      IllegalTilesError: the pieces are odd, a size is not cut evenly, or there are too few devices for parts.
    """

    pieces: int
    slots_at_once: int
    block: int
    row_cores: int = 1
    column_cores: int = 1
    parts: int = 1
    wire_dtype: str | None = None
    weight_dtype: str | None = None

    def __post_init__(self) -> None:
        pieces = self.parts * self.pieces
        multiple = pieces * row_multiple(self.wire_dtype or self.dtype)
        if self.wire_dtype is not None and self.rows == pieces * MIN_BYTE_ROWS:
            multiple = self.rows
        violations: list[Violation] = []
        if self.pieces < 2 or self.pieces % 2:
            limit = "each direction brings half of the opposite device's chunk"
            violations.append(Violation(rule="pieces", value=f"pieces={self.pieces}", limit=limit, fix="use 2 or 4"))
        elif self.slots_at_once < 1 or self.slots % self.slots_at_once:
            value = f"slots_at_once={self.slots_at_once} of {self.slots} slots"
            limit = "all products have equally many rows"
            violations.append(Violation(rule="slots", value=value, limit=limit, fix="use a divisor"))
        if self.parts > 1 and self.devices < _MIN_DEVICES_FOR_PARTS:
            value, limit = f"parts={self.parts} on {self.devices} devices", f"{_MIN_DEVICES_FOR_PARTS} devices or more"
            violations.append(Violation(rule="parts", value=value, limit=limit, fix="use one part"))
        if self.rows % multiple:
            fix = f"pad the rows to a multiple of {multiple}"
            violations.append(
                Violation(rule="rows", value=f"rows={self.rows}", limit="pieces are whole registers", fix=fix)
            )
        if self.block < 1 or self.block % LANES or self.columns % self.block:
            value = f"block={self.block} of {self.columns} columns"
            limit = "blocks are whole registers and cut the columns evenly"
            fix = f"use a multiple of {LANES} that divides the columns"
            violations.append(Violation(rule="block", value=value, limit=limit, fix=fix))
        if violations:
            raise IllegalTilesError(str(self), violations)

    @property
    def steps(self) -> int:
        """Pieces of a part that are sent in each direction."""
        return (self.devices - 1) * self.pieces // 2

    @property
    def slots(self) -> int:
        """Pairs of pieces of a part in VMEM: the device's own come first."""
        return self.devices * self.pieces // 2

    @property
    def own_slots(self) -> int:
        return self.pieces // 2

    @property
    def piece_rows(self) -> int:
        return self.rows // (self.parts * self.pieces)

    @property
    def part_slots(self) -> int:
        """Parts in VMEM."""
        return min(self.parts, PART_SLOTS)

    @property
    def groups(self) -> int:
        """Products of a part over all blocks of columns."""
        return self.slots // self.slots_at_once

    @property
    def blocks(self) -> int:
        return self.columns // self.block

    @property
    def cores(self) -> int:
        return self.row_cores * self.column_cores

    @property
    def chunk_rows(self) -> int:
        return self.row_cores * self.rows

    @property
    def out_columns(self) -> int:
        return self.column_cores * self.columns

    @property
    def first_block(self) -> int:
        """Columns that the first pass of all-gather × matmul multiplies at once: it waits for these weights."""
        return largest_divisor(self.block, LANES, _MAX_FIRST_BLOCK)

    @property
    def pass_rows(self) -> int:
        """Rows that are multiplied at once."""
        return self.slots_at_once * WAYS * self.piece_rows

    @property
    def multiplies_bytes(self) -> bool:
        """True if all-gather × matmul multiplies rows in the dtype in which they travel."""
        return multiplies_bytes(self.wire_dtype, self.dtype, self.weight_dtype)

    @property
    def scatter_semaphores(self) -> int:
        """Semaphores of matmul × reduce-scatter."""
        return self.slots + self.blocks + WAYS + WAYS * self.steps * self.blocks + 1

    @property
    def fresh_slots(self) -> int:
        """Steps of reduce-scatter that send sums which begin on this device."""
        return min(self.pieces, self.steps)

    @property
    def first_slots(self) -> int:
        """Slots of the first pass of reduce-scatter."""
        return max(self.fresh_slots, self.slots_at_once)

    @property
    def later_passes(self) -> int:
        """Passes of reduce-scatter after the first."""
        return (self.slots - self.first_slots) // self.slots_at_once

    @property
    def scatters_evenly(self) -> bool:
        """True if the later passes of reduce-scatter multiply all other slots."""
        return (self.slots - self.first_slots) % self.slots_at_once == 0

    @property
    def adds_at_once(self) -> bool:
        """True if a device adds a block to the sums that have arrived before it multiplies the next block.

        If a pass multiplies rows of several steps, a step may need sums that another device sends in the same pass.
        """
        return self.slots_at_once == 1

    def share_of(self, core: Any) -> tuple[Any, Any]:
        """Return a core's number among those that share rows, and among those that share columns."""
        return (core, 0) if self.row_cores > 1 else (0, core)

    def gather_buffers(self, k: int, dtype_out: str) -> tuple[VmemBuffer, ...]:
        """Return the VMEM of all-gather × matmul, in the order of the kernel's scratch."""
        product = (self.outs, self.slots_at_once * WAYS, self.piece_rows, self.block)
        made = ()
        if self.wire_dtype is not None:
            scales = _buffer("scales", (self.pass_rows, LANES), "float32")
            made = (scales,) if self.multiplies_bytes else (_buffer("made", (self.pass_rows, k), self.dtype), scales)
        return (
            *made,
            *self._operand_buffers(k, self.weights * self.blocks, self.part_slots * self.slots, self.wire_dtype),
            _buffer("out", product, dtype_out, copies=OUT_SLOTS),
        )

    def scatter_buffers(self, k: int, dtype_out: str) -> tuple[VmemBuffer, ...]:
        """Return the VMEM of matmul × reduce-scatter, in the order of the kernel's scratch. `k` counts all weights.

        `sums` has a slot for each step, from which that step sends, and then slots for the last pieces that arrive.
        """
        kept_blocks = 1 if self.adds_at_once else self.blocks
        products = (kept_blocks, self.first_slots, WAYS, self.piece_rows, self.block)
        places, sums_dtype = (self.steps + self.pieces, WAYS, self.blocks, self.piece_rows), dtype_out
        width, finished = self.block, ()
        if self.wire_dtype is not None:
            width, sums_dtype = self.block + LANES, _BYTES
            finished = (_buffer("out", (self.pieces, self.blocks, self.piece_rows, self.block), dtype_out),)
        return (
            *finished,
            *self._operand_buffers(k, self.blocks, self.slots, None),
            _buffer("sums", (*places, width), sums_dtype),
            _buffer("products", products, "float32"),
        )

    def _operand_buffers(self, k: int, blocks: int, slots: int, wire_dtype: str | None) -> tuple[VmemBuffer, ...]:
        block = (self.block, k) if self.transpose_rhs else (k, self.block)
        width, dtype = (k, self.dtype) if wire_dtype is None else (k + LANES, _BYTES)
        return (
            _buffer("x", (slots, WAYS, self.piece_rows, width), dtype),
            _buffer("w", (blocks, *block), self.weight_dtype or self.dtype),
        )

    def __str__(self) -> str:
        parts = f"{self.parts} parts, " if self.parts > 1 else ""
        cores = f", on each of {self.cores} cores" if self.cores > 1 else ""
        return f"{parts}{self.pieces} pieces, {self.slots_at_once} slots at once, blocks of {self.block} columns{cores}"


def multiplies_bytes(wire_dtype: str | None, dtype: str, weight_dtype: str | None) -> bool:
    """True if rows are multiplied in the dtype in which they travel, without a conversion to dtype.

    A matrix unit takes two operands of it, or rows of float8 and weights of bfloat16.
    """
    if wire_dtype is None or weight_dtype is not None:
        return wire_dtype is not None and wire_dtype == weight_dtype
    return wire_dtype != "int8" and dtype == "bfloat16"


def row_multiple(dtype: str) -> int:
    """Return the rows of a register."""
    return _REGISTER_ROW_BYTES // dtype_bytes(dtype)


def _buffer(name: str, shape: tuple[int, ...], dtype: str, copies: int = 1) -> VmemBuffer:
    ref_shape = (copies, *shape) if copies > 1 else shape
    return VmemBuffer(name=name, shape=shape, dtype=dtype, copies=copies, ref_shape=ref_shape)
