"""Rules on grid and blocks: how the compiler cuts arrays, and which cuts it refuses.

`docs/check_configurations.md` has the compiler's messages, and how often these rules agree with it. The rules are the
same on all chips: blocks were compiled for v4, v5e, v6e and v7x with libtpu 0.0.42.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from systolic.analysis import (
    SUBLANES,
    KernelCall,
    Operand,
    array_tile_rows,
    block_mapping_of,
    element_bits,
    index_divisors,
    is_whole,
    packing,
)
from systolic.checking.finding import Finding, call_finding
from systolic.schedule import LANES

_VECTOR_CHUNK = SUBLANES * LANES  # blocks of a vector are multiples of it, or whole, or a power of two
_MAX_BUFFERS = 2  # copies of a window that a pipeline of pallas_call keeps


def block_findings(call: KernelCall) -> list[Finding]:
    """Return the findings on the grid and the blocks of a call, without evaluating its index maps."""
    findings = list(_empty_grid(call))
    for operand in call.of("input", "output"):
        for rule in (_buffering, _kinds, _placement, _alignment, _element_indices):
            findings += rule(call, operand)
    return findings


def _empty_grid(call: KernelCall) -> Iterator[Finding]:
    if 0 in call.grid:
        yield call_finding(
            call,
            "empty-grid",
            value=f"the grid {call.grid} has no steps: axis {call.grid.index(0)} is 0",
            limit="it compiles, runs no step and returns the old contents of memory",
            fix="a block above its dimension makes size // block zero: use a smaller block, or pl.cdiv(size, block)",
        )


def _buffering(call: KernelCall, operand: Operand) -> Iterator[Finding]:
    if operand.memory == "vmem" and is_whole(call, operand):  # gets one copy, whatever was requested
        return
    if operand.is_cut and (operand.buffers or 0) > _MAX_BUFFERS:
        yield call_finding(
            call,
            "buffering",
            value=f"{operand.name}: pl.Buffered({operand.buffers})",
            limit="a pipeline of pallas_call keeps one or two copies of a block; more is refused",
            fix="use pl.Buffered(2), or pltpu.emit_pipeline inside the kernel, which takes more",
        )
    if getattr(block_mapping_of(call, operand).pipeline_mode, "use_lookahead", False):
        yield call_finding(
            call,
            "buffering",
            value=f"{operand.name}: a pipeline that looks ahead",
            limit="the pipeline of pallas_call does not",
            fix="leave use_lookahead out, or use pltpu.emit_pipeline inside the kernel",
        )


def _kinds(call: KernelCall, operand: Operand) -> Iterator[Finding]:
    paddings = [getattr(block, "padding", (0, 0)) for block in block_mapping_of(call, operand).block_shape]
    if any(before for before, _ in paddings):
        yield call_finding(
            call,
            "block-kind",
            value=f"{operand.name}: pl.Element with padding {', '.join(map(str, paddings))}",
            limit="an array can be padded after its end, not before its beginning",
            fix="pad it in JAX, or give the blocks at the beginning another size by hand",
        )
    elif operand.by_element and len(operand.by_element) != len(operand.shape) - len(operand.squeezed):
        yield call_finding(
            call,
            "block-kind",
            value=f"{operand.name}: dimensions {', '.join(map(str, operand.by_element))} are given by element, the "
            "others by block",
            limit="either all dimensions of a block are pl.Element or none is",
            fix="give all of them as pl.Element, and an index map in elements",
        )


def _placement(call: KernelCall, operand: Operand) -> Iterator[Finding]:
    if operand.memory == "hbm" and operand.block and not is_whole(call, operand):
        yield call_finding(
            call,
            "hbm-block",
            value=f"{operand.name}: a block of {operand.block} of an array of {operand.shape} in HBM",
            limit="no pipeline cuts what stays in HBM: the block has to be the whole array, at index 0",
            fix="leave block_shape and index_map out, and copy with pltpu.async_copy",
        )


def _alignment(call: KernelCall, operand: Operand) -> Iterator[Finding]:
    if operand.memory == "semaphore" or (operand.memory == "smem" and is_whole(call, operand)):
        return
    if not operand.shape:
        limit = "blocks have at least one dimension"
        yield _misaligned(call, operand, "a block without dimensions", limit, "reshape to (1, 1)")
    elif len(operand.shape) == 1:
        yield from _vector(call, operand)
    else:
        yield from _lanes(call, operand)
        yield from _rows(call, operand)


def _vector(call: KernelCall, operand: Operand) -> Iterator[Finding]:
    (size,), (block,) = operand.shape, operand.block
    least = LANES * packing(operand.dtype)
    power_of_two = block >= least and block & (block - 1) == 0
    if block != size and block % _VECTOR_CHUNK and not power_of_two:
        yield _misaligned(
            call,
            operand,
            f"blocks of {block} of {size} {operand.dtype}",
            f"blocks of a vector are multiples of {_VECTOR_CHUNK}, powers of two from {least} up, or all of it",
            f"use {-(-block // _VECTOR_CHUNK) * _VECTOR_CHUNK}, or all {size}",
        )


def _lanes(call: KernelCall, operand: Operand) -> Iterator[Finding]:
    size, block = operand.shape[-1], operand.block[-1]
    if block != size and block % LANES:
        squeezed = " (squeezed)" if len(operand.shape) - 1 in operand.squeezed else ""
        yield _misaligned(
            call,
            operand,
            f"blocks of {block}{squeezed} along the last dimension, which has {size}",
            f"the last dimension of a block is a multiple of {LANES}, or all of it",
            f"use {_nearest(block, LANES, size)}",
        )


def _rows(call: KernelCall, operand: Operand) -> Iterator[Finding]:
    size, block, dtype = operand.shape[-2], operand.block[-2], operand.dtype
    if block == size:
        return
    tile = array_tile_rows(size, dtype)
    full = SUBLANES * packing(dtype)
    if block % SUBLANES:
        squeezed = " (squeezed)" if len(operand.shape) - 2 in operand.squeezed else ""
        yield _misaligned(
            call,
            operand,
            f"blocks of {block}{squeezed} rows of {size}",
            f"the last but one dimension of a block is a multiple of {SUBLANES}, or all of it",
            f"use {_nearest(block, max(tile, SUBLANES), size)}",
        )
    elif tile > SUBLANES and block % tile:
        yield _misaligned(
            call,
            operand,
            f"blocks of {block} rows of {size} {dtype}",
            f"{dtype} lies in tiles of {tile} rows where these divide the array, as here: blocks are multiples of "
            f"{tile}, or all of it",
            f"use {_nearest(block, tile, size)}",
        )
    elif block % full and element_bits(dtype) != 32:
        yield call_finding(
            call,
            "half-registers",
            "warning",
            value=f"{operand.name}: blocks of {block} rows of {dtype}",
            limit=f"a register holds {full} rows of {dtype}: some of them are only partly filled",
            fix=f"use a multiple of {full} rows",
        )


def _element_indices(call: KernelCall, operand: Operand) -> Iterator[Finding]:
    """Find blocks by element that do not begin with a tile, or not as far as the compiler can tell."""
    if not operand.by_element or operand.memory != "vmem":
        return
    rank = len(operand.shape)
    tiles = {rank - 1: LANES * packing(operand.dtype) if rank == 1 else LANES}
    if rank > 1:
        tiles = {rank - 2: array_tile_rows(operand.shape[-2], operand.dtype), **tiles}
    divisors = index_divisors(call, operand)
    for dimension, tile in tiles.items():
        if dimension in operand.by_element and divisors[dimension] % tile:
            yield _misaligned(
                call,
                operand,
                f"of the element that the index map gives along dimension {dimension} only a multiple of "
                f"{divisors[dimension]} is known",
                f"it has to see a multiple of {tile}: it follows products, and does not add",
                f"write the index as a product with {tile}, such as (i + 1) * {tile}, or use pl.multiple_of",
            )


def _misaligned(call: KernelCall, operand: Operand, value: str, limit: str, fix: str) -> Finding:
    return call_finding(call, "block-alignment", value=f"{operand.name}: {value}", limit=limit, fix=fix)


def _nearest(block: int, multiple: int, size: int) -> str:
    """Name the two legal sizes around a block."""
    below, above = block // multiple * multiple, -(-block // multiple) * multiple
    choices = [str(length) for length in (below, above) if 0 < length < size]
    return " or ".join([*choices, f"all {size}"])
