"""The sequencer and the tiles of one SparseCore, as a program that runs on them sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from systolic.simulator.hardware.memory import Words
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.schedule import Waited
from systolic.simulator.sparse_core.flags import SparseFlags
from systolic.simulator.sparse_core.outside import SparseCopy


class CoreActions(Protocol):
    """Requests of a program to its SparseCore."""

    @property
    def flags(self) -> SparseFlags:
        """Flags of the sequencer."""
        ...

    @property
    def sequencer_memory(self) -> dict[int, int | Unknown]:
        """Words of the sequencer's scalar memory."""
        ...

    stored_at: float  # when the sequencer last stored a word of its memory

    def wait_for_store(self) -> None:
        """Let a tile wait until then."""
        ...

    def stored(self, time: float) -> None:
        """Note that the sequencer has stored a word."""
        ...

    @property
    def launched(self) -> float:
        """When the program was launched."""
        ...

    @property
    def tiles(self) -> Sequence[TileState]:
        """All tiles."""
        ...

    def barrier(self, number: int, tile: int, time: float) -> float | None:
        """Wait for all tiles; None while some are missing."""
        ...

    def start_task(self, time: float, arguments: Sequence[int | Unknown], tiles: int) -> None:
        """Start a function of the program on the tiles of a mask."""
        ...

    def code_copied(self, source: int, destination: int) -> None:
        """Note that a function of the tiles now begins at an address of their instruction memory."""
        ...

    def copy(self, copy: SparseCopy) -> None:
        """Start a copy to this device or another."""
        ...

    def table_words(self, begin: int, count: int) -> Words:
        """Return words of the program's table in HBM, from a granule on."""
        ...

    def signal_outside(self, time: float, address: int | Unknown, amount: int) -> None:
        """Signal a flag of another core."""
        ...


@dataclass(slots=True)
class TileState:
    """The state of a tile from one task to the next."""

    number: int
    flags: SparseFlags
    memory: dict[int, int | Unknown] = field(default_factory=dict)
    engines: dict[str, float] = field(default_factory=dict)  # when each is free again, by the stream's direction
    free_at: float = 0.0
    tasks_done: int = 0
    idle: Waited = field(default_factory=Waited)  # its next task waits for that
    tasks_given: int = 0
