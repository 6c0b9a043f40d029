"""The cutting of grouped products: the meaning of a configuration's tiles, and the buffers that fit into VMEM.

A *visit* is the rows that one group has in one block of rows; the kernels list the visits from the sizes of the groups.
Rows of a visit begin at a whole register: rows of the group before in the first register, and of the group after in the
last register, are computed and dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from systolic.chips import Chip
from systolic.ops.grouped.code_blocks import RowBlock, gradient_block, row_blocks
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.schedule.buffers import VmemBuffer, total_bytes
from systolic.schedule.config import KernelConfig
from systolic.schedule.lanes import in_lanes
from systolic.schedule.legality import LANES, Violation, indivisible, misaligned, require_none, vmem_violations
from systolic.schedule.sizes import is_ragged_side, padded
from systolic.schedule.vmem import buffer_bytes
from systolic.spec import dtype_bytes

_RING_SHARE = 0.75  # share for weights of the VMEM left for weights and results
_MAX_SLOTS = 24
_LHS_SLOTS, _COTANGENT_SLOTS = 2, 3  # of a gradient


def registers_rows(*dtypes: str) -> int:
    """Return the rows of the highest register of these dtypes; every copy of rows is a multiple."""
    return max(32 // dtype_bytes(dtype) for dtype in dtypes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TiledColumns:
    """The tiles of columns that a device's cores share."""

    row_multiple: int  # divides a visit's first row and its number of rows
    # Columns of a tile; if they do not divide n, the columns of the last and widest one.
    tile_n: int
    step_n: int  # columns from the beginning of a tile to the beginning of the next
    grid_n: int
    # Cores that share the tiles of columns evenly; each has all rows. One if the number of tiles is odd.
    cores: int
    out_slots: int  # blocks of the result in VMEM
    most_visits: int  # the most visits that any sizes of groups make
    buffers: tuple[VmemBuffer, ...]

    @property
    def core_n(self) -> int:
        return self.grid_n // self.cores


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedSchedule(_TiledColumns):
    """The schedule of `kernels.grouped.product` for a configuration."""

    panel: int  # rows that stay in VMEM while all matrices of their groups pass
    panels: int  # panels in VMEM; one if all rows fit
    blocks: tuple[RowBlock, ...]  # largest rows first
    weight_slots: int  # tiles of weights in VMEM
    residual_slots: int  # panels of a tile's columns of the residual in VMEM; 0 without a residual

    @classmethod
    def of(cls, spec: GroupedSpec, config: KernelConfig, chip: Chip) -> GroupedSchedule:
        """Return the schedule, or raise IllegalTilesError: `tile_m` is the panel, `tile_k` all of k."""
        tiles, multiple = config.tiles, registers_rows(*spec.row_dtypes)
        _require(spec, config, multiple)
        grid_n = -(-spec.n // tiles.tile_n)
        cores = _cores(grid_n, chip)
        most_rows = padded(spec.m, multiple) + 2 * multiple * min(spec.groups, spec.m)
        panels = 1 if tiles.tile_m >= most_rows else 2
        rows = panels * tiles.tile_m + config.subtile_m
        fixed = [
            in_lanes("rows", (rows, spec.k), spec.dtype),
            in_lanes("shared rows", (grid_n // cores, multiple, tiles.tile_n), spec.dtype_out),
        ]
        if spec.row_scale:
            fixed.append(in_lanes("row scale", (rows, 1), "float32"))
        if spec.lhs_scale:
            fixed.append(in_lanes("lhs scale", (rows, 1), "float32"))
        residual_slots = min(2, panels * grid_n // cores) if spec.residual else 0
        if spec.residual:
            shape = (tiles.tile_m + config.subtile_m, tiles.tile_n)
            fixed.append(in_lanes("residual", shape, spec.residual, residual_slots))
        blocks = row_blocks(spec, config, multiple, chip)
        if blocks[0].depth < spec.k:
            shape = (spec.products, blocks[0].rows, blocks[0].columns)
            dtype = spec.dtype_accumulator if spec.scale_blocks == 1 else "float32"
            fixed.append(VmemBuffer(name="acc", shape=shape, dtype=dtype, copies=1, ref_shape=shape))
        if spec.scale_columns > 1:
            fixed.append(in_lanes("column scale", (spec.products * spec.scale_blocks, tiles.tile_n), "float32"))

        def weights(slots: int) -> VmemBuffer:
            matrix = (tiles.tile_n, spec.k) if spec.transpose_rhs else (spec.k, tiles.tile_n)
            return VmemBuffer(
                name="rhs",
                shape=(spec.products, spec.k, padded(tiles.tile_n, LANES)),
                dtype=spec.dtype_rhs or spec.dtype,
                copies=slots,
                ref_shape=(slots, spec.products, *matrix),
            )

        def scales(slots: int) -> list[VmemBuffer]:
            columns = tiles.tile_n if spec.scale_columns == 1 else spec.n // spec.scale_columns
            shape = (spec.products * spec.scale_blocks, columns)
            return [in_lanes("rhs scale", shape, "float32", slots)] if spec.dtype_rhs else []

        def out(slots: int) -> VmemBuffer:
            return in_lanes("out", (config.subtile_m, tiles.tile_n), spec.dtype_out, slots)

        left = buffer_bytes(chip) - total_bytes(fixed)
        out_slots = min(max(int(left * (1 - _RING_SHARE)) // out(1).bytes, 2), _MAX_SLOTS)
        slot_bytes = total_bytes([weights(1), *scales(1)])
        weight_slots = min(max((left - out(out_slots).bytes) // slot_bytes, 2), _MAX_SLOTS)
        buffers = (*fixed, weights(weight_slots), *scales(weight_slots), out(out_slots))
        require_none(config, vmem_violations(buffers, buffer_bytes(chip)))
        return cls(
            row_multiple=multiple,
            panel=tiles.tile_m,
            panels=panels,
            tile_n=tiles.tile_n,
            step_n=_step(spec.n, tiles.tile_n),
            grid_n=grid_n,
            cores=cores,
            blocks=blocks,
            weight_slots=weight_slots,
            residual_slots=residual_slots,
            out_slots=out_slots,
            most_visits=1 + spec.groups + -(-most_rows // tiles.tile_m) + min(spec.groups, most_rows // tiles.tile_m),
            buffers=buffers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSchedule(_TiledColumns):
    """The schedule of `kernels.grouped.gradient` for a configuration.

    Attributes:
      most_rows: the most rows of a visit.
      depths: rows that one stretch of straight code sums over, the largest first.
      block_k, block_n: rows and columns of the result that such a stretch makes.
      lhs_slots, cotangent_slots: blocks in VMEM.
    """

    most_rows: int
    tile_k: int
    grid_k: int
    depths: tuple[int, ...]
    block_k: int
    block_n: int
    lhs_slots: int
    cotangent_slots: int

    @classmethod
    def of(cls, spec: GroupedGradientSpec, config: KernelConfig, chip: Chip) -> GradientSchedule:
        """Return the schedule: `tile_m` is the most rows of a visit, `subtile_m` the rows summed over at once."""
        tiles, multiple = config.tiles, registers_rows(*spec.row_dtypes)
        _require(spec, config, multiple)
        tile = (tiles.tile_k, tiles.tile_n)
        fixed = (
            in_lanes("lhs", (tiles.tile_m, tiles.tile_k), spec.dtype, _LHS_SLOTS),
            in_lanes("cotangent", (tiles.tile_m, tiles.tile_n), spec.dtype, _COTANGENT_SLOTS),
            in_lanes("acc", tile, spec.dtype_accumulator),
        )
        left = buffer_bytes(chip) - total_bytes(fixed)
        out_slots = min(max(left // in_lanes("out", tile, spec.dtype_out).bytes, 1), _MAX_SLOTS)
        buffers = (*fixed, in_lanes("out", tile, spec.dtype_out, out_slots))
        require_none(config, vmem_violations(buffers, buffer_bytes(chip)))
        half = config.subtile_m // 2
        depths = (config.subtile_m, half) if half % multiple == 0 and half >= multiple else (config.subtile_m,)
        most_rows = padded(spec.m, multiple) + 2 * multiple * min(spec.groups, spec.m)
        grid_n = -(-spec.n // tiles.tile_n)
        block_k, block_n = gradient_block(spec, config, chip)
        return cls(
            row_multiple=multiple,
            most_rows=tiles.tile_m,
            tile_k=tiles.tile_k,
            tile_n=tiles.tile_n,
            step_n=_step(spec.n, tiles.tile_n),
            grid_k=spec.k // tiles.tile_k,
            grid_n=grid_n,
            cores=_cores(grid_n, chip),
            depths=depths,
            block_k=block_k,
            block_n=block_n,
            lhs_slots=_LHS_SLOTS,
            cotangent_slots=_COTANGENT_SLOTS,
            out_slots=out_slots,
            most_visits=1 + 2 * spec.groups + -(-most_rows // tiles.tile_m),
            buffers=buffers,
        )


def _cores(grid_n: int, chip: Chip) -> int:
    """Return the number of a device's cores that share this many tiles of columns."""
    return chip.cores_per_device if grid_n % chip.cores_per_device == 0 else 1


def _step(n: int, tile_n: int) -> int:
    """Return the columns from the beginning of a tile to the beginning of the next; the last tile may be wider."""
    count = -(-n // tile_n)
    return (n - tile_n) // (count - 1) if count > 1 else tile_n


def _require(spec: GroupedSpec | GroupedGradientSpec, config: KernelConfig, multiple: int) -> None:
    tiles, violations = config.tiles, list[Violation]()
    product = isinstance(spec, GroupedSpec)
    for letter in "kn":
        size, tile = getattr(spec, letter), getattr(tiles, f"tile_{letter}")
        if letter == "n" and is_ragged_side(size, tile) and not (product and spec.side_by_side):
            continue
        if size % tile:
            violations.append(indivisible(letter, size, tile))
        elif letter == "k" and size != tile and product:
            limit = "a row is multiplied as a whole"
            violations.append(Violation(rule="whole-k", value=f"tile_k={tile}", limit=limit, fix=f"use tile_k={size}"))
        if tile != size and tile % LANES:
            violations.append(
                misaligned(letter, tile, LANES, f"blocks of {spec.dtype}", min(size, padded(tile, LANES)))
            )
    for name, value in (("m", tiles.tile_m), ("m", config.subtile_m)):
        if value % multiple:
            violations.append(misaligned(name, value, multiple, f"blocks of {spec.dtype}", padded(value, multiple)))
    if config.subtile_n != tiles.tile_n and config.subtile_n % LANES:
        violations.append(misaligned("n", config.subtile_n, LANES, "blocks", padded(config.subtile_n, LANES)))
    require_none(config, violations)
