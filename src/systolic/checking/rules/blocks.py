"""Rules on grid and blocks: what the compiler cuts arrays into, and what it refuses to.

The compiler's own words on each are in `docs/check_configurations.md`, with how often these rules agree with it.
"""

from __future__ import annotations

from systolic.analysis.calls import KernelCall, Operand
from systolic.analysis.windows import block_mapping_of, index_divisors, is_whole
from systolic.checking.finding import Finding, Grade
from systolic.checking.layout import SUBLANES, array_tile_rows, element_bits, packing
from systolic.chips import Chip
from systolic.schedule.legality import LANES

_VECTOR_CHUNK = SUBLANES * LANES  # elements of which blocks of a vector are multiples, or whole, or a power of two
_MOST_BUFFERS = 2  # copies of a window that a pipeline of pallas_call keeps


def block_findings(call: KernelCall, chip: Chip) -> list[Finding]:
    """Every finding about the grid and the blocks of a call; none of them needs the values of index maps.

    The rules are alike on all chips: blocks were compiled for v4, v5e, v6e and v7x with libtpu 0.0.42.1.
    """
    del chip
    findings = _empty_grid(call)
    for operand in call.of("input", "output"):
        findings += _buffering(call, operand)
        findings += _lookahead(call, operand)
        findings += _kinds(call, operand)
        findings += _placement(call, operand)
        findings += _alignment(call, operand)
        findings += _element_indices(call, operand)
    return findings


def _finding(call: KernelCall, rule: str, grade: Grade, *, value: str, limit: str, fix: str) -> Finding:
    return Finding(rule=rule, grade=grade, value=value, limit=limit, fix=fix, kernel=call.name, where=call.where)


def _empty_grid(call: KernelCall) -> list[Finding]:
    if 0 not in call.grid:
        return []
    axis = call.grid.index(0)
    return [
        _finding(
            call,
            "empty-grid",
            "error",
            value=f"the grid {call.grid} has no steps: axis {axis} is 0",
            limit="it compiles, runs no step and returns what was in memory",
            fix="a block above its dimension makes size // block zero: use a smaller block, or pl.cdiv(size, block)",
        )
    ]


def _buffering(call: KernelCall, operand: Operand) -> list[Finding]:
    # A window that is the whole array gets one copy, whatever was asked for.
    if (
        operand.buffers is None
        or operand.buffers <= _MOST_BUFFERS
        or not operand.is_cut
        or _is_still_vmem(call, operand)
    ):
        return []
    return [
        _finding(
            call,
            "buffering",
            "error",
            value=f"{operand.name}: pl.Buffered({operand.buffers})",
            limit="a pipeline of pallas_call keeps one or two copies of a block; more is refused",
            fix="use pl.Buffered(2), or pltpu.emit_pipeline inside of the kernel, which takes more",
        )
    ]


def _is_still_vmem(call: KernelCall, operand: Operand) -> bool:
    return operand.memory == "vmem" and is_whole(call, operand)


def _lookahead(call: KernelCall, operand: Operand) -> list[Finding]:
    mode = block_mapping_of(call, operand).pipeline_mode
    if not getattr(mode, "use_lookahead", False) or _is_still_vmem(call, operand):
        return []
    return [
        _finding(
            call,
            "buffering",
            "error",
            value=f"{operand.name}: a pipeline that looks ahead",
            limit="the pipeline of pallas_call does not",
            fix="leave use_lookahead out, or use pltpu.emit_pipeline inside of the kernel",
        )
    ]


def _kinds(call: KernelCall, operand: Operand) -> list[Finding]:
    seen = len(operand.shape) - len(operand.squeezed)
    paddings = [getattr(block, "padding", (0, 0)) for block in block_mapping_of(call, operand).block_shape]
    if any(before for before, _ in paddings):
        return [
            _finding(
                call,
                "block-kind",
                "error",
                value=f"{operand.name}: pl.Element with padding {', '.join(map(str, paddings))}",
                limit="an array can be padded after its end, not before its beginning",
                fix="pad it in JAX, or give the blocks at the beginning another size by hand",
            )
        ]
    if not operand.by_element or len(operand.by_element) == seen:
        return []
    return [
        _finding(
            call,
            "block-kind",
            "error",
            value=f"{operand.name}: dimensions {', '.join(map(str, operand.by_element))} are given by element, the "
            "others by block",
            limit="either all dimensions of a block are pl.Element or none is",
            fix="give all of them as pl.Element, and an index map in elements",
        )
    ]


def _placement(call: KernelCall, operand: Operand) -> list[Finding]:
    if operand.memory != "hbm" or not operand.block or is_whole(call, operand):
        return []
    return [
        _finding(
            call,
            "hbm-block",
            "error",
            value=f"{operand.name}: a block of {operand.block} of an array of {operand.shape} in HBM",
            limit="no pipeline cuts what stays in HBM: the block has to be the whole array, at index 0",
            fix="leave block_shape and index_map out, and copy with pltpu.async_copy",
        )
    ]


def _alignment(call: KernelCall, operand: Operand) -> list[Finding]:
    if operand.memory == "semaphore" or (operand.memory == "smem" and is_whole(call, operand)):
        return []
    if not operand.shape:
        return [
            _misaligned(
                call, operand, "a block without dimensions", "blocks have at least one dimension", "reshape to (1, 1)"
            )
        ]
    if len(operand.shape) == 1:
        return _vector(call, operand)
    return [*_lanes(call, operand), *_rows(call, operand)]


def _vector(call: KernelCall, operand: Operand) -> list[Finding]:
    (size,), (block,) = operand.shape, operand.block
    least = LANES * packing(operand.dtype)
    power_of_two = block >= least and block & (block - 1) == 0
    if block == size or block % _VECTOR_CHUNK == 0 or power_of_two:
        return []
    above = -(-block // _VECTOR_CHUNK) * _VECTOR_CHUNK
    return [
        _misaligned(
            call,
            operand,
            f"blocks of {block} of {size} {operand.dtype}",
            f"blocks of a vector are multiples of {_VECTOR_CHUNK}, powers of two from {least} up, or all of it",
            f"use {above}, or all {size}",
        )
    ]


def _lanes(call: KernelCall, operand: Operand) -> list[Finding]:
    size, block = operand.shape[-1], operand.block[-1]
    if block == size or block % LANES == 0:
        return []
    squeezed = " (squeezed)" if len(operand.shape) - 1 in operand.squeezed else ""
    return [
        _misaligned(
            call,
            operand,
            f"blocks of {block}{squeezed} along the last dimension, which has {size}",
            f"the last dimension of a block is a multiple of {LANES}, or all of it",
            f"use {_nearest(block, LANES, size)}",
        )
    ]


def _rows(call: KernelCall, operand: Operand) -> list[Finding]:
    size, block, dtype = operand.shape[-2], operand.block[-2], operand.dtype
    tile = array_tile_rows(size, dtype)
    squeezed = " (squeezed)" if len(operand.shape) - 2 in operand.squeezed else ""
    if block == size:
        return []
    if block % SUBLANES:
        return [
            _misaligned(
                call,
                operand,
                f"blocks of {block}{squeezed} rows of {size}",
                f"the last but one dimension of a block is a multiple of {SUBLANES}, or all of it",
                f"use {_nearest(block, max(tile, SUBLANES), size)}",
            )
        ]
    if tile > SUBLANES and block % tile:
        return [
            _misaligned(
                call,
                operand,
                f"blocks of {block} rows of {size} {dtype}",
                f"{dtype} lies in tiles of {tile} rows where these divide the array, as here: blocks are multiples of "
                f"{tile}, or all of it",
                f"use {_nearest(block, tile, size)}",
            )
        ]
    full = SUBLANES * packing(dtype)
    if block % full == 0 or element_bits(dtype) == 32:
        return []
    return [
        _finding(
            call,
            "half-registers",
            "warning",
            value=f"{operand.name}: blocks of {block} rows of {dtype}",
            limit=f"a register holds {full} rows of {dtype}: some of them are only partly filled",
            fix=f"use a multiple of {full} rows",
        )
    ]


def _element_indices(call: KernelCall, operand: Operand) -> list[Finding]:
    """Blocks that begin where a tile does not, or for all that the compiler can tell: only in blocks by element."""
    if not operand.by_element or operand.memory != "vmem":
        return []
    if len(operand.shape) == 1:
        tiles = {0: LANES * packing(operand.dtype)}
    else:
        rank = len(operand.shape)
        tiles = {rank - 2: array_tile_rows(operand.shape[-2], operand.dtype), rank - 1: LANES}
    divisors = index_divisors(call, operand)
    return [
        _misaligned(
            call,
            operand,
            f"of the element that the index map gives along dimension {at} only a multiple of {divisors[at]} is known",
            f"it has to see a multiple of {tile}: it follows products, and does not add",
            f"write the index as a product with {tile}, such as (i + 1) * {tile}, or use pl.multiple_of",
        )
        for at, tile in tiles.items()
        if at in operand.by_element and divisors[at] % tile
    ]


def _misaligned(call: KernelCall, operand: Operand, value: str, limit: str, fix: str) -> Finding:
    return _finding(call, "block-alignment", "error", value=f"{operand.name}: {value}", limit=limit, fix=fix)


def _nearest(block: int, multiple: int, size: int) -> str:
    """The two legal sizes around a block, in words."""
    below, above = block // multiple * multiple, -(-block // multiple) * multiple
    choices = [str(each) for each in (below, above) if 0 < each < size]
    return " or ".join([*choices, f"all {size}"])
