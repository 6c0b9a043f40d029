"""The pipe to HBM: when it has carried a copy's bytes, also where a busy period is followed by a slow one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from simulator_listings import V5E

from systolic.chips import MachineModel, chip
from systolic.simulator.hardware.hbm_pipe import HbmPipe

PERIOD, SLOW, SHARE, LOAD = 1000, 400, 0.5, 0.75  # cycles; shares


def slowing(**changes: float) -> MachineModel:
    hz = V5E.machine.clock_hz
    periods = {"hbm_slow_period_s": PERIOD / hz, "hbm_slow_s": SLOW / hz}
    return replace(V5E.machine, **{**periods, "hbm_slow_share": SHARE, "hbm_slow_load": LOAD, **changes})


@pytest.mark.parametrize(
    ("copies", "end"),
    [
        ([(0, 1000)], 1000),  # nothing comes before the first period
        ([(0, 1100)], 1200),  # bytes of 100 cycles take 200
        ([(0, 1300)], 1500),  # 400 cycles at half the rate, and 100 at the full one
        ([(0, 1000 + 200 + 600 + 200 + 1)], 2401),
        ([(0, 700), (900, 200)], 1200),  # busy for 800 of 1,000 cycles
        ([(0, 600), (900, 200)], 1100),  # busy for 700 of 1,000 cycles: too little
        ([(0, 1000), (1500, 400), (2000, 100)], 2100),  # after a period with 400 busy cycles
        ([(0, 1000), (2000, 100)], 2100),  # and after one with none
        ([(0, 1000), (1000, 400), (1500, 300)], 1900),
    ],
)
def test_hbm_is_slow_after_a_busy_period(copies: list[tuple[int, int]], end: int) -> None:
    pipe = HbmPipe(slowing())
    for time, cycles in copies:
        assert pipe.carry(time, cycles) >= time
    assert pipe.free == end


def test_time_that_it_is_busy_counts_and_not_bytes() -> None:
    # In slow periods bytes of 800 cycles are carried.
    pipe = HbmPipe(slowing(hbm_slow_load=0.9))
    for _ in range(100):
        pipe.carry(0, 50)
    assert pipe.free == 1000 + 5 * 1000  # 1,000 in the first period, and 800 in each of five


@pytest.mark.parametrize(
    "never", [{"hbm_slow_period_s": 0.0}, {"hbm_slow_s": 0.0}, {"hbm_slow_share": 1.0}, {"hbm_slow_load": 1.0}]
)
def test_without_a_slow_part_the_rate_is_the_same_all_the_time(never: dict[str, float]) -> None:
    pipe = HbmPipe(slowing(**never))
    pipe.carry(10, 1e6)
    assert pipe.free == 1e6 + 10


def test_a_given_rate_lasts_and_can_be_repeated() -> None:
    alone = HbmPipe(slowing(), rate=0.5)
    alone.carry(100, 100)
    assert (alone.free, alone.rate(7)) == (300, (0.5, math.inf))
    pipe = HbmPipe(slowing())
    pipe.carry(0, 1000)
    pipe.repeat(1050, alone)
    assert (pipe.free, pipe.busy_cycles) == (1350, 200)


@pytest.mark.parametrize(
    ("copies", "end"),
    [
        ([(0, 100, "read"), (0, 40, "write"), (0, 100, "read")], 100 + 40 + 100 + 2 * 4),  # a tenth of 40, twice
        ([(0, 100, "read"), (0, 40, "read"), (0, 100, "read")], 240),
        ([(0, 100, "read"), (101, 40, "write")], 141),  # after a pause
        ([(0, 100, "read"), (0, 40, ""), (0, 100, "write")], 240),
    ],
)
def test_reads_and_writes_in_turns_cost_time(copies: list[tuple[int, int, str]], end: int) -> None:
    pipe = HbmPipe(replace(V5E.machine, hbm_turn_cost=0.1))
    for time, cycles, direction in copies:
        pipe.carry(time, cycles, direction)
    assert pipe.free == pytest.approx(end)


def test_only_v6e_is_slow() -> None:
    assert [name for name in ("v4", "v5e", "v5p", "v6e", "v7x") if chip(name).machine.hbm_slow_period_s] == ["v6e"]


def test_links_leave_the_rest_of_the_rate() -> None:
    pipe = HbmPipe(replace(V5E.machine, hbm_slow_period_s=0.0))
    quarter = pipe.bytes_per_cycle / 4
    assert pipe.left == 1
    pipe.serve_links(0, quarter)
    pipe.carry(0, 300)
    assert pipe.free == pytest.approx(400)
    # At 200 half is carried: what is left takes half of the rate, and from 300 on all of it.
    pipe.serve_links(200, quarter)
    pipe.serve_links(300, -2 * quarter)
    assert pipe.free == pytest.approx(300 + 150 - 50)
    assert pipe.left == 1
    # In all, links had 200 quarters of a cycle and 100 halves: nothing is lost.
    assert pipe.free == pytest.approx(300 + 200 / 4 + 100 / 2)


def test_links_slow_a_slow_part_too() -> None:
    pipe = HbmPipe(slowing())
    pipe.carry(0, 1000)
    pipe.serve_links(1000, pipe.bytes_per_cycle / 2)
    pipe.carry(1000, 50)
    assert pipe.free == pytest.approx(1000 + 50 / SHARE / 0.5)


def test_links_that_need_more_than_there_is_leave_a_tenth() -> None:
    pipe = HbmPipe(replace(V5E.machine, hbm_slow_period_s=0.0))
    pipe.serve_links(0, 3 * pipe.bytes_per_cycle)
    pipe.carry(0, 100)
    assert pipe.free == pytest.approx(1000)


def test_links_do_not_stretch_pauses() -> None:
    machine = replace(V5E.machine, hbm_slow_period_s=0.0)
    # A call that is looked up ends at 1,000: what it copies until then is not known any more.
    alone, pipe = HbmPipe(machine), HbmPipe(machine)
    alone.carry(900, 100)
    pipe.repeat(0, alone)
    pipe.serve_links(0, pipe.bytes_per_cycle / 2)
    assert pipe.free == 1000
    # A copy that begins later than the links takes longer from its begin on.
    pipe.carry(2000, 100)
    pipe.serve_links(1500, -pipe.bytes_per_cycle / 2)
    assert pipe.free == 2000 + 100


@pytest.mark.parametrize("copies", [1, 4, 5, 7, 9])
@pytest.mark.parametrize("begin", [0, 130, 990])
@pytest.mark.parametrize("pause", [20, 100])
def test_what_is_carried_across_periods_can_be_repeated(copies: int, begin: int, pause: int) -> None:
    """Periods of 1,000 cycles, of which copies of 300 fill 300 of 320, which is too much, or of 400."""
    every = 300 + pause
    alone, direct, repeated = HbmPipe(slowing(), rate=1.0), HbmPipe(slowing()), HbmPipe(slowing())
    steady = True
    for number in range(copies):
        alone.carry(number * every, 300)
        direct.carry(begin + number * every, 300)
        steady &= direct.free == begin + alone.free
    assert repeated.can_repeat(begin, alone, across_periods=True) == steady
    assert repeated.can_repeat(begin, alone, across_periods=False) == (begin + alone.free <= PERIOD)
    if steady:
        repeated.repeat(begin, alone)
        for later in (0, 1000, 2000):
            at = direct.free + later
            direct.carry(at, 700)
            repeated.carry(at, 700)
            assert (repeated.free, repeated.busy_cycles) == (direct.free, direct.busy_cycles)
