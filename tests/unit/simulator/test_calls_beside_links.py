"""Calls that are looked up while links of a slice use HBM: the same run as if all were executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from repeated_programs import BARRIER, EXACT_V5P, ROUNDS, TIMES, V5P, copied, in_whole_cycles
from simulator_listings import listing, loop

from systolic.chips import Chip
from systolic.simulator import SimulationError, prepare_listings, repeated_calls
from systolic.simulator.assumptions import Attempt
from systolic.simulator.core_records import CoreRun
from systolic.simulator.device import DeviceModel
from systolic.simulator.executed_alone import Execution, LinkChanges, NoOthers
from systolic.simulator.hardware.values import COMPUTED
from systolic.simulator.other_devices import RemoteTarget
from systolic.simulator.repeated_calls import RepeatedCalls
from systolic.simulator.schedule import Schedule


def with_links(*body: str, changes: Sequence[tuple[float, float]], on: Chip = EXACT_V5P) -> tuple[CoreRun, ...]:
    """Runs calls in a slice whose links take shares of the rate of HBM from some times on: both ways the same."""
    top = loop(TIMES, *BARRIER, "%3 = inlined_call /* %op.1 = f(%x) */", "", "", "", "")
    program = prepare_listings({"TLP": listing(*top), "op.1": listing(*body)}, on)
    attempt = Attempt(assumed=frozenset(), most_iterations=1_000_000)
    runs = []
    for remember in (True, False):
        schedule = Schedule(patient=True)
        setup = program._setup(on, 0, remember=remember).of_attempt(attempt)
        device = DeviceModel.of(setup, schedule, 0, others=cast("Any", Slice()))
        pipe = device.parts.dma.pipe
        for time, share in changes:
            schedule.at(time, partial(pipe.serve_links, time, share * pipe.bytes_per_cycle))
        for core in device.cores:
            schedule.start(0, core.run(), lambda core=core: core.waits_for)
        ends = schedule.run()
        runs.append(tuple(core.result(int(end)) for core, end in zip(device.cores, ends, strict=True)))
    assert runs[0] == runs[1]
    return runs[0]


REMOTE = 1 << 20


class Slice:
    """Other devices, of which one is the target of words with a bit."""

    represents = "itself"

    def target(self, word: int, flag: int) -> RemoteTarget:
        return RemoteTarget(0, 0, remote=bool(word & REMOTE))


ON_AND_OFF = [(500.5 + 700 * number, 0.5 if number % 2 else -0.5) for number in range(1, 20)]


@pytest.mark.parametrize(
    "changes",
    [[(0.0, 0.5)], [(0.0, 0.5), (1500.25, 0.25)], [(0.0, 0.5), (3000, -0.5)], ON_AND_OFF],
    ids=["all the time", "more", "no more", "on and off"],
)
def test_links_may_use_hbm_during_calls(alone: list[bool], changes: list[tuple[float, float]]) -> None:
    body = (*copied(4000), *ROUNDS, *copied(8000))
    run = with_links(*body, changes=changes)
    assert alone == [False, *[True] * (TIMES - 1)]
    assert run[0].cycles > with_links(*body, changes=())[0].cycles


def test_changes_of_links_that_calls_have_met_are_not_executed_again(
    alone: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    executions: list[LinkChanges] = []
    execute = RepeatedCalls.execute

    def noted(self: RepeatedCalls, *args: Any, **options: Any) -> tuple[Execution, ...]:
        executions.append(args[-1])
        return execute(self, *args, **options)

    monkeypatch.setattr(RepeatedCalls, "execute", noted)
    with_links(*copied(4000), changes=[(0.0, 0.5)])
    assert len(executions) == 2  # at the full rate, and at the half


def test_a_call_in_which_hbm_is_slower_later_because_of_links(alone: list[bool]) -> None:
    hz = V5P.machine.clock_hz
    periods = {"hbm_slow_period_s": 9000 / hz, "hbm_slow_load": 0.5, "hbm_slow_s": 1000 / hz, "hbm_slow_share": 0.5}
    slowing = replace(V5P, machine=replace(in_whole_cycles(V5P).machine, **periods))
    with_links(*copied(4000), changes=ON_AND_OFF, on=slowing)
    assert any(alone)


def test_operations_that_meet_new_changes_of_links_all_the_time_are_executed(
    alone: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_calls, "_MAX_NEW_CHANGES", 2)
    changes = [(40 * number + number * number / 64, 0.25 if number % 2 else -0.25) for number in range(1, 400)]
    with_links(*copied(8000), changes=[(0.0, 0.25), *changes])
    assert alone == [False, True, *[False] * (TIMES - 2)]


def test_an_operation_that_is_executed_alone_may_copy_to_its_own_device() -> None:
    nobody = NoOthers(cast("Any", Slice()))
    assert not nobody.target(0, 1).remote
    for word, flag in ((REMOTE, 1), (COMPUTED, 1), (0, COMPUTED)):
        with pytest.raises(SimulationError, match="depends on others"):
            nobody.target(word, flag)
    with pytest.raises(SimulationError, match="depends on others"):
        nobody.signal(0, "op.1", 0, 8, 1, "")
