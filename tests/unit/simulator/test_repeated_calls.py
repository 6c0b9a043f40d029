"""Calls that are looked up in place of executed: they change no result, and where they can't be, they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from repeated_programs import BARRIER, EXACT_V5P, MATMUL, ROUNDS, TIMES, V5P, copied, in_whole_cycles
from simulator_listings import V5E, listing, loop

from systolic.chips import Chip, chip
from systolic.simulator import SimulatedRun, prepare_listings
from systolic.simulator.hardware.memory import Contents


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
    run = program.run(on, spans=5)
    assert run == program.run(on, spans=5, remember=False)
    return run


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
    run = both_ways(*BY_CORE, *BARRIER, *copied(320), round_before=BARRIER, on=EXACT_V5P)
    assert alone == [False, *[True] * (TIMES - 1)]
    first, second = (core.hbm_read_bytes / V5P.machine.granule_bytes / TIMES for core in run.cores)
    assert (first, second) == (160 + 320, 4000 + 320)


def test_cores_that_begin_at_different_times_execute_everything(alone: list[bool]) -> None:
    both_ways(*copied(1000), round_before=BY_CORE, on=V5P)
    assert not alone


def test_cores_that_begin_apart_by_a_wait_are_expected(alone: list[bool]) -> None:
    slightly = tuple(line.replace("3840", "960") for line in BY_CORE)  # 60 cycles of the pipe
    run = both_ways(*copied(1000), round_before=(*BARRIER, *slightly), on=EXACT_V5P)
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
