"""The state of SparseCores at one moment, for `state`, which reads that of all else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol


class Reader(Protocol):
    """Reads a state; times and words of programs are compared in their own ways."""

    state: list[Any]

    def read(self, value: Any, name: str = "") -> None:
        """Read anything."""
        ...

    def time(self, time: float) -> None:
        """Read a time."""
        ...

    def word(self, value: Any) -> None:
        """Read a word of a program, or a list of them."""
        ...

    def words(self, words: Mapping[int, Any]) -> None:
        """Read words by address or number."""
        ...

    def flag(self, flag: Any) -> None:
        """Read a sync flag."""
        ...

    def programs(self, numbers: Iterable[int]) -> None:
        """Read numbers of programs of the schedule."""
        ...


def _sparse_cores(reader: Reader, cores: Any) -> None:
    for part in (cores._cores, cores._watched, cores._early):
        reader.read(part)
    for core, numbers in cores._to_launch.items():
        reader.state += (core, sorted(numbers))
        reader.word(list(cores._descriptors[core]))


def _sparse_core(reader: Reader, core: Any) -> None:
    reader.state += (core._program, core._launched - core._ended)
    reader.words(core.sequencer_memory)
    for name in ("flags", "tiles", "_barriers", "_functions", "_idle", "_stores"):
        reader.read(getattr(core, name))
    for time in (core.stored_at, core._free_at, core.launched):
        reader.time(time)


def _tile(reader: Reader, tile: Any) -> None:
    reader.state += (tile.number, tile.tasks_given - tile.tasks_done)
    reader.words(tile.memory)
    reader.read(tile.flags)
    for direction, free in tile.engines.items():
        reader.state.append(direction)
        reader.time(free)
    reader.time(tile.free_at)
    reader.read(tile.idle)


def _barrier(reader: Reader, barrier: Any) -> None:
    for tile, time in barrier.arrived.items():
        reader.state.append(tile)
        reader.time(time)
    reader.state.append(sorted(barrier.left))
    reader.programs(barrier.waiting)


def _machine(reader: Reader, machine: Any) -> None:
    reader.words(machine._memory)
    reader.words(machine._arguments)
    reader.word([] if machine._polled is None else list(machine._polled))
    reader.state.append(machine._polls)


def _flag(reader: Reader, flag: Any) -> None:
    if flag.decides:  # else its count has decided nothing in this round
        reader.flag(flag)
    flag.decides = False


def _launch(reader: Reader, launch: Any) -> None:
    reader.word(list(launch.words))


# By class.
SPARSE_READERS: Mapping[str, Callable[[Any, Any], None]] = {
    "Launch": _launch,
    "SparseCore": _sparse_core,
    "SparseCores": _sparse_cores,
    "SparseMachine": _machine,
    "TileState": _tile,
    "_Barrier": _barrier,
    "_Flag": _flag,
}
