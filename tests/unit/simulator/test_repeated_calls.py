"""Calls that are looked up in place of executed: they change no result, and where they can't be, they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulator_listings import V5E, listing, loop

from systolic.chips import Chip, chip
from systolic.simulator import SimulatedRun, prepare_listings, repeated_calls
from systolic.simulator.hardware.hbm_pipe import HbmPipe
from systolic.simulator.repeated_calls import RepeatedCalls

TIMES = 7
POP = "%v2_v2 = vpop.f32.mrf.mxu0 %7"
MATMUL = ("%7 = vmatmul.bf16.gmra.mxu0 %v1_v1", POP, POP)
ROUNDS = (*MATMUL, *MATMUL)


def copied(size: int | str, flag: str = "[#allocation8]") -> tuple[str, ...]:
    """A copy, a wait for it, and its flag set back."""
    return (
        f"%7 = dma.hbm_to_vmem %s91_s91, {size}, %s92_s92, {flag}",
        f"%8 = dma.done.wait {flag}, {size}",
        f"%s8_s8 = ssub.s32 0, {size}",
        f"%9 = vsyncadd {flag}, %s8_s8",
    )


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Lists for every call whether it was looked up."""
    found: list[bool] = []
    find = RepeatedCalls.find

    def noted(self: RepeatedCalls, *args: object) -> repeated_calls.Execution | None:
        execution = find(self, *args)  # type: ignore[arg-type]
        found.append(execution is not None)
        return execution

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


@pytest.mark.parametrize(
    "body",
    [copied(1000), ROUNDS, (*copied(100), *loop(5, *MATMUL, *copied(32)), *copied(10))],
    ids=["copy", "products", "a loop of both"],
)
def test_a_call_that_needs_nothing_is_executed_twice(alone: list[bool], body: tuple[str, ...]) -> None:
    run = both_ways(*body)
    assert alone == [False, *[True] * (TIMES - 1)]
    assert run.cores[0].ops[0].calls == TIMES


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


def test_calls_that_begin_while_links_use_hbm_are_executed(alone: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HbmPipe, "serves_links", True)
    both_ways(*copied(1000))
    assert not any(alone)


def test_a_write_of_the_caller_before_a_call_counts(alone: list[bool]) -> None:
    write = "%7 = dma.vmem_to_hbm %s91_s91, 20000, %s92_s92, [#allocation1]"
    exact = replace(V5E.machine, hbm_bytes_per_s=512 * V5E.machine.clock_hz)  # copies take whole cycles
    costly = replace(V5E, machine=replace(exact, hbm_turn_cost=0.5))
    turned = both_ways(*copied(20000), round_before=(write,), on=costly)
    assert any(alone)
    straight = both_ways(*copied(20000), round_before=(write,), on=replace(V5E, machine=exact))
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


def test_two_cores_execute_everything(alone: list[bool]) -> None:
    both_ways(*copied(1000), on=chip("v5p"))
    assert not alone


def test_constants_count() -> None:
    top = loop(TIMES, "%3 = inlined_call /* %op.1 = f(%x) */", "", "", "", "")
    program = prepare_listings({"TLP": listing(*top), "op.1": listing(*copied(1000))}, V5E)
    slower = replace(V5E, machine=replace(V5E.machine, hbm_bytes_per_s=V5E.machine.hbm_bytes_per_s / 2))
    assert program.run(slower).cycles == program.run(slower, remember=False).cycles > program.run(V5E).cycles
