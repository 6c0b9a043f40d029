"""The cutting of block-sparse products, and the buffers that fit into VMEM.

A *line* is a row of blocks of the sparse matrix, or a column of blocks where the right operand is sparse. A *chunk* of
the list, some lines at a time, has its blocks in VMEM while *panels* of the dense operand pass one after another: so
blocks are read once, and the dense operand once for each chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.ops.sparse.call_lists import INDEX_BYTES, index_words
from systolic.ops.sparse.spec import SparseSpec
from systolic.schedule.buffers import VmemBuffer, total_bytes
from systolic.schedule.config import KernelConfig
from systolic.schedule.legality import LANES, Violation, indivisible, misaligned, require_none, vmem_violations
from systolic.schedule.sizes import largest_divisor, padded
from systolic.schedule.vmem import buffer_bytes
from systolic.spec import dtype_bytes

_OUT_SLOTS = 4
_MAX_FETCHED = 8  # blocks that one copy brings, because starting a copy is expensive next to a small block's product
_FETCHED_BYTES = 2**19
_MAX_UNDER_WAY = 256  # of the 512 words for semaphores that a refusal of v6e's compiler names
_MAX_PARTS = 8  # parts in which a panel arrives, so that blocks need not wait for all of it
_ROW_SLOTS = 3
_STAGES = 4
_ZERO_BYTES = 2**20
# Bundles of all stretches of straight code: a kernel has to be less than 14,000, with its scalar code.
MAX_BUNDLES = 11_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductSchedule:
    """The schedule of `kernels.sparse.product` for a configuration of dsd or dds."""

    joined: int  # blocks of a line that one stretch of straight code multiplies, at most
    tile: int  # columns of rhs in VMEM, of dds rows of lhs, with all of k
    grid: int  # number of such panels
    subtile: int  # columns, or rows, that one stretch multiplies
    parts: int  # parts in which a panel arrives
    slots: int  # blocks of the sparse matrix in VMEM
    fetched: int  # blocks that one copy brings
    out_slots: int  # blocks of the result
    buffers: tuple[VmemBuffer, ...]  # all buffers in VMEM

    @property
    def capacity(self) -> int:
        """The most blocks of a chunk: copies need not begin with its first one."""
        return self.slots - (self.fetched - 1)

    @property
    def panel_slots(self) -> int:
        return min(self.grid, 2)

    @property
    def under_way(self) -> int:
        """The most copies of blocks under way: each has its own semaphore."""
        return min(self.slots // self.fetched, _MAX_UNDER_WAY)

    @classmethod
    def of(cls, spec: SparseSpec, config: KernelConfig, chip: Chip) -> ProductSchedule:
        """Return the schedule; for dsd `tile_m` is a block's rows, `tile_k` the joined blocks, `tile_n` a panel."""
        turned = spec.kind == "dds"
        tile, line = (
            (config.tiles.tile_m, config.tiles.tile_n) if turned else (config.tiles.tile_n, config.tiles.tile_m)
        )
        subtile = config.subtile_m if turned else config.subtile_n
        require_blocks(spec, config, chip, line, config.tiles.tile_k)
        multiple = 32 // dtype_bytes(spec.dtype) if turned else LANES
        result = [misaligned("m" if turned else "n", size, multiple, "panels", padded(size, multiple))
                 for size in dict.fromkeys((tile, subtile)) if size % multiple]  # fmt: skip
        if spec.sweep % tile:
            result.append(indivisible("m" if turned else "n", spec.sweep, tile))
        require_none(config, result)
        grid = spec.sweep // tile
        block_bytes = spec.block_rows * spec.block_columns * dtype_bytes(spec.dtype)
        panel = (tile, spec.k) if turned else (spec.k, tile)
        out = (tile, line) if turned else (line, tile)
        fixed = [
            _ring("panel", panel, spec.dtype, min(grid, 2)),
            _ring("out", out, spec.dtype_out, _OUT_SLOTS),
            VmemBuffer(name="acc", shape=out, dtype=spec.dtype_accumulator, copies=1, ref_shape=out),
        ]
        max_blocks = (
            1 if spec.is_by_columns else max(min(_MAX_FETCHED, _FETCHED_BYTES // block_bytes), 1)
        )  # a column's blocks are not contiguous
        fetched = largest_divisor(spec.most_blocks, 1, max_blocks)
        left = buffer_bytes(chip) - total_bytes(fixed)
        slots = min(left // block_bytes, padded(spec.most_blocks, fetched) + fetched) // fetched * fetched
        entries = padded(min(spec.places, spec.most_blocks) + fetched - 1, fetched)
        blocks = _ring("blocks", spec.stored_block, spec.dtype, max(slots, entries))
        buffers = (blocks, *fixed)
        require_none(config, vmem_violations(buffers, buffer_bytes(chip)))
        return cls(
            joined=config.tiles.tile_k // spec.place_size,
            tile=tile,
            grid=grid,
            subtile=subtile,
            parts=spec.places // largest_divisor(spec.places, 1, max(spec.places // _MAX_PARTS, 1)),
            slots=blocks.copies,
            fetched=fetched,
            out_slots=_OUT_SLOTS,
            buffers=buffers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSchedule:
    """The schedule of `kernels.sparse.sampled` for a configuration of sdd."""

    joined: int  # blocks of a line that one stretch of straight code makes, at most
    tile_k: int  # rows of a panel of rhs, which has all columns
    grid_k: int  # number of such panels
    parts: int  # parts in which a panel arrives
    slots: int  # blocks whose sums are in VMEM
    row_slots: int  # blocks of lhs
    stages: int  # blocks of the result that wait to be stored
    subtile: int  # rows of a block that one stretch of straight code takes
    zero_widths: tuple[int, ...]  # blocks that a copy of zeros fills, the largest first
    buffers: tuple[VmemBuffer, ...]  # all buffers in VMEM

    @property
    def panel_slots(self) -> int:
        return min(self.grid_k, 2)

    @classmethod
    def of(cls, spec: SparseSpec, config: KernelConfig, chip: Chip) -> SampledSchedule:
        """Return the schedule; `tile_m` is a block's rows, `tile_n` the joined blocks, `tile_k` a panel's rows."""
        tiles = config.tiles
        require_blocks(spec, config, chip, tiles.tile_m, tiles.tile_n)
        result = []
        if tiles.tile_k % LANES:
            result.append(misaligned("k", tiles.tile_k, LANES, "panels", padded(tiles.tile_k, LANES)))
        if spec.k % tiles.tile_k:
            result.append(indivisible("k", spec.k, tiles.tile_k))
        require_none(config, result)
        grid_k = spec.k // tiles.tile_k
        panel = (spec.n, tiles.tile_k) if spec.transpose_rhs else (tiles.tile_k, spec.n)
        block = (spec.block_rows, spec.block_columns)
        fixed = [
            _ring("panel", panel, spec.dtype, min(grid_k, 2)),
            _ring("rows", (spec.block_rows, tiles.tile_k), spec.dtype, _ROW_SLOTS),
            _ring("out", block, spec.dtype_out, _STAGES),
        ]
        widths = [1]
        block_bytes = math.prod(block) * dtype_bytes(spec.dtype_out)
        while spec.dense_out and 2 * widths[0] <= spec.places and 2 * widths[0] * block_bytes <= _ZERO_BYTES:
            widths.insert(0, 2 * widths[0])
        zeros = (block[0], block[1] * widths[0])
        fixed.append(VmemBuffer(name="zeros", shape=zeros, dtype=spec.dtype_out, copies=1, ref_shape=zeros))
        left = buffer_bytes(chip) - total_bytes(fixed)
        slots = min(max(left // _ring("sums", block, spec.dtype_accumulator, 1).bytes, 1), spec.most_blocks)
        buffers = (_ring("sums", block, spec.dtype_accumulator, slots), *fixed)
        require_none(config, vmem_violations(buffers, buffer_bytes(chip)))
        along = spec.places if spec.transpose_rhs else tiles.tile_k // LANES
        return cls(
            joined=tiles.tile_n // spec.place_size,
            tile_k=tiles.tile_k,
            grid_k=grid_k,
            parts=along // largest_divisor(along, 1, max(along // _MAX_PARTS, 1)),
            slots=slots,
            row_slots=_ROW_SLOTS,
            stages=_STAGES,
            subtile=config.subtile_m,
            zero_widths=tuple(widths),
            buffers=buffers,
        )


def _ring(name: str, shape: tuple[int, int], dtype: str, slots: int) -> VmemBuffer:
    return VmemBuffer(name=name, shape=shape, dtype=dtype, copies=slots, ref_shape=(slots, *shape))


def schedule_of(spec: SparseSpec, config: KernelConfig, chip: Chip) -> ProductSchedule | SampledSchedule:
    """Return the schedule of the kernel of the spec's kind; raise IllegalTilesError if it breaks rules."""
    return (SampledSchedule if spec.kind == "sdd" else ProductSchedule).of(spec, config, chip)


def require_blocks(spec: SparseSpec, config: KernelConfig, chip: Chip, line: int, joined: int) -> None:
    """Raise for blocks that fill no registers, tiles that are not blocks, and lists that SMEM does not hold."""
    result = list[Violation]()
    rows = 32 // dtype_bytes(spec.dtype)
    for name, size, multiple in (
        ("block_rows", spec.block_rows, LANES if spec.kind == "dds" else max(rows, 32 // dtype_bytes(spec.dtype_out))),
        ("block_columns", spec.block_columns, LANES),
    ):
        if size % multiple:
            limit = f"the kernel takes multiples of {multiple}"
            result.append(
                Violation(
                    rule="block", value=f"{name}={size}", limit=limit, fix="use larger blocks, or implementation='xla'"
                )
            )
    if line != spec.line_size or joined % spec.place_size:
        value = f"a tile of {line} × {joined}"
        limit = f"blocks of a line are {spec.line_size} × a multiple of {spec.place_size}"
        result.append(Violation(rule="tile-of-blocks", value=value, limit=limit, fix="use such tiles"))
    words = index_words(spec)
    if words * INDEX_BYTES > chip.usable_smem_bytes_per_core:
        limit = f"{chip.name} has {chip.usable_smem_bytes_per_core // INDEX_BYTES} words of SMEM"
        fix = "use larger blocks, or cut the sparse matrix into several by its lines"
        result.append(Violation(rule="smem", value=f"{words} indices of blocks and lines", limit=limit, fix=fix))
    require_none(config, result)


def most_joined(spec: SparseSpec, cycles: float) -> int:
    """Return how many blocks of a line, each of `cycles` in the matrix units, straight code may join."""
    count = 1
    while count < spec.places and cycles * _stretches(spec, count + 1) <= MAX_BUNDLES:
        count += 1
    return count


def _stretches(spec: SparseSpec, joined: int) -> int:
    """Return the blocks in all stretches of code: of one, of two, and so on; dsd and dds have one that only adds up."""
    return joined * (joined + 1) // 2 + (joined if spec.kind != "sdd" else 0)
