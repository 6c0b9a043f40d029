"""The surroundings of a device of a slice: targets that it can send to, and the routes to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from systolic.simulator.barna_cores import BarnaCores
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.memory import Memory
from systolic.simulator.other_devices import RemoteTarget, Represented
from systolic.simulator.reading.barriers import Barrier
from systolic.simulator.schedule import Schedule
from systolic.simulator.slice.addresses import Addresses
from systolic.simulator.slice.network import Ended, Network, Pipes
from systolic.simulator.slice.routes import Route, Routes
from systolic.simulator.sparse_core.device import SparseCores


class SliceDevice(Protocol):
    """A device as its senders and its surroundings see it."""

    number: int
    dma: DmaEngine
    sparse_cores: SparseCores
    barna_cores: BarnaCores
    first_sparse_core: int

    def memory_of(self, core: int) -> Memory:
        """Return the memory of a core."""
        ...


class Surroundings(Protocol):
    """The slice around a device."""

    schedule: Schedule
    clock_hz: float
    routes: Routes

    @property
    def represents(self) -> Represented:
        """Return the devices on whose behalf one is executed."""
        ...

    def is_idle_from(self, time: float) -> bool:
        """True if nothing is under way on the links from a time on; only of a slice with one device."""
        ...

    def alone(self, schedule: Schedule) -> Surroundings:
        """Return the same slice, with nothing under way, for an operation that is executed alone."""
        ...

    def repeat(self, alone: Any) -> None:
        """Count again what an operation did that was executed alone."""
        ...

    def name(self, device: SliceDevice) -> str:
        """Name a device in messages."""
        ...

    def ids(self, number: int) -> Any:
        """Return the id of the device that has this number, or those of all that it represents."""
        ...

    def copy_target(self, sender: int, word: Any, flag: Any) -> RemoteTarget:
        """Return the target of a copy that signals a flag there."""
        ...

    def signal_target(self, sender: int, address: Any) -> RemoteTarget:
        """Return the target of a signal."""
        ...

    def chip_target(self, sender: int, chip: Any) -> RemoteTarget:
        """Return the target of a copy that names a chip."""
        ...

    def sparse_copy_target(self, sender: int, word: int, flag: int) -> RemoteTarget:
        """Return the target of a SparseCore's copy."""
        ...

    def sparse_signal_target(self, sender: int, address: int) -> RemoteTarget:
        """Return the target of a SparseCore's signal."""
        ...

    def route(self, sender: SliceDevice, target: RemoteTarget) -> Route:
        """Return the route to a device."""
        ...

    def receiver(self, sender: SliceDevice, target: RemoteTarget) -> SliceDevice:
        """Return the device of a target."""
        ...

    def send(self, sender: SliceDevice, time: float, route: Route, size_bytes: int, ended: Ended, pipes: Pipes) -> None:
        """Send bytes from `time` on, through those pipes to HBM; `ended` is called when the last has left."""
        ...

    def barrier_end(self, time: int, barrier: Barrier, wait_cycles: int, name: str) -> int | None:
        """Return when a barrier of an operation ends; None: devices execute it."""
        ...

    def back_together(self, times: Sequence[int]) -> int:
        """Return when devices go on after a detour, each with its own time."""
        ...

    def largest(self, sizes: Sequence[int]) -> int:
        """Return the size that is timed where devices copy different sizes, in bytes."""
        ...

    def first(self, words: Sequence[Any]) -> Any:
        """Return the representative device's word for its own work."""
        ...

    def arriving(self, target: RemoteTarget, amounts: Sequence[int]) -> int:
        """Return the amount that arrives at device 0, from the amounts that every device sends to its target."""
        ...


@dataclass(slots=True, kw_only=True)
class AllDevices:
    """A slice whose devices are all simulated."""

    schedule: Schedule
    clock_hz: float
    routes: Routes
    network: Network
    addresses: Addresses
    devices: Sequence[SliceDevice]  # by id

    @property
    def represents(self) -> Represented:
        return "itself"

    def is_idle_from(self, time: float) -> bool:
        raise AssertionError("other devices act on a device of its own")

    def alone(self, schedule: Schedule) -> Surroundings:
        raise AssertionError("other devices act on a device of its own")

    def repeat(self, alone: Any) -> None:
        raise AssertionError("other devices act on a device of its own")

    def name(self, device: SliceDevice) -> str:
        return f"device {device.number}"

    def ids(self, number: int) -> int:
        return number

    def copy_target(self, sender: int, word: Any, flag: Any) -> RemoteTarget:
        return self.addresses.of_copy(sender, word, flag)

    def signal_target(self, sender: int, address: Any) -> RemoteTarget:
        return self.addresses.of_signal(sender, address)

    def chip_target(self, sender: int, chip: Any) -> RemoteTarget:
        return self.addresses.of_chip(sender, chip)

    def sparse_copy_target(self, sender: int, word: int, flag: int) -> RemoteTarget:
        return self.addresses.of_sparse_copy(sender, word, flag)

    def sparse_signal_target(self, sender: int, address: int) -> RemoteTarget:
        return self.addresses.of_sparse_signal(sender, address)

    def route(self, sender: SliceDevice, target: RemoteTarget) -> Route:
        return self.routes.between(sender.number, target.device)

    def receiver(self, sender: SliceDevice, target: RemoteTarget) -> SliceDevice:
        return self.devices[target.device]

    def send(self, sender: SliceDevice, time: float, route: Route, size_bytes: int, ended: Ended, pipes: Pipes) -> None:
        self.network.send(sender.number, time, route, size_bytes, ended, pipes)

    def barrier_end(self, time: int, barrier: Barrier, wait_cycles: int, name: str) -> int | None:
        """Return None: devices execute the barrier."""
        return None

    def back_together(self, times: Sequence[int]) -> int:
        """Return the times: each device takes its own way."""
        raise AssertionError("a device of its own has no words of others")

    def largest(self, sizes: Sequence[int]) -> int:
        raise AssertionError("a device of its own has no words of others")

    def first(self, words: Sequence[Any]) -> Any:
        raise AssertionError("a device of its own has no words of others")

    def arriving(self, target: RemoteTarget, amounts: Sequence[int]) -> int:
        raise AssertionError("a device of its own has no words of others")
