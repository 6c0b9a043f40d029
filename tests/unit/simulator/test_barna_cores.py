"""BarnaCores: shards go both ways around a ring, each passed on when it has arrived."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from systolic.chips import chip
from systolic.simulator import SimulationError
from systolic.simulator.barna_cores import BarnaCores
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.other_devices import Shard

V4 = chip("v4")
SHARDS, GRANULES, NEXT, PREVIOUS, SECOND_RING, LAST = 4, 6, 7, 9, 21, 16
BARNA_CORE = 2
TAKES = 100.0  # cycles from one device to the next


class Ring:
    """Devices in a ring; shards that they send arrive a fixed time later."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.dmas = [DmaEngine(V4.machine, 2) for _ in range(size)]
        self.cores = [
            BarnaCores(dma, V4.machine.granule_bytes, cast("Any", _At(self, number)))
            for number, dma in enumerate(self.dmas)
        ]
        self.sent: list[tuple[float, int, Shard]] = []  # not yet arrived
        self.copies = Counter[tuple[int, int]]()

    def start(self, number: int, time: float, **told: int) -> None:
        words = {
            SHARDS: self.size,
            GRANULES: 8,
            NEXT: (number + 1) % self.size,
            PREVIOUS: (number - 1) % self.size,
            **{int(flag): value for flag, value in told.items()},
            LAST: 0,
        }
        for flag, value in words.items():
            address = (4 + BARNA_CORE) << 14 | flag
            self.cores[number].set(0, "gather", time, address, value, "hbm" if flag == SHARDS else "")

    def run(self) -> None:
        while self.sent:
            self.sent.sort(key=lambda one: one[0])
            time, sender, shard = self.sent.pop(0)
            self.cores[shard.chip].arrived(shard.barna_core, time + TAKES, is_forward=shard.forward)
            self.cores[sender].left(shard.barna_core, time + TAKES / 2)

    def done(self, number: int) -> int:
        """The time at which the device's first core can go on."""
        at = self.dmas[number].wait(0, "main", 0, BARNA_CORE + 1, 1, "semaphore")
        assert at is not None
        return at - V4.machine.dma_wait_cycles


class _At:
    def __init__(self, ring: Ring, number: int) -> None:
        self._ring, self._number = ring, number

    def pass_on(self, time: float, shard: Shard) -> None:
        assert (shard.size_bytes, shard.space) == (8 * V4.machine.granule_bytes, "hbm")
        self._ring.copies[self._number, shard.chip] += 1
        self._ring.sent.append((time, self._number, shard))


@pytest.mark.parametrize(("size", "forward", "backward"), [(2, 1, 0), (5, 2, 2), (8, 4, 3)])
def test_every_shard_comes_round_the_shorter_way(size: int, forward: int, backward: int) -> None:
    ring = Ring(size)
    for number in range(size):
        ring.start(number, 10.0)
    ring.run()
    for number in range(size):
        assert ring.copies[number, (number + 1) % size] == forward + (backward if size == 2 else 0)
        if size > 2:
            assert ring.copies[number, (number - 1) % size] == backward
        assert ring.done(number) == 10 + forward * TAKES


def test_shards_that_arrive_early_are_passed_on_later() -> None:
    ring = Ring(4)
    for number in range(3):
        ring.start(number, 0.0)
    ring.run()
    ring.start(3, 1000.0)
    ring.run()
    assert ring.done(3) >= 1000
    assert max(map(ring.done, range(4))) <= 1000 + 2 * TAKES
    assert sum(ring.copies.values()) == 4 * 3


def test_another_all_gather_may_follow() -> None:
    ring = Ring(3)
    for time in (0.0, 5000.0):
        for number in range(3):
            ring.start(number, time)
        ring.run()
    assert sum(ring.copies.values()) == 2 * 3 * 2


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(SimulationError, match="not around one ring"):
        Ring(4).start(0, 0.0, **{str(SECOND_RING): 1})
    ring = Ring(4)
    ring.start(0, 0.0)
    with pytest.raises(SimulationError, match="before another one has ended"):
        ring.start(0, 1.0)
