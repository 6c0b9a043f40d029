"""The cutting of a product with a quantized weight, and its buffers.

All of k of a block of rows stays in VMEM while the weight's tiles pass: so rows are read once, and prepared once. The
weight's tiles arrive in a ring of as many slots as fit into VMEM, so that many copies are under way; tiles of the
result leave through another ring.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from systolic.chips import Chip
from systolic.ops.quantized.route import Route
from systolic.ops.quantized.route_cycles import route_cycles
from systolic.ops.quantized.routes import route_of
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule.buffers import VmemBuffer, total_bytes
from systolic.schedule.config import KernelConfig
from systolic.schedule.legality import (
    LANES,
    Violation,
    indivisible,
    inexact_sums,
    misaligned,
    require_none,
    vmem_violations,
)
from systolic.schedule.sizes import padded
from systolic.schedule.vmem import MIB, CompilerNeed
from systolic.spec import EXACT_INT32_PRODUCTS, dtype_bytes

_MAX_SLOTS = 4
_OUT_SLOTS = 4
SUBLANES = 8
_COMPILER_FACTOR = 1.2  # of the buffers, for the compiler's additions; without the values that one subtile makes
_ASKED_MARGIN = 1.1
# Values of eight bits fill registers of 32 rows, and dots take whole ones.
BLOCK_ROWS = 32
# Elements of lhs that are copied and quantized at a time: enough rows to hide the time of a maximum over lanes, in some
# 1300 bundles of code.
_ELEMENTS_AT_ONCE = 2**19
_MAX_ROWS_AT_ONCE = 128
_MIN_ROWS_AT_ONCE = 64  # of int4 in a register
MAX_CYCLES = 10500  # of one stretch of straight code: about as many bundles


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedSchedule:
    """The schedule of `kernels.quantized.product` for a configuration.

    Attributes:
      route: how weights get into the matrix units.
      tile_m: rows of lhs in VMEM, with all of k.
      subtile_m: rows that are multiplied at a time; if below `tile_m`, the weights of a subtile are kept for all rows.
      tile_k, tile_n: of the weight.
      subtile_n: columns that are multiplied at a time.
      tile_blocks: scales of a column of a tile.
      makes_rows: True if rows are multiplied in another form than they are stored in.
      rows_at_once: rows of lhs that are copied and prepared at a time.
      row_slots: blocks of rows in VMEM: one more if the next block arrives while this one is multiplied as stored.
      slots: tiles of the weight in VMEM.
      out_slots: tiles of the result.
      buffers: all buffers in VMEM.
      vmem_limit_bytes: limit to request from the compiler.
    """

    route: Route
    tile_m: int
    subtile_m: int
    tile_k: int
    tile_n: int
    subtile_n: int
    tile_blocks: int
    grid_m: int
    grid_k: int
    grid_n: int
    makes_rows: bool
    rows_at_once: int
    row_slots: int
    slots: int
    out_slots: int
    buffers: tuple[VmemBuffer, ...]
    vmem_limit_bytes: int

    @classmethod
    def of(cls, spec: QuantizedSpec, config: KernelConfig, chip: Chip) -> QuantizedSchedule:
        """Return the schedule, or raise IllegalTilesError. The last block of rows may pass m: the launcher pads lhs."""
        tiles = config.tiles
        route = route_of(spec, config.subtile_m, chip)
        _require(spec, config, route, chip)
        grid_m = -(-spec.m // tiles.tile_m)
        makes_rows = spec.quantize_lhs is not None or spec.dtype_lhs != route.rows or route.even_first
        without_slots = cls(
            route=route,
            **asdict(tiles),
            subtile_m=config.subtile_m,
            subtile_n=config.subtile_n,
            tile_blocks=max(tiles.tile_k // spec.block, 1),
            grid_m=grid_m,
            grid_k=spec.k // tiles.tile_k,
            grid_n=spec.n // tiles.tile_n,
            makes_rows=makes_rows,
            rows_at_once=_rows_at_once(spec, tiles.tile_m),
            row_slots=1 if grid_m == 1 or makes_rows else 2,
            slots=0,
            out_slots=_OUT_SLOTS,
            buffers=(),
            vmem_limit_bytes=0,
        )
        dots = _dots_bytes(config, route) * spec.weights
        # With one weight no compilation was seen to lack room for the dots; with two some did.
        made_bytes = _made_bytes(config, route) * spec.weights + (dots if spec.gated else 0) + 2 * MIB
        need = CompilerNeed(
            factor=_COMPILER_FACTOR,
            kept_bytes=made_bytes,
            asked_bytes=made_bytes + (0 if spec.gated else dots / _ASKED_MARGIN),
            margin=_ASKED_MARGIN,
        )
        vmem_bytes = chip.usable_vmem_bytes_per_core
        usable_bytes = need.usable_bytes(vmem_bytes)
        fixed_bytes, slot_bytes = (
            total_bytes(buffers) for buffers in (without_slots._buffers(spec), without_slots._weight_slots(spec, 1))
        )
        slots = min(max((usable_bytes - fixed_bytes) // slot_bytes, 2), _MAX_SLOTS)
        buffers = (*without_slots._buffers(spec), *without_slots._weight_slots(spec, slots))
        require_none(config, vmem_violations(buffers, usable_bytes))
        limit = need.limit_bytes(total_bytes(buffers), chip, vmem_bytes)
        return replace(without_slots, slots=slots, buffers=buffers, vmem_limit_bytes=limit)

    def with_route(self, spec: QuantizedSpec, route: Route) -> QuantizedSchedule:
        """Return the schedule with another route, for rows that are made."""
        changed = replace(self, route=route, makes_rows=True)
        return replace(changed, buffers=(*changed._buffers(spec), *changed._weight_slots(spec, self.slots)))

    def _buffers(self, spec: QuantizedSpec) -> tuple[VmemBuffer, ...]:
        tile_m, route, out_tile = self.tile_m, self.route, (self.tile_m, self.tile_n)
        # With one scale a column the sums themselves are stored, with several the scaled sums.
        acc = "int32" if route.sums == "int32" and spec.blocks == 1 and spec.exact_in_int32 else "float32"
        buffers = [
            _of_rows("lhs", (tile_m, spec.k), spec.dtype_lhs, self.row_slots, (self.row_slots,)),
            _of_rows("out", out_tile, spec.dtype_out, self.out_slots, (self.out_slots,)),
        ]
        if self.makes_rows:
            buffers.append(_of_rows("rows", (tile_m, spec.k), route.rows))
        # One number for each row, in every lane.
        if route.offset:
            buffers.append(_in_sublanes("row sums", (spec.blocks, tile_m, LANES)))
        if spec.scales_rows:
            buffers.append(_in_sublanes("row scales", (max(spec.lhs_blocks, 1), tile_m, LANES)))
        if spec.lhs_blocks:
            shape = (padded(tile_m, SUBLANES), padded(spec.lhs_blocks, LANES))
            buffers.append(VmemBuffer(name="lhs scales", shape=shape, dtype="float32", copies=2))
        if self.grid_k > 1:
            buffers.append(_of_rows("acc", out_tile, acc, spec.weights, (spec.weights,)))
        if self.keeps_weights:
            made_shape = (self.tile_k, self.subtile_n)
            ref_shape = (spec.weights, *made_shape)
            buffers.append(
                VmemBuffer(
                    name="weights", shape=made_shape, dtype=route.pushed, copies=spec.weights, ref_shape=ref_shape
                )
            )
        if spec.residual:
            buffers.append(replace(_of_rows("residual", out_tile, spec.dtype_out, 2), ref_shape=None))
        return tuple(buffers)

    def _weight_slots(self, spec: QuantizedSpec, slots: int) -> tuple[VmemBuffer, ...]:
        """Return the slots of tiles of the weights.

        The compiler reserves a byte of VMEM for each value of four bits, though HBM has two in a byte.
        """
        tile, scales = (self.tile_k, self.tile_n), (self.tile_blocks, self.tile_n)
        return (
            VmemBuffer(
                name="values",
                shape=tile,
                dtype=spec.dtype_rhs,
                copies=slots * spec.weights,
                ref_shape=(slots, spec.weights, *tile),
            ),
            VmemBuffer(
                name="scales",
                shape=(padded(self.tile_blocks, SUBLANES), self.tile_n),
                dtype=spec.dtype_scale,
                copies=slots * spec.weights,
                ref_shape=(slots, spec.weights, *scales),
            ),
        )

    @property
    def keeps_weights(self) -> bool:
        """True if the weights of a subtile are kept for all of its rows."""
        is_made = self.route.made != "stored" or self.route.rows == "bfloat16"
        return self.subtile_m < self.tile_m and is_made

    @property
    def steps(self) -> int:
        return self.grid_m * self.grid_n * self.grid_k


def aligned_sizes(k: int, n: int, block: int) -> tuple[int, int]:
    """Return the sizes to which a weight is padded: whole registers, and for k also whole blocks."""
    step = LANES if block == k else block * (LANES // _common(block))
    return padded(k, step), padded(n, LANES)


def _common(block: int) -> int:
    """Return the largest power of two, up to the lanes, that divides a block."""
    return min(block & -block, LANES)


def stretch_cycles(spec: QuantizedSpec, config: KernelConfig, route: Route, chip: Chip) -> float:
    """Return the cycles of one stretch of straight code, of both weights if there are two."""
    return spec.weights * route_cycles(route, spec, config.subtile_m, config.tiles.tile_k, config.subtile_n, chip)


def rows_multiple(spec: QuantizedSpec) -> int:
    """Return the rows of whole registers, of the result and of quantized lhs: where a block or a subtile may begin."""
    result_rows = SUBLANES * 4 // max(dtype_bytes(spec.dtype_out), 1)
    return max(result_rows, {None: 0, "int4": 2 * BLOCK_ROWS}.get(spec.row_format, BLOCK_ROWS))


def _rows_in_vmem(rows: int, dtype: str) -> int:
    """Return the rows that a block takes: whole sublanes, or for fewer rows a power of two that fills words."""
    if rows > SUBLANES:
        return padded(rows, SUBLANES)
    min_rows = SUBLANES if dtype == "int4" else 4 // dtype_bytes(dtype)
    return max(min_rows, 1 << (rows - 1).bit_length())


def _of_rows(
    name: str, shape: tuple[int, int], dtype: str, copies: int = 1, ref_copies: tuple[int, ...] = ()
) -> VmemBuffer:
    """Return a buffer of rows that the kernel allocates; `ref_copies` is its ref's first dimension, if any."""
    reserved = (_rows_in_vmem(shape[0], dtype), padded(shape[1], LANES))
    return VmemBuffer(name=name, shape=reserved, dtype=dtype, copies=copies, ref_shape=(*ref_copies, *shape))


def _in_sublanes(name: str, shape: tuple[int, int, int]) -> VmemBuffer:
    reserved = (shape[0], padded(shape[1], SUBLANES), shape[2])
    return VmemBuffer(name=name, shape=reserved, dtype="float32", copies=1, ref_shape=shape)


def _rows_at_once(spec: QuantizedSpec, tile_m: int) -> int:
    rows = min(_ELEMENTS_AT_ONCE // spec.k, _MAX_ROWS_AT_ONCE) // _MIN_ROWS_AT_ONCE * _MIN_ROWS_AT_ONCE
    return min(max(rows, _MIN_ROWS_AT_ONCE), tile_m)


def _made_bytes(config: KernelConfig, route: Route) -> int:
    """Return the most bytes that a subtile keeps in VMEM of the weights that it makes and of its sums."""
    # Seen in compiled kernels: the loaded values and every intermediate result, together four times the pushed weights.
    weights_bytes = 4 * config.tiles.tile_k * config.subtile_n * dtype_bytes(route.pushed)
    weights_bytes += config.subtile_m * config.tiles.tile_k * dtype_bytes(route.rows)
    return weights_bytes + 2 * config.subtile_m * config.subtile_n * dtype_bytes("float32")


def _dots_bytes(config: KernelConfig, route: Route) -> int:
    """Return the bytes of the sums of a subtile's dots with coded weights; refusals show that v5e and v6e keep many."""
    if route.made != "codes":
        return 0
    dots = config.tiles.tile_k // route.depth
    return dots * config.subtile_m * config.subtile_n * dtype_bytes("float32")


def _require(spec: QuantizedSpec, config: KernelConfig, route: Route, chip: Chip) -> None:
    tiles, violations = config.tiles, list[Violation]()
    for letter in "kn":
        size, tile = getattr(spec, letter), getattr(tiles, f"tile_{letter}")
        if size % tile:
            violations.append(indivisible(letter, size, tile))
        if tile % LANES:
            violations.append(misaligned(letter, tile, LANES, f"blocks of {spec.dtype_rhs}", padded(tile, LANES)))
    if config.subtile_n % LANES:
        violations.append(misaligned("n", config.subtile_n, LANES, "subtiles", padded(config.subtile_n, LANES)))
    if spec.block % BLOCK_ROWS and spec.blocks > 1:
        limit, fix = f"kernels take multiples of {BLOCK_ROWS}", "quantize with such a block"
        violations.append(Violation(rule="scale-block", value=f"block={spec.block}", limit=limit, fix=fix))
    if tiles.tile_k != spec.k and ((spec.blocks > 1 and tiles.tile_k % spec.block) or tiles.tile_k % route.depth):
        fix = f"use tile_k={spec.k}, or a multiple of {math.lcm(spec.block, route.depth)}"
        limit = "a tile has whole blocks, and whole dots"
        violations.append(Violation(rule="tile-of-scales", value=f"tile_k={tiles.tile_k}", limit=limit, fix=fix))
    if route.sums == "int32" and min(tiles.tile_k, spec.block) > EXACT_INT32_PRODUCTS:
        violations.append(inexact_sums(tiles.tile_k, ", and smaller blocks of scales"))
    rows = rows_multiple(spec)
    if tiles.tile_m < spec.m and (tiles.tile_m % rows or config.subtile_m % rows):
        violations.append(
            misaligned("m", tiles.tile_m, rows, f"blocks of {spec.dtype_out}", padded(tiles.tile_m, rows))
        )
    if not violations and (cycles := stretch_cycles(spec, config, route, chip)) > MAX_CYCLES:
        value, limit = f"{cycles:.0f} cycles of straight code", f"up to {MAX_CYCLES} compile in good time"
        fix = "use a smaller subtile, or tile_k"
        violations.append(Violation(rule="code-size", value=value, limit=limit, fix=fix))
    require_none(config, violations)
