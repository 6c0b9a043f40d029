"""Tables of routes: where entries lead, as rings' constants and neighbours say, and what a program reads of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulator_listings import listing

from systolic.chips import SliceShape, chip
from systolic.simulator import NeighbourTableError, SimulationError
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.lanes import DivergedError, Lanes
from systolic.simulator.reading.calls import CallOperand
from systolic.simulator.reading.collectives import HloCollective, Kind, SliceHlo
from systolic.simulator.reading.listing import parse_listing
from systolic.simulator.schedule import Schedule
from systolic.simulator.slice.addresses import Addresses
from systolic.simulator.slice.constant_operands import ConstantOperand
from systolic.simulator.slice.constants import Constants
from systolic.simulator.slice.facts import SliceFacts
from systolic.simulator.slice.identity import identity_words, row_words
from systolic.simulator.slice.one_for_all import OneForAll, Pattern, PatternNetwork
from systolic.simulator.slice.route_pointers import ROUTES_AT
from systolic.simulator.slice.route_tables import RouteTables
from systolic.simulator.slice.routes import Routes
from systolic.simulator.slice.schedules import busiest_rows

SHAPE = SliceShape.parse(chip("v5e"), "4x8")
CHIPS, EXTENT, NEXT, BEFORE = 32, 8, 13, 14
FOLDED = (0, 1, 3, 5, 7, 6, 4, 2)  # there on odd chips, and back on even ones
# Partitions go along the second axis first, as JAX's meshes of such slices do.
ASSIGNMENT = [x + 4 * y for x in range(4) for y in range(EXTENT)]
GROUPS = tuple(tuple(range(first, first + EXTENT)) for first in range(0, CHIPS, EXTENT))


def table(*, by_partition: bool = False) -> np.ndarray:
    rows = np.zeros((CHIPS, 4), np.int64)
    for partition, device in enumerate(ASSIGNMENT):
        y = device // 4
        rows[partition if by_partition else device] = [y, NEXT, BEFORE, FOLDED.index(y)]
    return rows


def facts(rows: np.ndarray, kind: Kind = "all-gather", groups: tuple[tuple[int, ...], ...] = GROUPS) -> SliceFacts:
    operand = CallOperand(
        register="s1", space="hbm", index=2, is_input=True, is_constant=True, dtype="s32", shape=(rows.size,)
    )
    collective = HloCollective(name="one", kind=kind, groups=groups)
    return SliceFacts(
        hlo=SliceHlo(partitions=CHIPS, replicas=1, collectives={"one": collective}, permutes=()),
        words={},
        constants=Constants(
            operands=(ConstantOperand(operation="one", operand=operand, allocation=7),),
            contents={7: rows.flatten().tolist()},
            places={},
            unknown="",
        ),
    )


def tables(rows: np.ndarray, assignment: Sequence[int] = ASSIGNMENT, **said) -> RouteTables:
    found = RouteTables.of(SHAPE, assignment, facts(rows, **said))
    assert found is not None
    return found


@pytest.mark.parametrize("by_partition", [False, True])
def test_entries_of_a_ring_lead_to_whoever_is_next_on_it(by_partition: bool) -> None:
    found = tables(table(by_partition=by_partition))
    for device in range(CHIPS):
        x, place = device % 4, FOLDED.index(device // 4)
        assert found.target(device, NEXT) == x + 4 * FOLDED[(place + 1) % EXTENT]
        assert found.target(device, BEFORE) == x + 4 * FOLDED[place - 1]


def test_a_program_finds_the_entry_of_a_chip_and_the_chip_of_an_entry() -> None:
    found = tables(table())
    for device, words in enumerate(found.words()):
        at = words[ROUTES_AT + 4]
        for target in range(CHIPS):
            entry = words[at + target] >> 24 & 15
            if target in found.entries[device].values():
                forward = words[at + device * 16 + entry]
                assert (forward & 255, forward >> 31) == (target, 0)
            else:
                assert words[at + device * 16 + entry] >> 31 == 1
                with pytest.raises(SimulationError, match=f"chip {device} sends by an entry"):
                    found.target(device, entry)
        x, y = device % 4, device // 4
        near = {x + 4 * (y + step) for step in (1, -1, 2, -2) if 0 <= y + step < 8}
        assert near < set(found.entries[device].values())


def test_copies_and_signals_name_an_entry_of_the_sender() -> None:
    found = Addresses(SHAPE, tables(table()))
    assert found.of_signal(5, NEXT << 17).device == tables(table()).target(5, NEXT)
    assert found.of_copy(6, NEXT | 1 << 14, 0).device == tables(table()).target(6, NEXT)
    assert not found.of_copy(6, NEXT, 0).remote


def test_chips_are_named_by_number_where_a_table_has_room_for_all() -> None:
    assert RouteTables.of(SliceShape.parse(chip("v5e"), "4x4"), range(16), facts(table())) is None
    assert RouteTables.of(SliceShape.parse(chip("v6e"), "4x8"), ASSIGNMENT, facts(table())) is None


def test_what_is_not_certain_is_refused() -> None:
    far = table()
    far[:, 3] = [y for y in range(EXTENT) for _ in range(4)]  # a ring in order, whose last chip is seven hops away
    with pytest.raises(NeighbourTableError, match="does not lead to"):
        tables(far)
    two = table()
    two[:, 2] = NEXT  # one entry for both neighbours
    with pytest.raises(NeighbourTableError, match="does not lead to"):
        tables(two)
    ranks = table()
    ranks[0, 0] = 1
    with pytest.raises(NeighbourTableError, match="who is next to whom"):
        tables(ranks)
    with pytest.raises(NeighbourTableError, match="who is next to whom"):
        tables(table(), groups=())
    with pytest.raises(NeighbourTableError, match="this all-to-all goes over chips in between"):
        tables(table(), kind="all-to-all")


@pytest.mark.parametrize(
    "rows",
    [
        np.arange(CHIPS)[::-1],
        np.array([(group, rank) for group in range(len(GROUPS)) for rank in range(EXTENT)]),
        np.concatenate([[3, 0, 0, 0], np.arange(3 * 4 * CHIPS)]),  # three steps
    ],
)
def test_constants_without_entries_are_accepted(rows: np.ndarray) -> None:
    for kind in ("all-to-all", "all-gather"):
        assert set(tables(rows, kind=kind).entries[0].values()) == {1, 2, 4, 8}  # one or two hops away


def test_a_device_that_represents_all_has_the_row_of_the_busiest() -> None:
    rows = np.zeros((CHIPS, 2, 4), int)
    rows[5, 0, :2] = [1 << 30 | 7, 1 << 30 | 8]
    rows[6, 1, 3] = 1 << 30 | 9
    said = facts(np.concatenate([[2, 0, 0, 0], rows.flatten()]), "all-gather")
    assert busiest_rows(replace(said, rows={"one": (17, 18)})) == {17: 5, 18: 5}
    assert busiest_rows(said) == busiest_rows(replace(facts(table()), rows={"one": (17,)})) == {}


@pytest.mark.parametrize("rows", [np.zeros(CHIPS, int), np.concatenate([[2, 0, 0, 0], np.arange(3 * 4 * CHIPS)])])
def test_other_constants_of_an_all_to_all_are_refused(rows: np.ndarray) -> None:
    with pytest.raises(NeighbourTableError, match="this all-to-all goes over chips in between"):
        tables(rows, kind="all-to-all")


def test_the_words_that_choose_a_row_are_known_by_what_becomes_of_them() -> None:
    program = parse_listing(
        "one",
        listing(
            "%s1_s1 = sld [smem:[#allocation1]] /* logical chip id */",
            "%s2_s2 = sld [smem:[#allocation2]] /* core id */",
            "%s3_s3 = sld [smem:[#allocation3]] /* logical chip id */  ;;  %s4_s4 = sadd.s32 %s1_s1, %s2_s2",
            "%s5_s5 = smul.u32 %s4_s4, 7  ;;  %s6_s6 = sadd.s32 %s3_s3, %s2_s2",
            "%s7_s7 = sshrl.u32 %s6_s6, 4",
        ),
    )
    words = identity_words(program, remote=True, top_level=False)
    assert words == {"allocation1": "chip", "allocation2": "core", "allocation3": "chip"}
    assert row_words(program, words) == {"allocation1"}


def test_the_pointer_to_the_table_is_known_by_what_is_added_to_it() -> None:
    program = parse_listing(
        "one",
        listing(
            "%s1_s1 = sld [smem:[#allocation1]] /* logical chip id */  ;;  %s2_s2 = reloc 4",
            "%s3_s3 = sld [smem:[#allocation2]] /* physical chip id */",
            "%s4_s4 = sld [smem:[#allocation3]]  ;;  %s5_s4 = int_to_ptr.smem [resolvable:$false] %s4_s4",
            "%s6_s6 = sld [smem:[%s5_s4 + %s2_s2]]",
            "%s7_s7 = sld [smem:[#allocation4]]",
        ),
    )
    assert identity_words(program, remote=True, top_level=False) == {
        "allocation1": "chip",
        "allocation2": "chip",
        "allocation3": "routes",
        "allocation4": "partition",
    }


def one_for_all(*, slowest_counts: bool) -> OneForAll:
    routes, schedule = Routes(SHAPE), Schedule(patient=True)
    return OneForAll(
        schedule=schedule,
        clock_hz=1e9,
        routes=routes,
        network=PatternNetwork(routes, schedule, 1e9, 0, slowest_counts=slowest_counts),
        addresses=Addresses(SHAPE, tables(table())),
        count=CHIPS,
        slowest_counts=slowest_counts,
    )


@pytest.mark.parametrize("slowest_counts", [True, False])
def test_where_devices_copy_differently_much_the_most_counts_for_all(*, slowest_counts: bool) -> None:
    """A window of 3 tiles that reaches beyond the array on the last device alone; the rest is added to the flag."""
    around = one_for_all(slowest_counts=slowest_counts)
    dma, most = DmaEngine(chip("v5e").machine, 1, None, Schedule()), 96
    dma.largest, dma.first = around.largest, around.first
    granules: Any = Lanes((most,) * (CHIPS - 1) + (64,))
    if not slowest_counts:
        with pytest.raises(DivergedError, match="copies of different sizes"):
            dma.start(0, "one", 0, 1, granules, "hbm", "vmem", 0)
        return
    dma.add(0, "one", 1, around.first((most - granules).values))
    dma.start(0, "one", 0, 1, granules, "hbm", "vmem", 0)
    alone = DmaEngine(chip("v5e").machine, 1, None, Schedule())
    alone.start(0, "one", 0, 1, most, "hbm", "vmem", 0)
    assert around.differed
    assert dma.wait(0, "one", 0, 1, most, "copy") == alone.wait(0, "one", 0, 1, most, "copy")
    assert dma.counts[0].hbm_read_bytes == alone.counts[0].hbm_read_bytes


def test_of_what_devices_send_differently_much_the_first_gets_what_its_sender_sends() -> None:
    known, around = tables(table()), one_for_all(slowest_counts=True)
    target = around.signal_target(0, NEXT << 17)
    (sender,) = (each for each in range(CHIPS) if known.target(each, NEXT) == 0)
    assert around.arriving(target, range(100, 100 + CHIPS)) == 100 + sender
    strict = one_for_all(slowest_counts=False)
    with pytest.raises(DivergedError):
        strict.arriving(strict.signal_target(0, NEXT << 17), range(CHIPS))


def test_the_same_entry_on_all_devices_is_another_chip_on_each() -> None:
    known, around = tables(table()), one_for_all(slowest_counts=True)
    anyone: Any = None
    found = around.route(anyone, around.signal_target(0, NEXT << 17))
    assert isinstance(found, Pattern)
    assert [route.links[-1].target for route in found.routes] == [known.target(each, NEXT) for each in range(CHIPS)]


def test_what_is_sent_alone_counts_as_if_it_had_been_sent_again() -> None:
    direct, repeated = one_for_all(slowest_counts=True), one_for_all(slowest_counts=True)
    anyone: Any = None
    schedule = Schedule(patient=True)
    alone = repeated.alone(schedule)

    def send(around: OneForAll, time: float) -> None:
        for number, entry in enumerate((NEXT, NEXT, NEXT + 1)):
            route = around.route(anyone, around.signal_target(0, entry << 17))
            around.network.send(0, time + 100 * number, route, 4096 * (number + 1), lambda _: None)

    send(alone, 0)
    assert not alone.is_idle_from(50_000)  # calls are not looked up while something waits for the links
    schedule.run()
    assert alone.is_idle_from(50_000)
    assert not alone.is_idle_from(10)
    for time in (0, 100_000):
        send(direct, time)
        repeated.repeat(alone)
    direct.schedule.run()
    assert repeated.network.results() == direct.network.results()
    assert repeated.network.copies == direct.network.copies
    assert (repeated.differed or repeated.network.differed) == (direct.differed or direct.network.differed)
