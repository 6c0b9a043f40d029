"""How an array's elements lie in memory, as words of four bytes."""

from __future__ import annotations

import re

import numpy as np

from systolic.simulator.model.values import Unknown
from systolic.simulator.reading.hlo import HloShape

_LAYOUT = re.compile(r"([\d,]*)(?::(?:T((?:\([\d,]+\))+))?(?:S\(\d+\))?)?", re.ASCII)
_TILE = re.compile(r"\(([\d,]+)\)")
_WORD_BYTES = 4


def words_of(array: np.ndarray, shape: HloShape) -> list[int] | Unknown:
    """The words that an array makes in memory, with what pads its tiles set to zero.

    Elements are ordered by the layout's minor-to-major list. Its tiles cut the most minor dimensions, each the result
    of the one before: `T(8,128)(4,1)` puts four rows of bytes into one word.
    """
    found = _LAYOUT.fullmatch(shape.layout)
    if found is None or array.dtype.itemsize > _WORD_BYTES:
        return Unknown(f"an array of {array.dtype} in the layout {{{shape.layout}}}, which is not understood")
    order = [int(dimension) for dimension in found.group(1).split(",") if dimension]
    tiles = [[int(size) for size in tile.split(",")] for tile in _TILE.findall(found.group(2) or "")]
    if len(order) != array.ndim:
        return Unknown(f"an array of {array.ndim} dimensions in the layout {{{shape.layout}}}")
    ordered = array.transpose(order[::-1])
    for tile in tiles:
        while ordered.ndim < len(tile):
            ordered = ordered[np.newaxis]
        ordered = _tiled(ordered, tile)
    raw = np.ascontiguousarray(ordered).tobytes()
    return np.frombuffer(raw + bytes(-len(raw) % _WORD_BYTES), dtype="<u4").tolist()


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
