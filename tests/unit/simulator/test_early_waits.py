"""Waits of a program on a slice that are over before its turn comes: as in turn, or not at all."""

from __future__ import annotations

import pytest

from systolic.chips import chip
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.schedule import Schedule

MACHINE = chip("v6e").machine
FLAG, GRANULES = 64, 4
LATENCY = 100  # cycles until an act of another program lands here
NEXT_ACT = 300


def engine(landings: list[tuple[int, int]]) -> DmaEngine:
    """Return a device to whose flag copies are under way (time, granules), while another program is about to act."""
    schedule = Schedule(patient=True)
    dma = DmaEngine(MACHINE, 1, schedule=schedule)
    dma.least_latency_cycles = LATENCY
    schedule.at(NEXT_ACT, lambda: None)
    for time, granules in landings:
        dma.land(0, "op", FLAG, time, granules, "fusion")
    return dma


@pytest.mark.parametrize(
    "landings", [[(350, 4)], [(20, 4)], [(20, 1), (399, 3)], [(50, 1), (20, 3)], [(20, 4), (900, 4)]]
)
def test_a_wait_for_what_is_known_is_over_as_in_turn(landings: list[tuple[int, int]]) -> None:
    ahead, in_turn = engine(landings), engine(landings)
    in_turn.schedule.now = 400.0
    waited: list[list[object]] = [[], []]
    for dma, noted in zip((ahead, in_turn), waited, strict=True):
        dma.waited = lambda *wait, noted=noted: noted.append(wait)
    end = in_turn.wait(0, "op", 30, FLAG, GRANULES, "copy")
    assert ahead.early_wait(0, "op", 30, FLAG, GRANULES, "copy") == end
    last = max(30, max(time for time, _ in landings[:2] if time < 400))
    assert end == last + MACHINE.dma_wait_cycles
    assert waited[0] == waited[1] == [(0, "fusion", 30, last)]
    assert ahead.counts == in_turn.counts
    assert ahead.count(0, "op", 400, FLAG) == in_turn.count(0, "op", 400, FLAG)


@pytest.mark.parametrize(
    ("landings", "time"),
    [
        ([(400, 4)], 30),  # another program may let more land before
        ([(350, 3)], 30),
        ([], 30),
        ([(20, 4)], 400),  # and what it lets land until then may change the flag's label
    ],
)
def test_a_wait_that_others_may_change_is_left_for_its_turn(landings: list[tuple[int, int]], time: int) -> None:
    dma = engine(landings)
    assert dma.early_wait(0, "op", time, FLAG, GRANULES, "copy") is None
    assert dma.counts == engine([]).counts
    assert dma.count(0, "op", 1000, FLAG) == sum(granules for _, granules in landings)


def test_a_device_of_which_nothing_is_known_settles_nothing_after_the_next_act() -> None:
    dma = engine([(NEXT_ACT, 4)])
    dma.least_latency_cycles = 0.0
    assert dma.early_wait(0, "op", 30, FLAG, GRANULES, "copy") is None
