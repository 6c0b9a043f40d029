"""SparseCore listings: bundles, blocks, streams, and which program a launch means."""

import pytest
from sparse_listings import GATHER, listing

from systolic.simulator import SimulationError
from systolic.simulator.sparse_core.blocks import split_section
from systolic.simulator.sparse_core.launch import Launch, programs_by_launch
from systolic.simulator.sparse_core.listing import parse_sparse_listing
from systolic.simulator.sparse_core.streams import GeneralCopy, Stream, read_general_copy, read_stream
from systolic.simulator.sparse_core.translate import translate_sparse


def test_sections_count_from_zero_and_carry_their_functions() -> None:
    read = parse_sparse_listing("gather", GATHER)
    assert read.granules == len(read.scs.bundles) + 2 * len(read.tec.bundles)
    symbols = read.symbols()
    assert symbols["_scs_section_size"] == len(read.scs.bundles)
    assert symbols["execute0_lowered"] == 0
    assert symbols["_size_execute0_lowered"] == symbols["_tile_overlayer_lowered"]
    assert symbols["_size_execute0_lowered"] + symbols["_size__tile_overlayer_lowered"] == len(read.tec.bundles)


def test_an_instruction_has_its_condition_and_all_destinations() -> None:
    text = listing(["[timem:s3], [sflag:s2] = dma.local @!p0 [hbm:s0], $0x10", "_ = shalt"], [])
    (copy,) = parse_sparse_listing("one", text).scs.bundles[0].instructions
    assert (copy.opcode, copy.dests, copy.operands) == (
        "dma.local",
        ("[timem:s3]", "[sflag:s2]"),
        ("[hbm:s0]", "$0x10"),
    )
    assert (copy.predicate, copy.negated) == ("p0", True)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("0x0: { _ = snop }", "neither scs nor tec"),
        ("scs\n0x1: { _ = snop }", "cut or doubled"),
        ("scs\n0x0: { _ = snop", "does not end"),
        ("scs\n0x0: { snop }", "no instruction"),
        ("scs\nwhat is this", "not a bundle"),
        ("tec\n0x0: { _ = snop }", "no program of a sequencer"),
    ],
)
def test_what_is_not_understood_is_named(broken: str, why: str) -> None:
    with pytest.raises(SimulationError, match=why):
        parse_sparse_listing("broken", broken)


@pytest.mark.parametrize(
    ("said", "kind", "slots"), [(", $4", "tec", 4), (", $1", "scs", 1), ("", "tec", 2), ("", "scs", 3)]
)
def test_delay_slots_are_those_that_are_printed_or_the_machines(said: str, kind: str, slots: int) -> None:
    code = [f"(pc) = sbr.rel @p0 .LBB2_1-.Ltmp0{said}", *["_ = snop"] * 5, ".LBB2_1:", "_ = shalt"]
    read = parse_sparse_listing("branch", listing(*([code, []] if kind == "scs" else [["_ = shalt"], code])))
    section = read.scs if kind == "scs" else read.tec
    first, *_, last = split_section("branch", section, kind)
    assert first.last == slots
    assert (first.taken, last.first) == (len(split_section("branch", section, kind)) - 1, 6)


def test_a_branch_to_nowhere_is_named() -> None:
    code = ["(pc) = sbr.rel .LBB2_9-.Ltmp0, $1", "_ = snop", "_ = shalt"]
    with pytest.raises(SimulationError, match=r"line 2: a branch to nowhere"):
        translate_sparse(parse_sparse_listing("lost", listing(code, [])))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[tilespmem:s1], [sflag:$0x5] = stream.indirect.gather [hbm4b:s2+s3], $0x80, s4, s5, $0x2000b8",
            Stream(source="hbm", destination="tilespmem", words="$0x80", count="s5", mask=None, flag="[sflag:$0x5]"),
        ),
        (
            "[spmem:s9] = stream.indirect_vreg.scatter.add.s32 [tilespmem:s1], [sflag:s6], $0x1, v0, vm0, $0x4038",
            Stream(source="tilespmem", destination="spmem", words="$0x1", count=None, mask="vm0", flag="[sflag:s6]"),
        ),
        (
            "[hbm4b:s2+s3] = stream.linear.scatter [tilespmem:s1], [sflag:s6], $0x4000, $0x38",
            Stream(source="tilespmem", destination="hbm", words="$0x4000", count=None, mask=None, flag="[sflag:s6]"),
        ),
    ],
)
def test_streams(text: str, expected: Stream) -> None:
    ((stream,),) = (bundle.instructions for bundle in parse_sparse_listing("s", listing([text], [])).scs.bundles)
    assert read_stream(stream) == expected


@pytest.mark.parametrize(
    "text", ["s1 = sfrobnicate.s32 s2, s3", "_ = swait.lt [sflag:s1], $0x1", "[hbm:s1] = dma.far s2"]
)
def test_an_unknown_instruction_is_quoted(text: str) -> None:
    with pytest.raises(SimulationError, match=f"line 2.*{text.split()[2]}"):
        translate_sparse(parse_sparse_listing("odd", listing([text, "_ = shalt"], [])))


def launch(number: int, granules: int, code: int = 0) -> Launch:
    words = [0] * 128
    words[0x53], words[0x5A], words[0x5B] = number, granules, code
    return Launch.read(words)


def program(name: str, bundles: int):
    return translate_sparse(parse_sparse_listing(name, listing(["_ = snop"] * (bundles - 1) + ["_ = shalt"], [])))


def test_a_launch_is_told_by_its_number_and_size() -> None:
    programs = [program(*each) for each in (("sc-start.0", 4), ("sc-start.0 again", 4), ("a", 7), ("b", 9), ("c", 9))]
    find = programs_by_launch(programs, {0: "c", 1: "b", 2: "b"})
    assert find(launch(3, 7)).name == "a"  # the only one of its size
    assert [find(launch(number, 9)).name for number in (0, 2)] == ["c", "b"]
    nobody = 0xFFFFFFFF
    assert [find(launch(nobody, 8064, code)).name for code in (1, 8065, 1)] == [
        "sc-start.0", "sc-start.0 again", "sc-start.0",
    ]  # fmt: skip
    with pytest.raises(SimulationError, match="program 3 of 9 granules"):
        find(launch(3, 9))
    with pytest.raises(SimulationError, match="program 1 of 7 granules"):
        find(launch(1, 7))  # it is named "b", which has another size
    with pytest.raises(SimulationError, match="8 granules"):
        find(launch(0, 8))


@pytest.mark.parametrize("negated", ["", "!"])
def test_of_two_opposite_branches_one_is_taken(negated: str) -> None:
    other = "" if negated else "!"
    code = [".Ltmp1:", f"(pc) = sbr.rel @{negated}p0 .LBB2_8-.Ltmp1, $2"]
    code += [".Ltmp2:", f"(pc) = sbr.rel @{other}p0 .LBB2_9-.Ltmp2, $2", "_ = snop", "s1 = simm.s32 $0x7"]
    code += [".LBB2_8:", "_ = snop", ".LBB2_9:", "_ = shalt"]
    section = parse_sparse_listing("pair", listing(code, [])).scs
    first, slots, eight, nine = split_section("pair", section, "scs")
    # The first is taken after its two delay slots; else the second is, whose last slot is a block of its own.
    assert (first.first, first.last, first.taken, first.following) == (0, 2, 2, 1)
    assert (slots.first, slots.last, slots.branch, slots.following) == (3, 3, None, 3)
    assert (eight.first, nine.first) == (4, 5)


def test_two_branches_with_one_condition_are_refused() -> None:
    code = [".Ltmp1:", "(pc) = sbr.rel @p0 .LBB2_8-.Ltmp1, $2", ".Ltmp2:", "(pc) = sbr.rel @p0 .LBB2_8-.Ltmp2, $2"]
    code += [*["_ = snop"] * 3, ".LBB2_8:", "_ = shalt"]
    with pytest.raises(SimulationError, match="in the shadow of a branch"):
        split_section("pair", parse_sparse_listing("pair", listing(code, [])).scs, "scs")


@pytest.mark.parametrize(("words", "offset"), [(0x3F9D, 0), (0x3F9D, 2), (0x3F77, 2)])
def test_a_program_goes_on_with_the_part_that_it_asks_its_loader_for(words: int, offset: int) -> None:
    # The second part is run next, the third is fetched meanwhile, and the second is entered at an offset.
    code = [
        text
        for word, value in enumerate((2, 3, offset), words)
        for text in (f"lr = simm.s32 ${value:#x}", f"[smem:$0x{word:X}] = sst lr")
    ]
    code += ["lr = scall.abs $__scs_overlays_trampoline_lowered, $1", "_ = snop"]
    code += [".L_overlay_start_1:", "_ = shalt", ".L_overlay_start_2:", *["_ = snop"] * 2, "_ = shalt"]
    section = parse_sparse_listing("parts", listing(code, [])).scs
    blocks = split_section("parts", section, "scs")
    first = blocks[0]
    assert first.last == 7
    assert first.taken is not None
    assert blocks[first.taken].first == 9 + offset


def test_a_part_that_is_entered_at_no_known_place_is_refused() -> None:
    code = ["lr = simm.s32 $0x1", "[smem:$0x3F9D] = sst lr", "[smem:$0x3FA0] = sst lr", "[smem:$0x3F9F] = sst lr"]
    code += ["lr = scall.abs $__scs_overlays_trampoline_lowered, $1", "_ = snop", ".L_overlay_start_1:", "_ = shalt"]
    with pytest.raises(SimulationError, match="a branch to nowhere"):
        split_section("parts", parse_sparse_listing("parts", listing(code, [])).scs, "scs")


def test_the_one_table_of_a_program_comes_first_in_its_image() -> None:
    name = ".Lall-gather.1_const_literal_config"
    one = parse_sparse_listing("one", listing([f"s1 = simm.s32 {name}", "_ = shalt"], []))
    assert one.symbols()[name] == 0
    two = parse_sparse_listing("two", listing([f"s1 = simm.s32 {name}", f"s1 = simm.s32 {name[:-7]}2_config"], []))
    assert two.symbols()[name] == 0
    other = ".Lall-reduce.2_const_literal_config"
    several = listing([f"s1 = simm.s32 {name}", f"s1 = simm.s32 {other}", "_ = shalt"], [])
    with pytest.raises(SimulationError, match="not understood"):
        translate_sparse(parse_sparse_listing("several", several))


def test_a_copy_to_any_device_names_both_flags_and_its_target() -> None:
    text = "[hbm:s1], [sflag:s2] = dma.general @p1 [spmem:s3], [sflag:s4], length:s5, [dreg:$0x0], stride_count:$0x1, "
    text += "ici_dest:s6, dma_misc:DstOpCode:{what}"
    (copy,) = parse_sparse_listing("one", listing([text.format(what="WRITE")], [])).scs.bundles[0].instructions
    assert read_general_copy(copy) == GeneralCopy(
        source="spmem", destination="hbm", flag="[sflag:s2]", source_flag="[sflag:s4]", granules="s5", target="s6"
    )
    (added,) = parse_sparse_listing("one", listing([text.format(what="ADD")], [])).scs.bundles[0].instructions
    with pytest.raises(SimulationError, match="a copy that is not understood"):
        read_general_copy(added)


def test_tables_before_a_programs_code_are_no_part_of_its_listing() -> None:
    words = [0] * 128
    words[0x53], words[0x5A], words[0x5B], words[0x7F] = 0, 1034, 5032, 5000
    launch = Launch.read(words)
    assert (launch.granules, launch.code_granules) == (1034, 1002)
