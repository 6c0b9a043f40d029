"""Calls that are looked up in place of executed: they change no result, and where they can't be, they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from simulator_listings import V5E, listing, loop

from systolic.chips import Chip, chip
from systolic.simulator import SimulatedRun, SimulationError, prepare_listings, repeated_calls
from systolic.simulator.assumptions import Attempt
from systolic.simulator.core_records import CoreRun
from systolic.simulator.device import DeviceModel
from systolic.simulator.executed_alone import Execution, LinkChanges, NoOthers
from systolic.simulator.hardware.memory import Contents
from systolic.simulator.hardware.values import COMPUTED
from systolic.simulator.other_devices import RemoteTarget
from systolic.simulator.repeated_calls import Outcome, RepeatedCalls
from systolic.simulator.schedule import Schedule

TIMES = 7
POP = "%v2_v2 = vpop.f32.mrf.mxu0 %7"
MATMUL = ("%7 = vmatmul.bf16.gmra.mxu0 %v1_v1", POP, POP)
ROUNDS = (*MATMUL, *MATMUL)
BARRIER = ("%v1_v1 = vmov 77", "%7 = vpush.ccrf %v1_v1", "%v2_v2 = vpop.ccrf")  # of two cores
V5P = chip("v5p")


def copied(size: int | str, flag: str = "[#allocation8]") -> tuple[str, ...]:
    """A copy, a wait for it, and its flag set back."""
    return (
        f"%7 = dma.hbm_to_vmem %s91_s91, {size}, %s92_s92, {flag}",
        f"%8 = dma.done.wait {flag}, {size}",
        f"%s8_s8 = ssub.s32 0, {size}",
        f"%9 = vsyncadd {flag}, %s8_s8",
    )


def in_whole_cycles(on: Chip) -> Chip:
    """Return a chip whose HBM carries 16 granules of 32 bytes a cycle."""
    return replace(on, machine=replace(on.machine, hbm_bytes_per_s=512 * on.machine.clock_hz))


EXACT_V5P = in_whole_cycles(V5P)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Lists for every call whether it was looked up."""
    found: list[bool] = []
    find = RepeatedCalls.find

    def noted(self: RepeatedCalls, *args: object) -> tuple[Outcome, ...] | None:
        outcomes = find(self, *args)  # type: ignore[arg-type]
        found.append(outcomes is not None)
        return outcomes

    monkeypatch.setattr(RepeatedCalls, "find", noted)
    return found


def both_ways(
    *body: str,
    before: tuple[str, ...] = (),
    round_before: tuple[str, ...] = (),
    handed: str = "",
    on: Chip = V5E,
) -> SimulatedRun:
    """Runs a program that calls an operation again and again, with and without looking up: it is the same run."""
    top = (*before, *loop(TIMES, *round_before, f"%3 = inlined_call {handed} /* %op.1 = f(%x) */", "", "", "", ""))
    program = prepare_listings({"TLP": listing(*top), "op.1": listing(*body)}, on)
    found = program.run(on, spans=5)
    assert found == program.run(on, spans=5, remember=False)
    return found


@pytest.mark.parametrize("on", [V5E, V5P, chip("v4")], ids=lambda on: on.name)
@pytest.mark.parametrize(
    "body",
    [copied(1000), ROUNDS, (*copied(100), *loop(5, *MATMUL, *copied(32)), *copied(10))],
    ids=["copy", "products", "a loop of both"],
)
def test_a_call_that_needs_nothing_is_executed_twice(alone: list[bool], body: tuple[str, ...], on: Chip) -> None:
    run = both_ways(*body, round_before=BARRIER if on.cores_per_device > 1 else (), on=on)
    assert alone == [False, *[True] * (TIMES - 1)]  # one for both cores of a device
    assert [core.ops[0].calls for core in run.cores] == [TIMES] * on.cores_per_device


def test_a_pipe_that_is_still_busy_counts(alone: list[bool]) -> None:
    # A copy of the caller's is on its way when the first calls begin, and shorter ones beside each call.
    long = ("%7 = dma.hbm_to_vmem %s91_s91, 40000, %s92_s92, [#allocation1]",)
    run = both_ways(*copied(32), before=long)
    waits = [span.end_cycles - span.begin_cycles for span in run.cores[0].spans if span.kind == "op"]
    assert len(set(waits)) > 1  # they do not all take equally long
    assert any(alone)


def test_calls_during_which_hbm_changes_its_rate_are_executed(alone: list[bool]) -> None:
    # A call takes 1.6 µs, or 2.7 where HBM is slow: from 4.2 to 8.3 µs, and again from 8.4 on.
    slowing = replace(V5E.machine, hbm_slow_period_s=4.2e-6, hbm_slow_load=0.5, hbm_slow_s=4.1e-6, hbm_slow_share=0.5)
    run = both_ways(*copied(24000), on=replace(V5E, machine=slowing))
    calls = [span.end_cycles - span.begin_cycles for span in run.cores[0].spans if span.kind == "op"]
    assert max(calls) > 1.5 * min(calls)
    assert alone == [False, True, False, True, False, True, True]


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

    def noted(self: RepeatedCalls, *args: Any) -> tuple[Execution, ...]:
        executions.append(args[-1])
        return execute(self, *args)

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


WINDOW = "%s7_s10 = inlined_call_operand.hbm [shape: s32[1024], index: 0, kind: input, shape index: {}]"
RESULT = "%s6_s11 = inlined_call_operand.hbm [shape: s32[1024], index: 1, kind: output, shape index: {}]"
INTO = "%7 = dma.hbm_to_vmem %s7_s10, 128, [#allocation9], [#allocation8]"
INTO_VMEM = (
    f"{WINDOW}  ;;  {RESULT}",
    "%7 = dma.hbm_to_vmem %s7_s10, 128, [#allocation9], [#allocation8]",
    *copied(128)[1:],
)
INTO_SMEM = ("%7 = dma.vmem_to_smem [#allocation9], 8, [#allocation7], [#allocation8]", *copied(8)[1:])
OUT_AGAIN = (*INTO_SMEM, "%7 = dma.vmem_to_hbm [#allocation9], 128, %s6_s11, [#allocation8]", *copied(128)[1:])


@pytest.mark.parametrize(
    ("body", "known", "looked_up"),
    [
        (INTO_VMEM, True, True),
        ((*INTO_VMEM, *OUT_AGAIN), True, False),  # a caller may read the result
        ((*INTO_VMEM, *OUT_AGAIN), False, True),
    ],
    ids=["reads", "copies", "copies something unknown"],
)
def test_known_inputs(alone: list[bool], body: tuple[str, ...], known: bool, looked_up: bool) -> None:
    words = [7] * 1024
    call = "%3 = inlined_call %s70_s10, %s71_s11 /* %op.1 = f(%x) */"
    top = ("%s70_s10 = smov 65536", "%s71_s11 = smov 131072", *loop(TIMES, call, "", "", "", ""))
    program = prepare_listings({"TLP": listing(*top), "op.1": listing(*body)}, V5E)

    def contents(*_: object) -> Contents | None:
        return (lambda: words) if known else None

    run = program.run(V5E, operand_words=contents)
    assert any(alone) == looked_up
    assert run == program.run(V5E, operand_words=contents, remember=False)


def test_a_write_of_the_caller_before_a_call_counts(alone: list[bool]) -> None:
    write = "%7 = dma.vmem_to_hbm %s91_s91, 20000, %s92_s92, [#allocation1]"
    exact = in_whole_cycles(V5E)
    costly = replace(V5E, machine=replace(exact.machine, hbm_turn_cost=0.5))
    turned = both_ways(*copied(20000), round_before=(write,), on=costly)
    assert any(alone)
    straight = both_ways(*copied(20000), round_before=(write,), on=exact)
    assert turned.cycles > 1.1 * straight.cycles


def test_scalar_memory_is_as_if_it_was_executed(alone: list[bool]) -> None:
    # What one call stores, the next one does not read; it reads what it has stored itself.
    own = ("%s5_s5 = smov 3", "%4 = sst [smem:[#allocation7]] %s5_s5", "%s6_s6 = sld [smem:[#allocation7]]")
    both_ways(*own, "%s7_s7 = sshll.u32 %s6_s6, 5", *copied("%s7_s7"))
    assert alone[-1]


def test_flags_that_a_call_leaves_count(alone: list[bool]) -> None:
    # As XLA's operations do, it sets its flag back when it begins: the second call finds another one than the first.
    waited = copied(32)[:2]
    both_ways("%9 = vsyncset [#allocation8], 0", *waited)
    assert alone == [False, *[True] * (TIMES - 1)]


OPERAND = "%s7_s0 = inlined_call_operand. [shape: s32[], index: 0, kind: input, shape index: {}]"


@pytest.mark.parametrize(
    ("body", "handed"),
    [
        # How much it copies is what it is handed, or what the call before has left in memory.
        ((OPERAND, *copied("%s7_s0")), "%s9_s0"),
        (("%s6_s6 = sld [smem:[#allocation7]]", *copied("%s6_s6")), ""),
        # A copy that nobody waits for inside; its flag is the next call's.
        (("%7 = dma.hbm_to_vmem %s91_s91, 8, %s92_s92, [#allocation8]",), ""),
        # A flag that is everybody's.
        (copied(8, flag="5"), ""),
    ],
    ids=["a register", "memory", "its own flag", "everybody's flag"],
)
def test_a_call_that_depends_on_others_is_executed(alone: list[bool], body: tuple[str, ...], handed: str) -> None:
    stored = ("%s9_s0 = smov 64", "%4 = sst [smem:[#allocation7]] %s9_s0")
    both_ways(*body, before=stored, handed=handed)
    assert not any(alone)


BY_CORE = (
    "%s21_s21 = sld [smem:[#allocation3]] /* core id */",
    "%s22_s22 = smul.u32 3840, %s21_s21",
    "%s23_s23 = sadd.s32 160, %s22_s22",
    *copied("%s23_s23"),
)


def test_cores_that_copy_different_amounts_share_the_pipe(alone: list[bool]) -> None:
    run = both_ways(*BY_CORE, *BARRIER, *copied(320), round_before=BARRIER, on=in_whole_cycles(V5P))
    assert alone == [False, *[True] * (TIMES - 1)]
    first, second = (core.hbm_read_bytes / V5P.machine.granule_bytes / TIMES for core in run.cores)
    assert (first, second) == (160 + 320, 4000 + 320)


def test_cores_that_begin_at_different_times_execute_everything(alone: list[bool]) -> None:
    both_ways(*copied(1000), round_before=BY_CORE, on=V5P)
    assert not alone


def test_cores_that_begin_apart_by_a_wait_are_expected(alone: list[bool]) -> None:
    slightly = tuple(line.replace("3840", "960") for line in BY_CORE)  # 60 cycles of the pipe
    run = both_ways(*copied(1000), round_before=(*BARRIER, *slightly), on=in_whole_cycles(V5P))
    assert alone[: TIMES - 1] == [False, *[True] * (TIMES - 2)]  # the cores execute the first call without asking
    first, second = (core.ops[0].begin_cycles for core in run.cores)
    assert 40 < abs(first - second) < 256


def test_after_a_barrier_the_cores_begin_together(alone: list[bool]) -> None:
    both_ways(*copied(1000), round_before=(*BY_CORE, *BARRIER), on=V5P)
    assert alone[:TIMES] == [False, *[True] * (TIMES - 1)]  # others are of the run with a prefetch


def test_a_call_whose_message_the_next_one_takes_is_executed(alone: list[bool]) -> None:
    both_ways(*copied(1000), *BARRIER[:2], before=BARRIER[:2], round_before=BARRIER[2:], on=V5P)
    assert not any(alone)


def test_constants_count() -> None:
    top = loop(TIMES, "%3 = inlined_call /* %op.1 = f(%x) */", "", "", "", "")
    program = prepare_listings({"TLP": listing(*top), "op.1": listing(*copied(1000))}, V5E)
    slower = replace(V5E, machine=replace(V5E.machine, hbm_bytes_per_s=V5E.machine.hbm_bytes_per_s / 2))
    assert program.run(slower).cycles == program.run(slower, remember=False).cycles > program.run(V5E).cycles
