"""The layout of arrays in VMEM: tiles of eight rows by 128 lanes, packed where an element has fewer than 32 bits.

Found in libtpu 0.0.42.1's reports of copies of 150 arrays of six dtypes on v4, v5e, v6e and v7x, which all agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from systolic.schedule.legality import LANES

SUBLANES = 8  # rows of a vector register of 32-bit elements
REGISTER_BYTES = SUBLANES * LANES * 4
_WORD_BITS = 32
ALLOCATION_BYTES = 1024  # every allocation in VMEM is a multiple of it


def element_bits(dtype: str) -> int:
    """Count the bits of one element in VMEM. A truth value takes a word, and so does an element without bits, a key."""
    if dtype == "bool":
        return _WORD_BITS
    try:
        numpy_dtype = np.dtype(dtype)
    except TypeError:
        return _WORD_BITS
    if numpy_dtype.itemsize == 1:  # dtypes of 2 and 4 bits, too
        return ml_dtypes.iinfo(numpy_dtype).bits if "int" in dtype else ml_dtypes.finfo(numpy_dtype).bits
    return numpy_dtype.itemsize * 8


def packing(dtype: str) -> int:
    """Count the elements that share a word."""
    return max(1, _WORD_BITS // element_bits(dtype))


def array_tile_rows(rows: int, dtype: str) -> int:
    """Count the rows of the tiles in which an array of `rows` rows is stored; a block needs a multiple of them.

    The tiles have eight rows, or for arrays of fewer rows the next power of two. Elements of 8 and 4 bits have tiles of
    32 and 64 rows if these divide the rows of the array. 16-bit elements always have eight.
    """
    shared = packing(dtype)
    large = SUBLANES * shared
    if shared >= 4 and rows % large == 0:
        return large
    return min(SUBLANES * max(1, shared // 8), max(shared, 2 ** math.ceil(math.log2(max(1, rows)))))


def padded_bytes(shape: Sequence[int], dtype: str, *, tile_rows: int | None = None) -> int:
    """Count the bytes that an array or a block takes in VMEM.

    `tile_rows`: rows of the tiles of the array that a block is cut from; None: the rows for an array of this shape.
    """
    bits = element_bits(dtype)
    if not shape:
        return 4
    if len(shape) == 1:
        return math.ceil(shape[0] * bits / 8)
    *outer, rows, columns = shape
    tile = tile_rows or array_tile_rows(rows, dtype)
    padded_rows = math.ceil(rows / tile) * tile
    padded_columns = math.ceil(columns / LANES) * LANES
    return math.prod(outer) * padded_rows * padded_columns * bits // 8


def scalar_bytes(shape: Sequence[int], dtype: str) -> int:
    """Count the bytes that an array takes in SMEM, where each row fills whole groups of 128 elements."""
    if not shape:
        return 4
    return math.prod(shape[:-1]) * math.ceil(shape[-1] / LANES) * LANES * element_bits(dtype) // 8
