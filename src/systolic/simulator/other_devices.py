"""The slice as one of its devices sees it: the devices that it can send to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.memory import Memory
from systolic.simulator.reading.barriers import Barrier
from systolic.simulator.schedule import Schedule
from systolic.simulator.sparse_core.outside import Outside

# Devices on whose behalf one is executed: all, which do the same, or all, as slow as the slowest of them.
Represented = Literal["itself", "all", "the slowest"]


@dataclass(frozen=True, slots=True)
class RemoteTarget:
    """The target of a copy or a signal: a device of the slice, and one of its cores."""

    device: int
    core: int
    remote: bool  # to be found at a place of the slice; else the copy stays in its device
    away: bool = False  # not the sender itself


@dataclass(slots=True)  # not frozen: there is one for each copy that is executed
class RemoteCopy:
    """A copy to a device of the slice, perhaps to the sender itself."""

    program: str
    label: str  # the communication that it belongs to
    flag: int
    source_flag: int
    granules: int
    source: str
    destination: str
    run_bytes: int | None
    target: RemoteTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A shard of a BarnaCore's all-gather on its way to a neighbour in the ring."""

    barna_core: int
    forward: bool  # to the next device; else to the one before
    chip: Any  # of the neighbour
    label: str  # the all-gather
    size_bytes: int
    space: str  # where it lies on each device


class OtherDevices(Outside, Protocol):
    """The slice as one of its devices sees it."""

    @property
    def represents(self) -> Represented:
        """Return the devices on whose behalf this one is executed."""
        ...

    def is_idle_from(self, time: float) -> bool:
        """True if nothing is under way on the links of the device that represents all from a time on."""
        ...

    def alone(self, schedule: Schedule, dma: DmaEngine, memories: Mapping[int, Memory]) -> OtherDevices:
        """Return the slice as an operation sees it that is executed alone, with memories by core."""
        ...

    @property
    def has_acted(self) -> bool:
        """True if the operation that was executed alone has sent or signalled anything."""
        ...

    def repeat(self, time: int, alone: Any) -> None:
        """Count again, from a time on, what an operation did that was executed alone."""
        ...

    def target(self, word: int, flag: int) -> RemoteTarget:
        """Return the target of a copy that signals a flag there."""
        ...

    def copy(self, core: int, time: int, copy: RemoteCopy) -> int:
        """Send a copy; return when the core goes on."""
        ...

    def signal(self, core: int, program: str, time: int, address: int, amount: int, label: str) -> None:
        """Add to a flag."""
        ...

    def pass_on(self, time: float, shard: Shard) -> None:
        """Send a shard of an all-gather to its next device, where it arrives at the BarnaCore of the same number."""
        ...

    def memory(self, target: RemoteTarget) -> Memory:
        """Return the memory of a core."""
        ...

    def together(self, core: int, time: int, barrier: Barrier, label: str) -> int | None:
        """Return when a barrier ends; None: it has to be executed."""
        ...

    def first(self, words: Sequence[Any]) -> Any:
        """Return the representative device's word."""
        ...

    def communications_of(self, core: int) -> Any:
        """Return the totals of a core's communications."""
        ...

    def apart(self, times: Sequence[int]) -> int:
        """Return when devices go on after a detour, each with its own time."""
        ...
