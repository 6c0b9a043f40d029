"""The layout of an array's elements in memory, as words of four bytes."""

from __future__ import annotations

import math
import re

import numpy as np

from systolic.simulator.hardware.values import Unknown
from systolic.simulator.reading.hlo import HloShape

_LAYOUT = re.compile(r"([\d,]*)(?::(?:T((?:\([\d,]+\))+))?(?:S\(\d+\))?)?", re.ASCII)
_TILE = re.compile(r"\(([\d,]+)\)")
_WORD_BYTES = 4
_MAX_WORDS = 1 << 25  # with padding; an array that decides something is small
_MAX_DIMENSIONS = 32


def words_of(array: np.ndarray, shape: HloShape) -> list[int] | Unknown:
    """Lay out an array in memory as words; padding of its tiles is zero.

    Elements are ordered by the layout's minor-to-major list. Its tiles cut the most minor dimensions, each the result
    of the one before: `T(8,128)(4,1)` puts four rows of bytes into one word.
    """
    match = _LAYOUT.fullmatch(shape.layout)
    if match is None or array.dtype.itemsize > _WORD_BYTES:
        return Unknown(f"an array of {array.dtype} in the layout {{{shape.layout}}}, which is not understood")
    try:
        order = [int(dimension) for dimension in match.group(1).split(",") if dimension]
        tiles = [[int(size) for size in tile.split(",")] for tile in _TILE.findall(match.group(2) or "")]
    except ValueError:  # no digits between two commas, or five thousand
        return Unknown(f"an array of {array.dtype} in a layout that is not understood")
    if sorted(order) != list(range(array.ndim)) or any(min(tile) < 1 or len(tile) > _MAX_DIMENSIONS for tile in tiles):
        return Unknown(f"an array of {array.ndim} dimensions in the layout {{{shape.layout}}}")
    ordered = array.transpose(order[::-1])
    for tile in tiles:
        while ordered.ndim < len(tile):
            ordered = ordered[np.newaxis]
        if _tiled_words(ordered, tile) > _MAX_WORDS or ordered.ndim + len(tile) > _MAX_DIMENSIONS:
            return Unknown(f"an array in tiles so large that they are not followed: {{{shape.layout}}}")
        ordered = _tiled(ordered, tile)
    raw = np.ascontiguousarray(ordered).tobytes()
    return np.frombuffer(raw + bytes(-len(raw) % _WORD_BYTES), dtype="<u4").tolist()


def _tiled_words(array: np.ndarray, tile: list[int]) -> int:
    sizes = array.shape[array.ndim - len(tile) :]
    padded = math.prod(-(-size // step) * step for size, step in zip(sizes, tile, strict=True))
    return padded * math.prod(array.shape[: array.ndim - len(tile)])


def _tiled(array: np.ndarray, tile: list[int]) -> np.ndarray:
    """Pad the last dimensions to whole tiles and make each tile's elements contiguous."""
    outer = array.ndim - len(tile)
    padding = [(0, 0)] * outer + [(0, -size % step) for size, step in zip(array.shape[outer:], tile, strict=True)]
    padded = np.pad(array, padding)
    split: list[int] = list(padded.shape[:outer])
    for size, step in zip(padded.shape[outer:], tile, strict=True):
        split += [size // step, step]
    counts = [outer + 2 * i for i in range(len(tile))]
    inner = [outer + 2 * i + 1 for i in range(len(tile))]
    return padded.reshape(split).transpose([*range(outer), *counts, *inner])


def array_bytes(shape: HloShape) -> int:
    """Return an array's bytes, with its tiles' padding; raise ValueError if the element type's name has no size."""
    bits = 8 if shape.dtype == "pred" else int(re.sub(r"\D.*", "", shape.dtype.lstrip("bfscu")))
    match = _LAYOUT.fullmatch(shape.layout)
    sizes = list(shape.sizes)
    if match is not None and match.group(1) and match.group(2):
        order = [int(dimension) for dimension in match.group(1).split(",")]
        tile = [int(size) for size in _TILE.findall(match.group(2))[0].split(",")]
        for dimension, step in zip(order, reversed(tile), strict=False):
            sizes[dimension] = -(-sizes[dimension] // step) * step
    return math.prod(sizes) * bits // 8
