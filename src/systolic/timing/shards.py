"""Read from HLO how a compiled program's arguments are cut among devices, and cut them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from systolic.simulator import SimulationError

_PARAMETER = re.compile(r" parameter\((\d{1,9})\), sharding=\{([^{}]*)\}", re.ASCII)
# Tiles along each dimension, then the devices that hold them: a list, or a range, reshaped and transposed.
_TILED = re.compile(
    r"devices=\[(?P<tiles>[\d,]+)\](?:<=\[(?P<range>[\d,]+)\](?:T\((?P<turned>[\d,]+)\))?|(?P<list>[\d,]+))"
    r"(?P<replicated> last_tile_dim_replicate)?(?P<rest>.*)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sharding:
    """The cut of one array."""

    tiles: tuple[int, ...]  # along each dimension of the array
    place: Mapping[int, tuple[int, ...]]  # each partition's tile

    def part(self, array: np.ndarray, partition: int) -> np.ndarray:
        """Return a partition's part of the array. The last tiles may extend past its end, and are filled with 0."""
        sizes = [math.ceil(size / tiles) for size, tiles in zip(array.shape, self.tiles, strict=True)]
        starts = [at * size for at, size in zip(self.place[partition], sizes, strict=True)]
        part = array[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]
        return np.pad(part, [(0, size - part_size) for size, part_size in zip(sizes, part.shape, strict=True)])


def parameter_shardings(hlo_text: str) -> dict[int, Sharding]:
    """Return the shardings of the entry computation's parameters that are cut, by number; the others are whole.

    Raises:
      SimulationError: a sharding has an unknown form.
    """
    entry = hlo_text[max(0, hlo_text.rfind("\nENTRY ")) :]
    result = {int(match[1]): _sharding(match[2]) for match in _PARAMETER.finditer(entry)}
    return {number: sharding for number, sharding in result.items() if sharding is not None}


def _sharding(text: str) -> Sharding | None:
    if text in ("replicated", "maximal device=0"):
        return None
    tiled = _TILED.fullmatch(text)
    if tiled is None or tiled["rest"]:
        raise SimulationError(f"an argument has a sharding that is not understood: {text[:200]}")
    tiles = _numbers(tiled["tiles"])
    if tiled["list"]:
        devices = np.asarray(_numbers(tiled["list"]))
    else:
        devices = np.arange(math.prod(tiles)).reshape(_numbers(tiled["range"]))
        if tiled["turned"]:
            devices = devices.transpose(_numbers(tiled["turned"]))
    order = devices.reshape(tiles)
    dimensions = len(tiles) - bool(tiled["replicated"])
    place = {int(device): at[:dimensions] for at, device in np.ndenumerate(order)}
    return Sharding(tiles=tiles[:dimensions], place=place)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))
