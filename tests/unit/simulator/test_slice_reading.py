"""Facts read from a program for many devices: collectives, flags by number, words of its identity."""

from __future__ import annotations

import pytest
from simulator_listings import listing

from systolic.chips import SliceError, SliceShape, chip
from systolic.simulator import SimulationError, prepare_listings
from systolic.simulator.hardware.sync_flags import FLAG_BITS, SHARED_FLAGS_FROM
from systolic.simulator.reading.collectives import parse_collectives
from systolic.simulator.reading.listing import Program, parse_listing
from systolic.simulator.slice.barrier_flags import barrier_flags
from systolic.simulator.slice.identity import identity_words
from systolic.simulator.slice.launch import without_launch
from systolic.simulator.translating.names import Allocations, Names
from systolic.simulator.translating.scalar import flag_counts, flag_names


def hlo(groups: str, partitions: int = 8) -> str:
    return (
        f"HloModule jit_f, num_partitions={partitions}\n\nENTRY %main (p: f32[8]) -> f32[64] {{\n"
        "  %p = f32[8]{0} parameter(0)\n"
        f"  ROOT %all_gather.3 = f32[64]{{0}} all-gather(%p), replica_groups={groups}, dimensions={{0}}\n}}\n"
    )


def test_what_communicates() -> None:
    found = parse_collectives(hlo("{{0,1,2,3},{4,5,6,7}}"))
    assert (found.partitions, found.replicas) == (8, 1)
    assert found.collectives["all_gather.3"].kind == "all-gather"


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[2,4]<=[16]", ()),
        ("{}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("mesh['axis_0'=1,'axis_1'=8] {'axis_1'}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("mesh['data'=2,'model'=4] {'data'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=2,'c'=2] {'c','a'}", ((0, 4, 1, 5), (2, 6, 3, 7))),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=2,'b'=4], device_ids=([2,4]T(1,0)) {'a'}", ((0, 2), (4, 6), (1, 3), (5, 7))),
        ("mesh['a'=2,'b'=4], device_ids=([4,4]) {'b'}", ()),
        ("mesh['a'=2,'b'=4] {'c'}", ()),
        ("mesh['a'=2,'b'=4] {'b','b'}", ()),
        ("something new", ()),
    ],
)
def test_who_exchanges_something_with_whom(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    assert parse_collectives(hlo(text)).collectives["all_gather.3"].groups == groups


def test_what_a_sparse_core_communicates_has_the_name_of_its_launch() -> None:
    text = (
        "HloModule jit_f, num_partitions=8\n\n"
        "%called (p: f32[8]) -> f32[64] {\n"
        "  %p = f32[8]{0} parameter(0)\n"
        "  ROOT %all-gather.1 = f32[64]{0} all-gather(%p), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}\n}\n\n"
        "ENTRY %main (p: f32[8]) -> f32[64] {\n"
        "  %p = f32[8]{0} parameter(0)\n"
        "  %gather.call-start = ((f32[8]{0}), f32[64]{0}) call-start(%p), to_apply=%called\n"
        "  ROOT %gather.call-done = f32[64]{0} call-done(%gather.call-start)\n}\n"
    )
    gather = parse_collectives(text).collectives["gather.call-start"]
    assert (gather.kind, gather.fused) == ("all-gather", True)  # beside the TensorCore's operations


@pytest.mark.parametrize(
    ("line", "fused"),
    [
        pytest.param("%s = u32[] multiply(%i, %i)", False, id="a scalar"),
        pytest.param("%s = f32[8]{0} bitcast(%r)", False, id="another name"),
        pytest.param("%s = f32[64]{0} multiply(%r, %r)", True, id="arithmetic"),
    ],
)
def test_a_fusion_of_a_sum_and_its_slice_does_nothing_but_communicate(line: str, fused: bool) -> None:
    text = (
        "HloModule jit_f, num_partitions=8\n\n"
        "%called (p: f32[64]) -> f32[8] {\n"
        "  %p = f32[64]{0} parameter(0)\n"
        "  %r = f32[64]{0} all-reduce(%p), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add\n"
        "  %i = u32[] partition-id()\n"
        f"  {line}\n"
        "  ROOT %d = f32[8]{0} dynamic-slice(%r, %i), dynamic_slice_sizes={8}\n}\n\n"
        "ENTRY %main (p: f32[64]) -> f32[8] {\n"
        "  %p = f32[64]{0} parameter(0)\n"
        "  ROOT %fusion = f32[8]{0} fusion(%p), kind=kCustom, calls=%called\n}\n"
    )
    assert parse_collectives(text).collectives["fusion"].fused is fused


def test_a_ragged_exchange_is_an_exchange() -> None:
    text = hlo("{{0,1,2,3,4,5,6,7}}").replace(" all-gather(", " ragged-all-to-all(")
    assert parse_collectives(text).collectives["all_gather.3"].kind == "all-to-all"


def test_permutations_in_the_order_of_the_schedule() -> None:
    text = (
        "HloModule jit_f, num_partitions=2\n\n"
        "%body (p: f32[8]) -> f32[8] {\n"
        "  %start.1 = f32[8]{0} collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}\n"
        "  ROOT %done.1 = f32[8]{0} collective-permute-done(%start.1)\n}\n\n"
        "ENTRY %main (p: f32[8]) -> f32[8] {\n"
        "  %start.2 = f32[8]{0} collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}\n"
        "  %while = f32[8]{0} while(%p), condition=%cond, body=%body\n"
        "  ROOT %start.3 = f32[8]{0} collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}\n}\n"
    )
    assert parse_collectives(text).permutes == ("start.2", "start.1", "start.3")


def program(*bundles: str, name: str = "op") -> Program:
    return parse_listing(name, listing(*bundles))


SIGNALS = (
    "%s1_s1 = sld [smem:[#allocation1]] /* logical chip id */",
    "%s2_s2 = sshll.u32 %s1_s1, 17",
    "%s3_s3 = sor.u32 32776, %s2_s2",
    "%9 = vsyncadd.remote %s3_s3, 1",
    "%9 = vwait.ge [#allocation5], 1",
)


def test_the_flag_that_is_signalled_by_number() -> None:
    assert barrier_flags(program(*SIGNALS)) == {"allocation5": 8}
    copied = "%9 = dma.hbm_to_vmem [thread:$0]  %s9_s9, 8, %s8_s8, [#allocation6]"
    assert barrier_flags(program(*SIGNALS, copied, "%9 = vwait.ge [#allocation6], 1")) == {"allocation5": 8}
    with pytest.raises(SimulationError, match="allocation5, allocation7"):
        barrier_flags(program(*SIGNALS, "%9 = vwait.ge [#allocation7], 1"))


def test_several_barriers_are_told_apart_by_the_wait_behind_the_signal() -> None:
    second = ("%s4_s4 = sor.u32 32815, %s2_s2", "%9 = vsyncadd.remote %s4_s4, 1", "%9 = vwait.ge [#allocation7], 1")
    assert barrier_flags(program(*SIGNALS, *second)) == {"allocation5": 8, "allocation7": 47}


def test_words_that_say_which_device_it_is() -> None:
    loads = [f"%s{number}_s{number} = sld [smem:[#allocation{number}]]" for number in (10, 3, 7)]
    stored = "%9 = sst [smem:[#allocation12]] %s3_s3"
    found = identity_words(program(*SIGNALS, *loads, stored), remote=True, top_level=False)
    assert found == {
        "allocation1": "chip",
        "allocation3": "partition",
        "allocation7": "replica",
        "allocation10": "assignment",
    }
    too_many = [f"%s{number}_s{number} = sld [smem:[#allocation{number}]]" for number in (13, 14)]
    with pytest.raises(SimulationError, match="allocation14"):
        identity_words(program(*SIGNALS, *loads, *too_many), remote=True, top_level=False)


def test_words_that_a_load_reads_when_it_is_not_due_are_not_the_runtimes() -> None:
    loads = [f"%s{number}_s{number} = sld [smem:[#allocation{number}]]" for number in (10, 3, 72, 73)]
    selected = "%s4_s4 = scalar_select %p1_p1, [#allocation59], [#allocation2]"
    used = "%s6_s6 = sld [smem:[#allocation2 + $0x1]]"
    words = identity_words(program(*SIGNALS, *loads, selected, used), remote=True, top_level=False)
    assert words == {"allocation1": "chip", "allocation3": "partition", "allocation10": "replica"}


def test_words_that_only_go_into_a_sparse_cores_descriptor_are_not_named() -> None:
    """The program's image is known by its place there; the pointer to results by its number, as they are read too."""
    places = {3: 0x50, 4: 0x4F, 5: 0x4E}
    code = [f"%s{number}_s{number} = sld [smem:[#allocation{number}]]" for number in (*places, 7, 12)]
    code += [f"%9 = sst [smem:[#allocation36 + ${place:#x}]] %s{number}_s{number}" for number, place in places.items()]
    code += ["%s13_s13 = sadd.s32 16128, %s12_s12", "%9 = sst [smem:[#allocation36 + $0x5b]] %s13_s13"]
    code += ["%s14_s3 = int_to_ptr.hbm [resolvable:$false] %s3_s3", "%s15_s7 = sadd.s32 1, %s7_s7"]
    words = identity_words(program(*SIGNALS, *code), remote=True, top_level=True)
    assert words == {"allocation1": "chip", "allocation7": "partition", "allocation12": "constants"}


def test_words_that_are_loaded_through_an_address_selected_before() -> None:
    code = (
        "%s1_s1 = scalar_select %p1_p1, [#allocation4], [#allocation6]",
        "%s2_s2 = smov (!%p2_p2, %s1_s1), [#allocation7]",
        "%s3_s3 = sld [smem:[%s2_s2]] /* core id */",
        "%s4_s4 = scalar_select %p1_p1, [#allocation8], [#allocation9]",
        "%s5_s5 = sld [smem:[%s4_s4]]",
    )
    found = identity_words(program(*code), remote=False, top_level=False)
    assert found == dict.fromkeys(("allocation4", "allocation6", "allocation7"), "core")


def test_the_launch_is_left_out() -> None:
    code = ("%1 = vtrace 2952790016", "%2 = vsyncadd.remote 32776, 1", "%3 = vtrace 3221225472", "%s1_s1 = smov 1")
    left = [
        each.opcode for bundle in without_launch(program(*code, name="TLP")).bundles for each in bundle.instructions
    ]
    assert left == ["vtrace", "vtrace", "smov"]
    with pytest.raises(SimulationError, match="launch"):
        without_launch(program("%s1_s1 = smov 1", name="TLP"))


def test_a_slice_of_one_device_is_that_device() -> None:
    known = chip("v6e")
    prepared = prepare_listings({"TLP": listing("%s1_s1 = smov 1", *[""] * 50)}, known)
    one = prepared.run_slice(SliceShape.parse(known, "1x1"), [0], chip=known)
    assert (one.slowest, one.devices, one.links, one.collectives) == (prepared.run(known), 1, (), ())
    with pytest.raises(SliceError, match="one device"):
        prepared.run_slice(SliceShape.parse(known, "2x2"), range(4), chip=known)


def test_flags_whose_number_is_certain_take_no_more() -> None:
    program = parse_listing(
        "TLP",
        listing(
            "%1 = vsyncpa [#allocation1], 0",
            "%2 = vsyncpa [#allocation2], 0",
            "%3 = vsyncpa [#allocation2 + $0x1], 0",
            "%s4_s4 = scalar_lea.sflag [#allocation2], %s3_s3",
            "%5 = vsyncpa [#allocation3], 0",
            "%s6_s6 = scalar_lea.sflag [#allocation3], %s3_s3",
            "%7 = dma.done.wait [#allocation1], 16",
            "%s8_s8 = sor.u32 [#allocation4], %s3_s3",
            "%9 = dma.done.wait [#allocation4], 16",
        ),
    )
    assert flag_counts(program, flag_names(program)) == {"allocation1": 1, "allocation2": 2}


def test_many_flags_of_the_top_level_have_numbers() -> None:
    names = frozenset(f"allocation{number}" for number in range(1200))
    found = Names(names, Allocations(), shared=True, numbered={}, counts=dict.fromkeys(names, 2))
    numbers = [found.address(name) for name in sorted(names)]
    assert len({number + more for number in numbers for more in range(2)}) == 2400
    assert all(SHARED_FLAGS_FROM <= number < (1 << FLAG_BITS) - 1 for number in numbers)
    unknown = Names(names, Allocations(), shared=True, numbered={})
    with pytest.raises(SimulationError, match="no number is left"):
        [unknown.address(name) for name in names]
