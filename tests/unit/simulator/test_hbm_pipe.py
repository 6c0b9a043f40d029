"""The pipe to HBM: when it has carried a copy's bytes, also where HBM is slow for a part of each period."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from simulator_listings import V5E

from systolic.chips import MachineModel, chip
from systolic.simulator.hardware.hbm_pipe import HbmPipe

PERIOD, SLOW, SHARE = 1000, 400, 0.5  # cycles; slow from 1000 to 1400, from 2000 to 2400, …


def slowing(**changes: float) -> MachineModel:
    hz = V5E.machine.clock_hz
    periods = {"hbm_slow_period_s": PERIOD / hz, "hbm_slow_s": SLOW / hz, "hbm_slow_share": SHARE}
    return replace(V5E.machine, **{**periods, **changes})


@pytest.mark.parametrize(
    ("begin", "cycles", "end"),
    [
        (0, 1000, 1000),  # the first period is never slow
        (900, 200, 1200),  # 100 cycles' worth of bytes at the full rate, the rest at half
        (900, 400, 1500),  # and the last 100 after the slow part
        (1000, 200, 1400),
        (1400, 600, 2000),
        (0, 1000 + 200 + 600 + 200 + 1, 2401),
    ],
)
def test_bytes_take_longer_while_hbm_is_slow(begin: int, cycles: int, end: int) -> None:
    pipe = HbmPipe(slowing())
    assert pipe.carry(begin, cycles) == begin
    assert pipe.free == end


def test_copies_follow_each_other_in_time_that_cycle_counts_confirm() -> None:
    pipe = HbmPipe(slowing(), free=350.0)
    sizes = [37.5, 800.0, 3.25, 1234.0, 90.0] * 7
    for size in sizes:
        assert pipe.carry(0, size) >= 350.0
    work, now = sum(sizes), 350.0
    while work > 0:  # quarter by quarter of a cycle
        work -= 0.25 * (SHARE if now >= PERIOD and now % PERIOD < SLOW else 1.0)
        now += 0.25
    assert pipe.free == pytest.approx(now, abs=0.5)


@pytest.mark.parametrize("never", [{"hbm_slow_period_s": 0.0}, {"hbm_slow_s": 0.0}, {"hbm_slow_share": 1.0}])
def test_without_a_slow_part_the_rate_is_the_same_all_the_time(never: dict[str, float]) -> None:
    pipe = HbmPipe(slowing(**never))
    pipe.carry(10, 1e6)
    assert pipe.free == 1e6 + 10


def test_a_given_rate_lasts() -> None:
    pipe = HbmPipe(slowing(), rate=0.25)
    pipe.carry(0, 5000)
    assert (pipe.free, pipe.rate(7)) == (20000, (0.25, math.inf))


def test_only_v6e_is_slow() -> None:
    assert [name for name in ("v4", "v5e", "v5p", "v6e", "v7x") if chip(name).machine.hbm_slow_period_s] == ["v6e"]
