"""How an array's elements lie in memory, as words of four bytes."""

from __future__ import annotations

import re

import numpy as np

from systolic.simulator.hlo import HloShape
from systolic.simulator.values import Unknown

_LAYOUT = re.compile(r"([\d,]*)(?::T\(([\d,]+)\))?(\([\d,()]*\))?(?:S\(\d+\))?$", re.ASCII)
_WORD_BYTES = 4


def words_of(array: np.ndarray, shape: HloShape) -> list[int] | Unknown:
    """The words that an array of 32-bit elements makes in memory, with what pads its tiles set to zero.

    Elements are ordered by the layout's minor-to-major list; its tile cuts the most minor dimensions, and tiles follow
    each other. Narrower types are packed several to a word, and not followed.
    """
    if array.dtype.itemsize != _WORD_BYTES:
        return Unknown(f"an array of {array.dtype}, of which contents are not followed")
    found = _LAYOUT.match(shape.layout)
    if found is None or found.group(3):
        return Unknown(f"an array in the layout {{{shape.layout}}}, which is not understood")
    order = [int(dimension) for dimension in found.group(1).split(",") if dimension]
    tile = [int(size) for size in found.group(2).split(",")] if found.group(2) else []
    if len(order) != array.ndim:
        return Unknown(f"an array of {array.ndim} dimensions in the layout {{{shape.layout}}}")
    major_first = array.transpose(order[::-1])
    while major_first.ndim < len(tile):
        major_first = major_first[np.newaxis]
    if tile:
        major_first = _tiled(major_first, tile)
    return np.ascontiguousarray(major_first).view(np.uint32).ravel().tolist()


def _tiled(array: np.ndarray, tile: list[int]) -> np.ndarray:
    """Pads the last dimensions to whole tiles and makes each tile's elements contiguous."""
    outer = array.ndim - len(tile)
    padding = [(0, 0)] * outer + [(0, -size % step) for size, step in zip(array.shape[outer:], tile, strict=True)]
    padded = np.pad(array, padding)
    split: list[int] = list(padded.shape[:outer])
    for size, step in zip(padded.shape[outer:], tile, strict=True):
        split += [size // step, step]
    counts = [outer + 2 * i for i in range(len(tile))]
    inner = [outer + 2 * i + 1 for i in range(len(tile))]
    return padded.reshape(split).transpose([*range(outer), *counts, *inner])
