"""A SparseCore program that has been translated: ready to run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseFunction:
    """A section as a Python function; `entries` has the first block of each function of the listing."""

    name: str
    run: Callable[..., Generator[float | None, None, float]]  # (time, machine, block) → time
    entries: Mapping[str, int]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseProgram:
    name: str
    scs: SparseFunction
    tec: SparseFunction | None  # None where the tiles have nothing to do
    symbols: Mapping[str, int]
    granules: int
    comes_with_tile_code: bool
