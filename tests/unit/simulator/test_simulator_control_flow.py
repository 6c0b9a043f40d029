"""Branches and their shadows, loops, calls, on listings small enough to count by hand."""

from __future__ import annotations

import pytest
from simulator_listings import V5E, listing, loop, simulate, simulate_listings, value

from systolic.simulator import SimulationError
from systolic.simulator.reading.blocks import split_blocks
from systolic.simulator.reading.listing import parse_listing


def test_a_bundle_is_a_cycle() -> None:
    assert simulate("", "%s1_s1 = smov 1  ;;  %s2_s2 = smov 2", "").cycles == 3


@pytest.mark.parametrize(("name", "slots"), [("v4", 1), ("v5e", 4), ("v7x", 6)])
@pytest.mark.parametrize("rounds", [1, 2, 17])
def test_a_loop_runs_its_delay_slots_each_round(name: str, slots: int, rounds: int) -> None:
    run = simulate(*loop(rounds, "", slots=slots), chip_name=name)
    assert run.cycles == 1 + rounds * (4 + slots)


def test_a_delay_slot_runs_whether_the_branch_is_taken_or_not() -> None:
    for taken in (0, 1):
        code = (
            f"%p1_p1 = scmp.eq.s32.totalorder 1, {taken}",
            "%9 = sbr.rel (%p1_p1) target = $region7",
            "%s1_s1 = smov 5",
            "",
            "",
            "/* End region 6 */",
            "%s2_s1 = smov 9",
            "PF|%s4_s1 = sphi %s1_s1, %s2_s1 /* Start/End empty region 7 */",
        )
        assert value(*code, register="%s4_s1") == (5 if taken else 9)


@pytest.mark.parametrize(
    "slots",
    [
        ("", "%s2_s2 = smov 1 /* Start region 4 */"),  # one `{}` for six, ahead of a region
        ("%s4_s4 = smov 1", "%s5_s5 = smov 1 /* End region 3 */", "", "%s2_s2 = smov 1"),  # behind one
        ("%s4_s4 = smov 1", "", "%s2_s2 = smov 1"),
        ("%s4_s4 = smov 1", "", "", "", "", "/* End region 3 */", "%s2_s2 = smov 1"),  # six, all printed
    ],
)
def test_the_shadow_of_a_branch_is_six_cycles_on_v7x_however_it_is_printed(slots: tuple[str, ...]) -> None:
    for taken in (0, 1):
        run = simulate(
            f"%p1_p1 = scmp.eq.s32.totalorder 1, {taken}",
            "%9 = sbr.rel (%p1_p1) target = $region7",
            *slots,
            "PF|%s3_s3 = smov 0 /* Start/End empty region 7 */",
            chip_name="v7x",
        )
        assert run.cycles == 2 + 6 + (0 if taken else 1) + 1


def test_a_shadow_does_not_reach_into_a_region_that_begins_behind_it() -> None:
    """Six bundles on a region ends; the one `{}` right behind the branch stands for six all the same."""
    for taken in (0, 1):
        run = simulate(
            f"%p1_p1 = scmp.eq.s32.totalorder 1, {taken}",
            "%9 = sbr.rel (%p1_p1) target = $region7",
            "",
            "%s2_s2 = smov 1 /* End region 3 */",
            "PF|%s3_s3 = smov 0 /* Start/End empty region 7 :: Start region 8 */",
            "%s4_s4 = smov 1",
            "%s5_s5 = smov 1",
            "%s6_s6 = smov 1 /* End region 8 */",
            chip_name="v7x",
        )
        assert run.cycles == 2 + 6 + (0 if taken else 1) + 4


def test_a_shadow_that_is_printed_whole_ends_where_its_loop_ends() -> None:
    """Empty slots are among the six, one of them right behind the end of an inner region; the last one counts up."""
    rounds = 5
    run = simulate(
        "%s1_s1 = smov 0",
        "LB|%s2_s1 = sphi %s1_s1, %s3_s1 /* Start region 91 :: Start region 90 */",
        f"%p1_p1 = scmp.ge.s32.totalorder %s2_s1, {rounds - 1}",
        "%9 = sbr.rel (!%p1_p1) target = $region91",
        "",
        "%s4_s4 = smov 7",
        "",
        "%s5_s5 = sadd.s32 1, %s2_s1 /* End region 91 */",
        "",
        "%s3_s1 = smov %s5_s5 /* End region 90 */",
        "PF|%s6_s6 = smov 0 /* Start/End empty region 92 */",
        chip_name="v7x",
    )
    assert run.cycles == 1 + rounds * (3 + 6) + 1


def test_a_shadow_does_not_reach_over_a_wait() -> None:
    """Behind a loop the program waits, and ends a region six bundles on: the one `{}` is all of the shadow."""
    run = simulate(
        "%1 = vsyncadd [#allocation7], 5",
        "%s1_s1 = smov 0",
        "LB|%s2_s1 = sphi %s1_s1, %s3_s1 /* Start region 5 */",
        "%s3_s1 = sadd.s32 1, %s2_s1  ;;  %p1_p1 = scmp.ge.s32.totalorder %s2_s1, 2",
        "%9 = sbr.rel (!%p1_p1) target = $region5",
        "",
        "%3 = dma.done.wait [#allocation7], 5",
        "%4 = vsyncadd [#allocation7], 4294967291",
        "%s5_s5 = smov 1",
        "%s6_s6 = smov 1",
        "%s7_s7 = smov 1 /* End region 1 */",
        chip_name="v7x",
    )
    assert run.cycles == 2 + 3 * (3 + 6) + 5


@pytest.mark.parametrize("branch_marked", [True, False])
def test_a_shadow_does_not_reach_out_of_its_loop_to_a_flag(branch_marked: bool) -> None:
    """After the loop its flags are set to 1: in the shadow that would happen each round, and undo what copies count."""
    text = listing(
        "%s1_s1 = smov 0",
        "LB|%s2_s1 = sphi %s1_s1, %s3_s1 /* Start region 5 */",
        "%9 = sbr.rel (!%p1_p1) target = $region5",
        "",
        *[f"%{flag} = vsyncpa [#allocation7 + $0x{flag}], 1" for flag in range(4)],
        "%4 = vsyncpa [#allocation7 + $0x4], 1 /* End region 1 */",
        "%s5_s5 = smov 1",
    ).splitlines()
    in_loop = (3 + 1, 3 + 2) if branch_marked else (3 + 1,)  # after three lines of the listing's head
    marked = [line if index in in_loop else line.replace(": >", ":") for index, line in enumerate(text)]
    _, loop_block, rest = split_blocks(parse_listing("op", "\n".join(marked) + "\n"), 6)
    assert (loop_block.branch, loop_block.last, loop_block.last_cycles, rest.first) == (2, 3, 6, 4)


def test_a_shadow_does_not_reach_over_a_signal_to_another_device() -> None:
    """The signal is computed only for the path that is not taken: the `{}` before it ends the shadow."""
    program = parse_listing(
        "op",
        listing(
            "%p1_p1 = scmp.eq.s32.totalorder %s1_s1, 0 /* Start region 1 */",
            "%9 = sbr.rel (%p1_p1) target = $region2",
            "%s2_s2 = smov (!%p1_p1), 1",
            *["%s3_s3 = smov (!%p1_p1), 2"] * 3,
            "",
            "%8 = vsyncadd.remote %s3_s3, 1 /* End region 1 */",
            "%s4_s4 = smov 1 /* Start region 2 */",
        ),
    )
    shadow, signal, _ = split_blocks(program, 6)
    assert (shadow.branch, shadow.last, shadow.last_cycles, signal.first) == (1, 6, 2, 7)


def test_nested_loops() -> None:
    inner = (
        "%s11_s11 = smov 0",
        "LB|%s12_s11 = sphi %s11_s11, %s13_s11 /* Start region 8 */",
        "%s13_s11 = sadd.s32 1, %s12_s11  ;;  %p2_p2 = scmp.ge.s32.totalorder %s12_s11, 4",
        "%8 = sbr.rel (!%p2_p2) target = $region8",
        *["", "", ""],
        "/* End region 8 */",
    )
    assert simulate(*loop(3, *inner)).cycles == 1 + 3 * (1 + 1 + 5 * 7 + 2 + 4)


def test_a_region_that_begins_nowhere_is_the_end() -> None:
    run = simulate("%9 = sbr.rel target = $region99", "", "", "", "", "%s1_s1 = smov 1")
    assert run.cycles == 5


def test_a_loop_without_end_is_an_error() -> None:
    forever = loop(2, "%s9_s9 = smov 0")
    text = listing(*forever).replace("scmp.ge.s32.totalorder %s2_s1, 1", "scmp.eq.s32.totalorder 1, 2")
    with pytest.raises(SimulationError, match="more than 1,000 times"):
        simulate_listings({"TLP": text}, V5E, max_iterations=1000)


def test_a_call_takes_its_time_and_is_named() -> None:
    called = {"fusion.3": ("", "", "", "")}
    run = simulate(
        "",
        "%7 = inlined_call %s1_s1 /* %fusion.3 = fusion(%x) */",
        "",
        "%8 = inlined_call /* <late-finalization> */",
        called=called,
    )
    (op,) = run.cores[0].ops
    assert (op.name, op.begin_cycles, op.cycles) == ("fusion.3", 1, 4)
    assert run.cycles == 4 + 4


def test_a_call_of_what_is_not_there() -> None:
    with pytest.raises(SimulationError, match=r"calls fusion\.3, of which there is no listing"):
        simulate("%7 = inlined_call /* %fusion.3 = fusion(%x) */")
    with pytest.raises(SimulationError, match="no top-level program"):
        simulate_listings({"fusion": listing("")}, V5E)
