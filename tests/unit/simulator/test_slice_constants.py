"""Constants among a program's allocations, their contents, and the tables of collectives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulator_listings import listing

from systolic.simulator import NeighbourTableError
from systolic.simulator.reading.calls import CallOperand
from systolic.simulator.reading.collectives import parse_collectives
from systolic.simulator.reading.listing import Program, parse_listing
from systolic.simulator.slice.constant_operands import ConstantOperand
from systolic.simulator.slice.constants import (
    Constants,
    constant_allocations,
    constant_contents,
    constants_of,
    images_among,
)
from systolic.simulator.slice.facts import SliceFacts
from systolic.simulator.slice.tables import check_tables

SLOT = 1 << 14
PADDING = b"\xc0\x7f\xc0\x7f"


def top_level(*bundles: str) -> Program:
    return parse_listing("TLP", listing(*bundles))


# Where constants begin goes through a move and a spill; one constant is handed on, of the other a part is copied.
USES = (
    "%s1_s1 = sld [smem:[#allocation9]] /* hbm offset */",
    "%9 = sst [smem:[#allocation20_spill]] %s1_s1  ;;  %s2_s2 = smov %s1_s1",
    "%s3_s3 = sld [smem:[#allocation20_spill]]",
    "%s4_s4 = scalar_lea.hbm [#allocation5], %s2_s2  ;;  %s5_s5 = scalar_lea.hbm [#allocation3], %s3_s3",
    "%s6_s6 = smov %s4_s4",
    "%7 = inlined_call %s6_s6 /* %all-gather.1 = all-gather(%p) */",
)


def operand(words: int) -> CallOperand:
    return CallOperand(
        register="s6", space="hbm", index=2, is_input=True, is_constant=True, dtype="s32", shape=(words,)
    )


def slot(*words: int) -> bytes:
    held = np.array(words, "<u4").tobytes()
    return (held + PADDING * (-len(words) % 128)).ljust(SLOT, b"\0")


def ring(devices: int) -> np.ndarray:
    ids = np.arange(devices)
    return np.stack([ids, (ids + 1) % devices, (ids - 1) % devices, 0 * ids], 1)


def test_allocations_to_which_the_begin_is_added_are_constants() -> None:
    assert constant_allocations(top_level(*USES), {"allocation9"}) == {3, 5}
    assert constant_allocations(top_level(*USES), {"allocation8"}) == frozenset()
    image = "%s7_s7 = sadd.s32 16, %s3_s3"  # of a SparseCore program, for its descriptor
    described = (image, "%9 = sst [smem:[#allocation36 + $0x5b]] %s7_s7")
    assert constant_allocations(top_level(*USES, *described), {"allocation9"}) == {3, 5}
    with pytest.raises(NeighbourTableError, match="sadd"):
        constant_allocations(top_level(*USES, image, "%s8_s8 = sshll.u32 %s7_s7, 2"), {"allocation9"})


def facts(segment: bytes, devices: int = 8) -> SliceFacts:
    found = constants_of(
        top_level(*USES),
        {"allocation3": 3 << 16, "allocation5": 5 << 16, "allocation9": 9},
        {9: "constants"},
        {"all-gather.1": [operand(4 * devices)]},
        segment,
        tables={},
        granule_bytes=32,
    )
    hlo = parse_collectives(
        "HloModule f, num_partitions=8\n\nENTRY %e (p: f32[8]) -> f32[64] {\n"
        "  ROOT %all-gather.1 = f32[64]{0} all-gather(%p), dimensions={0}\n}\n"
    )
    return SliceFacts(hlo=hlo, words={}, constants=found)


def test_constants_lie_in_the_order_of_their_numbers() -> None:
    found = facts(slot(7, 6, 5) + slot(*ring(8).ravel()))
    assert found.constants.unknown == ""
    assert found.constants.operands == (ConstantOperand(operation="all-gather.1", operand=operand(32), allocation=5),)
    held = found.constants.in_hbm(1 << 30)
    assert list(held[(1 << 30) + (3 << 16)][:3]) == [7, 6, 5]
    assert list(held[(1 << 30) + (5 << 16)][:32]) == ring(8).ravel().tolist()
    check_tables(found, range(8))


def test_programs_that_set_sparse_cores_up_are_constants_of_their_own_size() -> None:
    described = "%9 = sst [smem:[#allocation36 + $0x5b]] %s7_s7"
    handed_on = "%8 = inlined_call %s7_s7 /* %f = fusion(%p) */"
    base = "%s7_s7 = scalar_lea.hbm [#allocation3], %s1_s1"
    assert images_among(top_level(base, described), {3, 5}) == {3}
    assert images_among(top_level(base, described), {5}) == frozenset()
    assert images_among(top_level(base, handed_on), {3, 5}) == frozenset()
    table = ConstantOperand(operation="f", operand=operand(32), allocation=5)
    image, programs = bytes(15 * SLOT + SLOT // 2), bytes(SLOT)  # another program has no number, and comes first
    contents = constant_contents(
        programs + image.ljust(16 * SLOT) + slot(*range(32)), {3, 5}, [table], {3: 31 * SLOT // 2}
    )
    assert list(contents[5][:32]) == list(range(32))
    with pytest.raises(NeighbourTableError, match="2 constants take 2 times"):
        constant_contents(programs + image.ljust(16 * SLOT) + slot(*range(32)), {3, 5}, [table])


STORED = (
    "%s1_s1 = sld [smem:[#allocation9]] /* hbm offset */",
    "%s2_s2 = scalar_lea.hbm [#allocation3], %s1_s1  ;;  %s4_s4 = scalar_lea.hbm [#allocation5], %s1_s1",
    "%7 = dma.hbm_to_vmem [thread:$0] /*hbm=*/%s2_s2, /*size_in_granules=*/600, /*vmem=*/%s6_s6, "
    "/*dst_syncflagno=*/[#allocation8]",
    "%8 = sst [smem:[#allocation7 + $0x28]] %s4_s4 /* call-argument-store #40 */",
    "%9 = inlined_call %s5_s5 /* %all-gather.1 = all-gather(%p) */",
)


def test_sizes_of_constants_that_no_operation_declares_are_known_by_their_use() -> None:
    programs = bytes(SLOT)  # of SparseCores, which come first: without a size of each constant nothing is certain
    segment = programs + slot(*range(128)) + slot(7) + slot(*ring(8).ravel())  # 600 granules of 32 bytes take two slots
    words = {"allocation3": 3 << 16, "allocation5": 5 << 16, "allocation9": 9}

    def constants(tables: dict[str, int]) -> Constants:
        return constants_of(top_level(*STORED), words, {9: "constants"}, {}, segment, tables=tables, granule_bytes=32)

    known = constants({"all-gather.1": 32})
    assert known.unknown == ""
    assert [(table.allocation, table.operand.index) for table in known.operands] == [(5, 40)]
    assert list(known.contents[5][:32]) == ring(8).ravel().tolist()
    assert list(known.contents[3][:128]) == list(range(128))
    assert "2 constants take 3 times" in constants({}).unknown
    assert "28 words, which is not" in constants({"all-gather.1": 28}).unknown


def test_a_large_constant_takes_several_slots() -> None:
    large = ConstantOperand(operation="f", operand=operand(3 * SLOT // 4), allocation=2)
    segment = np.arange(3 * SLOT // 4, dtype="<u4").tobytes() + slot(1) + slot(2)[:512]
    found = constant_contents(segment, {2, 3, 4}, [large])
    assert [int(found[number][0]) for number in (2, 3, 4)] == [0, 1, 2]
    with pytest.raises(NeighbourTableError, match="4 times"):
        constant_contents(segment[:-512], {2, 3, 4}, [replace(large, operand=operand(8 * SLOT // 4))])


@pytest.mark.parametrize(
    "segment",
    [
        b"",
        slot(*ring(8).ravel()),
        slot(7) + slot(*ring(8).ravel()) + slot(7),
        slot(7) + slot(*ring(8).ravel()[:-1]),
        slot(7) + slot(*ring(9).ravel()),
        slot(7) + slot(*ring(8)[::-1].ravel()),
        slot(7) + slot(*ring(8).ravel() * 3),
    ],
    ids=["not found", "one too few", "one too many", "a short table", "a long table", "other rows", "no devices"],
)
def test_tables_that_are_not_certain_are_refused(segment: bytes) -> None:
    with pytest.raises(NeighbourTableError, match=r"all-gather\.1"):
        check_tables(facts(segment), range(8))


def test_a_table_of_a_mesh_in_another_order_names_devices_by_partition() -> None:
    assignment = np.array([0, 2, 4, 6, 7, 5, 3, 1])
    table = ring(8)
    table[:, 1:3] = assignment[table[:, 1:3]]
    found = facts(slot(7) + slot(*table.ravel()))
    check_tables(found, assignment.tolist())
    with pytest.raises(NeighbourTableError):
        check_tables(found, range(8))
