"""Rounds of the top-level program's loops that are skipped: the same run as if all were executed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from repeated_programs import BARRIER, EXACT_V5P, MATMUL, ROUNDS, V5P, copied, in_whole_cycles
from simulator_listings import V5E, listing, loop

from systolic.chips import Chip, chip
from systolic.simulator import SimulatedRun, prepare_listings
from systolic.simulator.hardware.hbm_pipe import HbmPipe
from systolic.simulator.hardware.round_words import Probe, RoundWords
from systolic.simulator.hardware.values import COMPUTED
from systolic.simulator.hardware.words import picked
from systolic.simulator.rounds.repeated import RepeatedRounds

TIMES = 20
CALL = ("%3 = inlined_call %s2_s1 /* %op.1 = f(%x) */", "", "", "", "")
OPERAND = "%s7_s1 = inlined_call_operand. [shape: s32[], index: 0, kind: input, shape index: {}]"


@pytest.fixture
def skipped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lists how many rounds were skipped at once."""
    numbers: list[int] = []
    skip = RepeatedRounds._skip

    def noted(self: RepeatedRounds, at: object, handed_over: object) -> None:
        skip(self, at, handed_over)  # type: ignore[arg-type]
        numbers.append(at.skipped)  # type: ignore[attr-defined]

    monkeypatch.setattr(RepeatedRounds, "_skip", noted)
    return numbers


def both_ways(*body: str, around: tuple[str, ...] = (), on: Chip = V5E, times: int = TIMES) -> SimulatedRun:
    """Runs a loop that calls an operation and then copies, with and without skipping rounds: it is the same run."""
    round_before = (*around, *(BARRIER if on.cores_per_device > 1 else ()))
    top = (*copied(300), *loop(times, *round_before, *CALL), *copied(570))
    program = prepare_listings({"TLP": listing(*top), "op.1": listing(*body)}, on)
    run = program.run(on)
    assert run == program.run(on, remember=False)
    return run


@pytest.mark.parametrize("on", [V5E, V5P, chip("v4"), chip("v6e")], ids=lambda on: on.name)
@pytest.mark.parametrize(
    "body",
    [copied(1000), ROUNDS, (*copied(100), *loop(5, *MATMUL, *copied(32)), *copied(10))],
    ids=["copy", "products", "a loop of both"],
)
def test_rounds_that_repeat_are_skipped(skipped: list[int], body: tuple[str, ...], on: Chip) -> None:
    run = both_ways(*body, on=on)
    if on.name != "v6e" or body == copied(1000):  # there products leave more results in each round
        assert len(skipped) == 2  # with and without a prefetch
        assert min(skipped) >= TIMES - 7
    assert [core.ops[0].calls for core in run.cores] == [TIMES] * on.cores_per_device


def test_a_round_s_number_may_go_anywhere_but_into_decisions(skipped: list[int]) -> None:
    # It is stored and added up, and an operation copies to a place by it, as to a layer's part of an array.
    kept = ("%4 = sst [smem:[#allocation7]] %s2_s1", "%s8_s8 = sld [smem:[#allocation7]]")
    total = (
        "%s5_s5 = sld [smem:[#allocation6]]",
        "%s6_s6 = sadd.s32 3, %s5_s5",
        "%4 = sst [smem:[#allocation6]] %s6_s6",
    )
    place = (OPERAND, "%s6_s6 = sshll.u32 %s7_s1, 9", "%7 = dma.hbm_to_vmem %s6_s6, 128, %s92_s92, [#allocation8]")
    both_ways(*place, *copied(128)[1:], around=(*kept, *total))
    assert len(skipped) == 2
    assert min(skipped) > 0


@pytest.mark.parametrize(
    "deciding",
    [
        "%p4_p4 = scmp.eq.s32.totalorder %s7_s1, 17",  # one late round does something else
        "%p4_p4 = scmp.ge.s32.totalorder %s7_s1, 11",  # and all after a round
    ],
)
def test_rounds_are_skipped_until_one_differs(skipped: list[int], deciding: str) -> None:
    size = ("%s9_s9 = scalar_select %p4_p4, 64, 640", *copied("%s9_s9"))
    run = both_ways(OPERAND, deciding, *size)
    assert 0 < min(skipped) <= max(skipped) < (17 if ".eq." in deciding else 11)
    late = 1 if ".eq." in deciding else 9
    assert run.hbm_read_bytes == 32 * (870 + late * 64 + (TIMES - late) * 640)


def test_rounds_after_those_that_differ_are_skipped_too(skipped: list[int]) -> None:
    deciding = ("%p4_p4 = scmp.ge.s32.totalorder %s7_s1, 15", "%s9_s9 = scalar_select %p4_p4, 64, 640")
    run = both_ways(OPERAND, *deciding, *copied("%s9_s9"), times=40)
    assert len(skipped) == 2 * 2  # with and without a prefetch
    assert sum(skipped[:2]) > 40 - 15
    assert run.hbm_read_bytes == 32 * (870 + 15 * 640 + 25 * 64)


def test_many_rounds_that_differ_one_soon_after_the_other_do_not_end_the_comparison(skipped: list[int]) -> None:
    deciding = (
        "%s8_s8 = sand.u32 %s7_s1, 7",
        "%p3_p3 = scmp.eq.s32.totalorder %s8_s8, 0",
        "%p2_p2 = scmp.lt.s32.totalorder %s7_s1, 40",
        "%p4_p4 = pnand %p3_p3, %p2_p2",
        "%s9_s9 = scalar_select %p4_p4, 64, 640",
    )
    run = both_ways(OPERAND, *deciding, *copied("%s9_s9"), times=80)
    assert max(skipped) > 30
    assert run.hbm_read_bytes == 32 * (870 + 5 * 640 + 75 * 64)


def test_a_loop_of_more_rounds_than_words_are_known_for_is_skipped_in_parts(skipped: list[int]) -> None:
    both_ways(OPERAND, *copied(640), times=700)
    assert sum(skipped) > 2 * (700 - 30)


def test_the_last_round_may_differ(skipped: list[int]) -> None:
    deciding = f"%p4_p4 = scmp.eq.s32.totalorder %s7_s1, {TIMES - 1}"
    both_ways(OPERAND, deciding, "%s9_s9 = scalar_select %p4_p4, 64, 640", *copied("%s9_s9"))
    assert min(skipped) > 0


def test_rounds_whose_size_grows_are_executed(skipped: list[int]) -> None:
    run = both_ways(OPERAND, "%s9_s9 = sshll.u32 %s7_s1, 5", *copied("%s9_s9"))
    assert skipped == []
    assert run.hbm_read_bytes == 32 * (870 + 32 * TIMES * (TIMES - 1) // 2)


@pytest.mark.parametrize("on", [V5E, V5P], ids=lambda on: on.name)
@pytest.mark.parametrize("other_call", [TIMES, TIMES - 1, 12])
def test_rounds_that_are_handed_the_same_contents_are_skipped(skipped: list[int], other_call: int, on: Chip) -> None:
    # An attention kernel is handed the same mask in every layer; here it is the size of a copy.
    around = BARRIER if on.cores_per_device > 1 else ()
    body = listing(OPERAND, *copied("%s7_s1"))
    program = prepare_listings({"TLP": listing(*loop(TIMES, *around, *CALL)), "op.1": body}, on)

    def operand_words(name: str, call: int, index: int) -> Any:
        return lambda: [800 if call == other_call else 640]

    run = program.run(on, operand_words=operand_words)
    assert run == program.run(on, operand_words=operand_words, remember=False)
    assert (sum(skipped) > TIMES // 2) == (other_call == TIMES)  # after the other call few are left
    copied_granules = 640 * TIMES + (160 if other_call < TIMES else 0)
    assert run.hbm_read_bytes == 32 * copied_granules * on.cores_per_device


def test_rounds_in_which_hbm_is_slow_are_executed(skipped: list[int]) -> None:
    busy, idle = replace(V5E.machine, **_periods(0.5)), replace(V5E.machine, **_periods(0.99))
    slow = both_ways(*copied(24000), on=replace(V5E, machine=busy))
    assert not any(skipped)
    skipped.clear()
    fast = both_ways(*copied(24000), on=replace(V5E, machine=idle))
    assert min(skipped) > 0
    assert slow.cycles > 1.2 * fast.cycles


def _periods(load: float) -> dict[str, float]:
    return {"hbm_slow_period_s": 7.3e-6, "hbm_slow_load": load, "hbm_slow_s": 4.1e-6, "hbm_slow_share": 0.5}


def test_cores_that_begin_apart(skipped: list[int]) -> None:
    by_core = (
        "%s21_s21 = sld [smem:[#allocation3]] /* core id */",
        "%s22_s22 = smul.u32 960, %s21_s21",
        "%s23_s23 = sadd.s32 160, %s22_s22",
    )
    both_ways(*copied(1000), around=(*BARRIER, *by_core, *copied("%s23_s23")), on=EXACT_V5P)
    assert min(skipped) > 0


def test_the_timeline_has_all_rounds(skipped: list[int]) -> None:
    top = loop(TIMES, *CALL)
    program = prepare_listings({"TLP": listing(*top), "op.1": listing(*copied(1000))}, V5E)
    run = program.run(V5E, spans=TIMES)
    assert skipped == []
    assert [span.kind for span in run.cores[0].spans].count("op") == TIMES


# ---- words of all rounds ----


def test_words_go_through_arithmetic_round_by_round() -> None:
    probe = Probe()
    counter: Any = RoundWords(probe, (3, 4, 5))  # whose operators are set on its class
    assert ((1 + counter) * 2 - 1).values == (7, 9, 11)
    assert (counter >> 3) == 0
    assert (counter < 9) is True
    late = counter >= 5
    assert late.values == (False, False, True)
    assert picked(late, 7, counter).values == (3, 4, 7)
    assert (counter + COMPUTED) is COMPUTED
    assert not probe.failed
    assert not late  # as in the present round
    assert probe.alike == 2  # with the next one
    assert not probe.failed


@pytest.mark.parametrize("use", [bool, int, float, hash, range, "x".__mul__])
def test_any_other_use_is_noted(use: object) -> None:
    probe = Probe()
    word = RoundWords(probe, (3, 4))
    assert use(word) == use(3)  # type: ignore[operator]
    assert probe.failed


# ---- HBM that is slow at times ----


@pytest.mark.parametrize("rounds", [1, 5, 40])
def test_a_pipe_after_rounds_is_as_if_it_had_carried_them(rounds: int) -> None:
    hz = V5E.machine.clock_hz
    periods = {"hbm_slow_period_s": 7300 / hz, "hbm_slow_load": 0.8, "hbm_slow_s": 1000 / hz, "hbm_slow_share": 0.5}
    machine = replace(in_whole_cycles(V5E).machine, **periods)

    def carry(pipe: HbmPipe, number: int) -> None:
        for at, cycles in ((0, 400), (900, 350), (1300, 210)):
            pipe.carry(2000 * number + at, cycles)

    executed, skipping = HbmPipe(machine), HbmPipe(machine)
    for number in range(3 + rounds):
        carry(executed, number)
    for number in range(2):
        carry(skipping, number)
    skipping.record()
    carry(skipping, 2)
    later = skipping.rounds_later(2000, rounds)
    assert later is not None
    skipping.skip(2000 * rounds, later)
    assert skipping.free + 2000 * rounds == executed.free
    assert later == (executed._period, pytest.approx(executed.busy_cycles))
    end = 2000 * (3 + rounds)
    for at in (end, end + 7300, end + 9000):
        begin = executed.carry(at, 5000)
        assert begin - 2000 * rounds == skipping.carry(at - 2000 * rounds, 5000)
    assert skipping.free + 2000 * rounds == pytest.approx(executed.free)
