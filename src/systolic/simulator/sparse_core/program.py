"""SparseCore programs that have been translated: ready to run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from systolic.simulator.hardware.memory import WORD_BYTES


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsePrograms:
    """All programs that a device's SparseCores may run."""

    programs: tuple[SparseProgram, ...] = ()  # in the order in which they were compiled
    names: Mapping[int, str] = field(default_factory=dict)  # of launched ones, by the number in their descriptors
    images: bytes = b""  # of theirs in HBM, each after the tables that it looks up; empty: not known

    @property
    def image_words(self) -> Sequence[int]:
        """The images as words, without a copy: all devices of a slice look up the same."""
        whole = len(self.images) // WORD_BYTES * WORD_BYTES
        return memoryview(self.images)[:whole].cast("I")
