"""Code that is made of SparseCore programs: what decides nothing is left out, and tiles' loops take their time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparse_devices import Device, a_chip
from sparse_listings import gather

from systolic.simulator import SimulationError
from systolic.simulator.sparse_core import translate
from systolic.simulator.sparse_core.listing import parse_sparse_listing
from systolic.simulator.sparse_core.program import SparseFunction
from systolic.simulator.sparse_core.translate import translate_sparse

ON_TILE_0 = ["s30 = stileid.u32; s29 = simm.s32 $0x100001", "p9 = sne.s32 s30, $0x0", "_ = shalt @p9"]
ENDS = ["[sflag:s29] = ssyncadd.tile.s32 $0x1; _ = shalt"]


def counting(step: int, condition: str) -> list[str]:
    """Makes a loop that counts in s1 and computes an address in s2; a round takes four cycles."""
    branch = [".Ltmp1:", "(pc) = sbr.rel @p1 .LBB2_1-.Ltmp1, $1", "s2 = sshll.u32 s1, $0x4"]
    return ["s1 = simm.s32 $0x0; s2 = simm.s32 $0x0", ".LBB2_1:", f"s1 = sadd.s32 ${step:#x}, s1", condition, *branch]


def end(code: Sequence[str]) -> int:
    """Returns when tile 0 has executed the code and told the sequencer."""
    device = Device(a_chip(), gather([*ON_TILE_0, *code, *ENDS]))
    device.launch(0)
    return device.end()


def tiles(code: Sequence[str]) -> SparseFunction:
    program = translate_sparse(parse_sparse_listing("gather", gather([*ON_TILE_0, *code, *ENDS])))
    assert program.tec is not None
    return program.tec


@pytest.mark.parametrize("opcode", ["slt.s32", "sne.s32"])
@pytest.mark.parametrize(("step", "rounds"), [(1, 1), (4, 127), (16, 9_000)])
def test_a_loop_takes_all_its_rounds(opcode: str, step: int, rounds: int) -> None:
    code = counting(step, f"p1 = {opcode} s1, ${step * rounds:#x}")
    assert "for rounds in" in tiles(code).source
    assert end(code) == end([]) + 1 + 4 * rounds


def test_what_follows_a_loop_has_its_last_words() -> None:
    waits = ["s1 = sadd.s32 s1, s1", "p2 = sne.s32 s1, $0x30", "_ = swait.ge @p2 [sflag:$0x9], $0x1"]
    assert end([*counting(2, "p1 = slt.s32 s1, $0x18"), *waits]) == end([]) + 1 + 4 * 12 + 3


@pytest.mark.parametrize("begins", [[3, 3, 3, 3], [0, 1, 2, 3]])
def test_a_loop_that_is_entered_again_takes_its_rounds_again(begins: list[int]) -> None:
    times = len(begins)
    first = "s1 = sadd.s32 $0x0, s5" if begins[0] != begins[1] else f"s1 = simm.s32 ${begins[0]:#x}"
    inner = [first, ".LBB2_1:", "s1 = sadd.s32 $0x1, s1", "p1 = slt.s32 s1, $0x20"]
    outer = ["s5 = sadd.s32 $0x1, s5", f"p2 = slt.s32 s5, ${times:#x}"]
    branches = [
        [f".Ltmp{number}:", f"(pc) = sbr.rel @p{number} .LBB2_{number}-.Ltmp{number}, $1", "_ = snop"]
        for number in (1, 2)
    ]
    code = ["s5 = simm.s32 $0x0", ".LBB2_2:", *inner, *branches[0], *outer, *branches[1]]
    device = Device(a_chip(), gather([*ON_TILE_0, *code, *ENDS]))
    device.launch(0)
    assert device.end() == end([]) + 1 + sum(1 + 4 * (32 - begin) + 4 for begin in begins)
    assert device.program.tec is not None
    ends = device.program.tec.run.__globals__["ends"]
    assert len(ends) == len(set(begins[1:]))  # the first time, the loop's predicate has never been written


def test_a_loop_without_an_end_is_refused() -> None:
    with pytest.raises(SimulationError, match="loops went round more than 10,000 times"):
        end(counting(2, "p1 = sne.s32 s1, $0x3"))


def test_a_loop_that_waits_is_executed_round_by_round() -> None:
    waiting = counting(1, "p1 = slt.s32 s1, $0x3; _ = swait.ge [sflag:$0x9], $0x0")
    assert "for rounds in" not in tiles(waiting).source
    assert end(waiting) == end([]) + 1 + 4 * 3


def test_addresses_that_decide_nothing_are_left_out() -> None:
    address = ["s5 = sshll.u32 s30, $0x7", "s6 = sadd.s32 $0x1000, s5", "s7 = simm.s32 $0x80"]
    stream = "[tilespmem:s6], [sflag:$0x5] = stream.linear.gather [hbm4b:s2+s6], {}, $0x38"
    without = tiles([*address, stream.format("$0x80")])
    assert " s5" not in without.source.partition("while True")[2]
    assert " s6" not in without.source.partition("while True")[2]
    assert "s7" in tiles([*address, stream.format("s7")]).source.partition("while True")[2]
    assert end([*address, stream.format("$0x80")]) == end([]) + 4


def test_a_value_that_only_another_round_reads_is_kept() -> None:
    # s4 is what s1 was a round before, and decides how often the loop goes round.
    loop = counting(1, "p1 = slt.s32 s4, $0x5; s4 = sadd.s32 $0x0, s1")
    assert end(["s4 = simm.s32 $0x0", *loop]) == end([]) + 2 + 4 * 6


@pytest.mark.parametrize(("first", "rounds"), [(1, 3), (0, 5)])
def test_two_values_under_opposite_conditions_are_one(first: int, rounds: int) -> None:
    limit = [f"s3 = simm.s32 ${first:#x}", "p3 = sne.s32 s3, $0x0", "s4 = simm.s32 @p3 $0x3; s4 = simm.s32 @!p3 $0x5"]
    assert end([*limit, *counting(1, "p1 = slt.s32 s1, s4")]) == end([]) + 4 + 4 * rounds


def test_what_is_not_read_under_its_condition_is_left_out() -> None:
    # s5 and s6 are addresses in all rounds but the last, in which s5 counts.
    chain = ["s5 = sshll.u32 @!p3 s30, $0x7", "s6 = sadd.s32 @!p3 $0x1000, s5", "s5 = simm.s32 @p3 $0x3"]
    stream = "[tilespmem:s6], [sflag:$0x5] = stream.linear.gather @!p3 [hbm4b:s2+s6], $0x80, $0x38"
    waits = ["p4 = slt.s32 @p3 s5, $0x3", "_ = swait.ge @p3 [sflag:$0x9], $0x0; _ = sdelay $0x2"]
    for first in ("p3 = sne.s32 s30, s30", "p3 = seq.s32 s30, s30"):
        code = [first, *chain, stream, *waits]
        body = tiles(code).source.partition("while True")[2]
        assert "s6" not in body
        assert "<<" not in body
        assert end(code) == end([]) + len(code) + 2


REGISTERS = st.sampled_from(["s1", "s2", "s3"])
CONDITIONS = st.sampled_from(["", "", "@p1 ", "@!p1 ", "@p2 ", "@!p2 "])
PLACES = st.sampled_from(["[smem:$0x40]", "[smem:$0x41]"])


@st.composite
def instructions(draw: st.DrawFn) -> str:
    dest, one, other = draw(REGISTERS), draw(REGISTERS), draw(REGISTERS)
    condition, predicate = draw(CONDITIONS), draw(st.sampled_from(["p1", "p2"]))
    kinds = [
        f"{dest} = sadd.s32 {condition}{one}, {other}",
        f"{dest} = simm.s32 {condition}${draw(st.integers(0, 5)):#x}",
        f"{dest} = sld {condition}{draw(PLACES)}",
        f"{draw(PLACES)} = sst {condition}{one}",
        f"{predicate} = slt.s32 {condition}{one}, {other}",
        f"_ = swait.ge {condition}[sflag:$0x9], $0x0; {dest} = sadd.s32 {condition}$0x1, {one}",
    ]
    return draw(st.sampled_from(kinds))


BODIES = st.lists(instructions(), max_size=8)


@given(BODIES, BODIES, BODIES, CONDITIONS)
def test_a_program_does_the_same_without_what_is_left_out(
    before: list[str], body: list[str], after: list[str], stores: str
) -> None:
    known = [f"s{number} = simm.s32 ${number:#x}" for number in (1, 2, 3)]
    known += ["p1 = seq.s32 s1, s1", "p2 = sne.s32 s1, s1", "[smem:$0x40] = sst s2", "[smem:$0x41] = sst s3"]
    branch = ["s9 = sadd.s32 $0x1, s9", "p3 = slt.s32 s9, $0x4", ".Ltmp1:", "(pc) = sbr.rel @p3 .LBB2_1-.Ltmp1, $1"]
    loop = ["s9 = simm.s32 $0x0", ".LBB2_1:", *body, *branch, "_ = snop"]
    ends = ["s4 = sld [smem:$0x40]", "s5 = sld [smem:$0x41]", f"[sflag:$0x20] = ssyncadd.s32 {stores}s1"]
    ends += ["[sflag:$0x21] = ssyncadd.s32 s4", "[sflag:$0x22] = ssyncadd.s32 s5"]
    code = [*known, *before, *loop, *after, *ends]

    def outcome() -> tuple[int, list[int]]:
        device = Device(a_chip(), gather([*ON_TILE_0, *code, *ENDS]))
        device.launch(0)
        flags = device.cores._cores[0].tiles[0].flags
        return device.end(), [flags._flag(number).total for number in (0x20, 0x21, 0x22)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translate, "leave_out_dead_values", lambda blocks, code: [frozenset()] * len(blocks))
        patch.setattr(translate, "constant_words", lambda section, symbols: frozenset())
        executed = outcome()
    assert outcome() == executed


class TestOwnWords:
    """Words of a tile's memory that only its program reads and writes, at constant addresses, are variables."""

    def test_addresses_that_are_spilled_are_left_out(self) -> None:
        code = ["s6 = simm.s32 $0x5", "s6 = sadd.s32 $0x7, s6", "[smem:$0x40] = sst s6", "s7 = sld [smem:$0x40]"]
        body = tiles([*code, "[smem:$0x41] = sst s7"]).source.partition("while True")[2]
        assert "store(" not in body
        assert "load(" not in body
        assert "s6" not in body

    def test_what_decides_is_kept(self) -> None:
        code = ["s6 = simm.s32 $0x5", "[smem:$0x40] = sst s6", "s7 = sld [smem:$0x40]"]
        source = tiles([*code, "[sflag:$0x20] = ssyncadd.s32 s7"]).source
        assert "m_64" in source
        assert "store(" not in source.partition("while True")[2]

    @pytest.mark.parametrize(
        "code",
        [
            ["s7 = sld [smem:$0x40]", "[smem:$0x40] = sst s7", "[sflag:$0x20] = ssyncadd.s32 s7"],  # from a task before
            ["[smem:$0x40] = sst s6", "s7 = sld [smem:s6]", "[sflag:$0x20] = ssyncadd.s32 s7"],  # any of them is read
        ],
    )
    def test_words_of_others_stay_in_memory(self, code: list[str]) -> None:
        assert "store(t, 64, " in tiles(["s6 = simm.s32 $0x40", *code]).source
