"""Let every device take a detour, while one device is executed for all; see `translating.detours`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.words import joined, lane
from systolic.simulator.other_devices import OtherDevices
from systolic.simulator.translating.detours import Detour


class DetourSequencer(Protocol):
    """The methods of the sequencer, executed for all devices, that detours need."""

    dma_issue_cycles: int
    dma_wait_cycles: int
    iterations: IterationBudget
    parameter: Callable[[int], int]
    segment: Callable[..., int]
    start: Callable[..., int]
    wait: Callable[..., int | None]
    add: Callable[[int, int], None]
    store: Callable[[Any, Any], None]

    def load(self, address: int, comment: str) -> Any:
        """Read a word of scalar memory."""
        ...

    def operand(self, register: str) -> Any:
        """Read what the caller handed over in a register."""
        ...

    def blocked(self, where: str) -> None:
        """Note that the program waits for another core."""
        ...

    def too_long(self) -> None:
        """End a program that goes round and round."""
        ...


class DetourDevice:
    """The device that takes a detour: it answers with its own words.

    Its stores are kept separately until all devices are back. Copies and flags are the first device's: the other
    devices' acts are recorded and compared with them.
    """

    def __init__(self, sequencer: DetourSequencer, device: int, segment: Callable[..., int]) -> None:
        self._sequencer = sequencer
        self._device = device
        self._acts: list[tuple[Any, ...]] = []
        self._stored: dict[int, Any] = {}
        self.segment = segment
        self.parameter = sequencer.parameter
        self.iterations = sequencer.iterations
        self.too_long = sequencer.too_long

    @staticmethod
    def take(
        sequencer: DetourSequencer, others: OtherDevices, detour: Detour, time: int, jump: Lanes, values: Sequence[Any]
    ) -> Generator[int | None, None, tuple[Any, ...]]:
        """Let every device take a detour; return the time at which they are back, and registers."""
        # Devices that execute a segment at the same time find the units alike.
        segment = functools.cache(sequencer.segment)
        devices = [DetourDevice(sequencer, number, segment) for number in range(len(jump.values))]
        results: list[tuple[Any, ...]] = []
        for number, (device, jumps) in enumerate(zip(devices, jump.values, strict=True)):
            block = detour.taken if jumps else detour.following
            way = detour.run(time, device, block, *(lane(value, number) for value in values))
            results.append((yield from way) if number == 0 else _ended(way))
        if any(device._acts != devices[0]._acts for device in devices):
            others.first([device._acts for device in devices])
        for address in dict.fromkeys(address for device in devices for address in device._stored):
            before = sequencer.load(address, "")
            sequencer.store(
                address,
                joined([device._stored.get(address, lane(before, number)) for number, device in enumerate(devices)]),
            )
        times, *registers = zip(*results, strict=True)
        return (others.apart(times), *map(joined, registers))

    def lap(self, loop: int, time: int) -> None:
        """Do nothing: rounds of a detour are not timed."""

    def load(self, address: int, comment: str) -> Any:
        if address in self._stored:
            return self._stored[address]
        return lane(self._sequencer.load(address, comment), self._device)

    def store(self, address: int, value: Any) -> None:
        self._stored[address] = value

    def store_on_some(self, predicate: Any, address: int, value: Any) -> None:
        """Store nothing: a predicate that is neither true nor false is not known."""

    def operand(self, register: str) -> Any:
        return lane(self._sequencer.operand(register), self._device)

    def own(self, word: Any) -> Any:
        """Return the word: every word is this device's."""
        return word

    def start(self, time: int, *copy: Any) -> int:
        self._acts.append(copy)
        return time + self._sequencer.dma_issue_cycles if self._device else self._sequencer.start(time, *copy)

    def wait(self, time: int, *until: Any) -> int | None:
        self._acts.append(until)
        return time + self._sequencer.dma_wait_cycles if self._device else self._sequencer.wait(time, *until)

    def early_wait(self, time: int, *until: Any) -> int | None:
        """Return None: every wait is recorded in turn."""
        return None

    def add(self, flag: int, amount: int) -> None:
        self._acts.append((flag, amount))
        if not self._device:
            self._sequencer.add(flag, amount)

    def blocked(self, where: str) -> None:
        self._sequencer.blocked(where)


def _ended(way: Generator[int | None, None, tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the result of a path that waits for nothing."""
    while True:
        try:
            next(way)
        except StopIteration as end:
            return end.value
