"""Routes, and links that copies share: what arithmetic says of bytes, shares and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from systolic.chips import SliceShape, chip
from systolic.simulator.errors import TooManyCopiesError
from systolic.simulator.hardware.hbm_pipe import HbmPipe
from systolic.simulator.schedule import Schedule
from systolic.simulator.slice.communication import Communications
from systolic.simulator.slice.fair_shares import changed_rates, fair_rates
from systolic.simulator.slice.network import MAX_COPIES, Network
from systolic.simulator.slice.routes import Routes

CLOCK = 1e9


def slice_of(name: str, extents: str) -> SliceShape:
    return SliceShape.parse(chip(name), extents)


def axes(routes: Routes, source: int, target: int) -> list[str]:
    return [link.axis for link in routes.between(source, target).links]


class Sends:
    """Copies over the links of a slice, and when the last byte of each has left."""

    def __init__(self, shape: SliceShape, most_copies: int = MAX_COPIES) -> None:
        self.schedule = Schedule(patient=True)
        self.routes = Routes(shape)
        self.network = Network(self.routes, self.schedule, CLOCK, spans=4, most_copies=most_copies)
        self.ended: list[tuple[str, float]] = []
        self.bytes_per_cycle = shape.links.bytes_per_s / CLOCK

    def send(
        self, name: str, source: int, target: int, size: int, time: float = 0.0, pipes: Sequence[HbmPipe] = ()
    ) -> None:
        route = self.routes.between(source, target)
        self.network.send(source, time, route, size, lambda end: self.ended.append((name, end)), pipes)

    def ends(self) -> dict[str, float]:
        self.schedule.run()
        return dict(self.ended)


# ---- routes ----


def test_a_route_goes_along_one_axis_after_the_other() -> None:
    routes = Routes(slice_of("v6e", "4x4"))
    assert axes(routes, 0, 14) == ["x+", "x+", "y+", "y+", "y+"]
    assert axes(routes, 14, 0) == ["x-", "x-", "y-", "y-", "y-"]
    assert routes.between(0, 14).latency_s == pytest.approx(5 * slice_of("v6e", "4x4").links.hop_s)


def test_a_link_between_two_chips_is_one_link_in_each_direction() -> None:
    routes = Routes(slice_of("v5p", "2x2x2"))
    (there,), (back,) = routes.between(0, 4).links, routes.between(4, 0).links
    assert (there.source, there.target, there.axis) == (0, 4, "z+")
    assert (back.source, back.target, back.axis) == (4, 0, "z-")
    assert routes.between(0, 5).links[1] is routes.between(1, 5).links[0]


def test_a_route_takes_the_shorter_way_round_where_an_axis_wraps() -> None:
    assert axes(Routes(slice_of("v6e", "2x16")), 0, 2 * 13) == ["y-"] * 3
    assert axes(Routes(slice_of("v6e", "2x8")), 0, 2 * 7) == ["y+"] * 7
    assert axes(Routes(slice_of("v5p", "4x4x4")), 0, 3) == ["x-"]


def test_devices_of_one_chip_have_a_link_of_their_own() -> None:
    shape = slice_of("v7x", "2x2x1")
    routes = Routes(shape)
    (die,) = routes.between(2, 3).links
    assert (die.axis, die.source, die.target) == ("die", 2, 3)
    assert routes.bytes_per_s(die) == shape.links.die_bytes_per_s
    assert routes.between(0, 3).links == routes.between(1, 2).links  # chips' links are both devices'


# ---- shares ----


def test_the_fullest_link_decides_and_the_rest_is_left_to_others() -> None:
    rates = fair_rates({"a": "x", "b": "xy", "c": "y", "d": "z"}, {"x": 10.0, "y": 30.0, "z": 7.0}.__getitem__)
    assert rates == {"a": 5.0, "b": 5.0, "c": 25.0, "d": 7.0}


def test_flows_that_come_and_go_leave_the_rates_that_all_together_would_have() -> None:
    random = np.random.default_rng(0)
    capacity = {link: float(random.integers(1, 20)) for link in range(12)}
    flows: dict[int, list[int]] = {}
    on: dict[int, dict[int, None]] = {link: {} for link in capacity}
    rates: dict[int, float] = {}
    worked_out = 0
    for number in range(400):
        if flows and random.random() < 0.45:
            links = flows.pop(gone := int(random.choice(list(flows))))
            rates.pop(gone)
            for link in links:
                del on[link][gone]
        else:
            links = flows[number] = random.choice(12, size=int(random.integers(1, 4)), replace=False).tolist()
            rates[number] = 0.0
            for link in links:
                on[link][number] = None
        changed = dict.fromkeys(flow for link in links for flow in on[link])
        found = changed_rates(changed, flows.__getitem__, on.__getitem__, rates.__getitem__, capacity.__getitem__)
        rates.update(found)
        worked_out += len(found) < len(flows)
        assert rates == pytest.approx(fair_rates(flows, capacity.__getitem__), rel=1e-6)
    assert worked_out > 100, "others are left alone"


def test_a_copy_alone_has_the_whole_link() -> None:
    sends = Sends(slice_of("v6e", "2x4"))
    sends.send("far", 0, 7, 928_000)
    assert sends.ends()["far"] == pytest.approx(928_000 / sends.bytes_per_cycle)
    assert {(run.axis, run.sent_bytes) for run in sends.network.results()} == {("x+", 928_000), ("y+", 928_000)}
    assert all(run.busy_cycles == round(928_000 / sends.bytes_per_cycle) for run in sends.network.results())


def test_two_devices_share_a_link_and_end_together() -> None:
    sends = Sends(slice_of("v6e", "2x4"))
    sends.send("through", 0, 4, 100_000)
    sends.send("near", 2, 4, 100_000)
    ends = sends.ends()
    assert ends["through"] == ends["near"] == pytest.approx(2 * 100_000 / sends.bytes_per_cycle)


def test_a_share_grows_when_another_copy_ends() -> None:
    sends = Sends(slice_of("v6e", "2x4"))
    sends.send("long", 0, 4, 300_000)
    sends.send("short", 2, 4, 100_000)
    ends = sends.ends()
    assert ends["short"] == pytest.approx(200_000 / sends.bytes_per_cycle)
    assert ends["long"] == pytest.approx(400_000 / sends.bytes_per_cycle)


def test_copies_of_one_device_along_one_route_follow_each_other() -> None:
    sends = Sends(slice_of("v6e", "2x4"))
    sends.send("first", 0, 1, 100_000)
    sends.send("second", 0, 1, 100_000)
    ends = sends.ends()
    assert ends["first"] == pytest.approx(100_000 / sends.bytes_per_cycle)
    assert ends["second"] == pytest.approx(200_000 / sends.bytes_per_cycle)


def test_a_link_is_idle_between_a_copy_and_one_that_begins_later() -> None:
    sends = Sends(slice_of("v6e", "2x4"))
    cycles = 100_000 / sends.bytes_per_cycle
    sends.send("first", 0, 1, 100_000)
    sends.send("second", 0, 1, 100_000, time=5000.0)
    assert sends.ends() == pytest.approx({"first": cycles, "second": 5000 + cycles}, abs=1e-3)
    (link,) = sends.network.results()
    assert link.busy_cycles == pytest.approx(2 * cycles, abs=1)
    assert 2 * cycles < 5000


def test_a_copy_that_can_begin_earlier_passes_one_that_was_sent_before() -> None:
    sends = Sends(slice_of("v6e", "2x4"))
    cycles = 100_000 / sends.bytes_per_cycle
    for name, time in (("last", 9000.0), ("second", 5000.0), ("first", 10.0), ("third", 5000.0)):
        sends.send(name, 0, 1, 100_000, time=time)
    ends = {"first": 10 + cycles, "second": 5000 + cycles, "third": 5000 + 2 * cycles, "last": 9000 + cycles}
    assert sends.ends() == pytest.approx(ends, abs=1e-2)
    assert list(sends.ends()) == list(ends)


def test_two_directions_and_two_axes_do_not_disturb_each_other() -> None:
    sends = Sends(slice_of("v6e", "4x4"))
    for name, target in (("x+", 6), ("x-", 4), ("y+", 9), ("y-", 1)):
        sends.send(name, 5, target, 100_000)
        sends.send(f"back {name}", target, 5, 100_000)
    assert list(sends.ends().values()) == [pytest.approx(100_000 / sends.bytes_per_cycle)] * 8


def test_two_cores_of_a_chip_share_its_links() -> None:
    sends = Sends(slice_of("v7x", "2x2x1"))
    sends.send("core 0", 0, 2, 90_000)
    sends.send("core 1", 1, 3, 90_000)
    assert list(sends.ends().values()) == [pytest.approx(180_000 / sends.bytes_per_cycle)] * 2
    assert [(run.source, run.target, run.sent_bytes) for run in sends.network.results()] == [(0, 1, 180_000)]


def test_hbm_at_both_ends_has_less_for_others_while_bytes_pass() -> None:
    shape = slice_of("v6e", "2x4")
    sends = Sends(shape)
    pipes = [HbmPipe(replace(shape.chip.machine, clock_hz=CLOCK, hbm_slow_period_s=0.0)) for _ in range(3)]
    full, taken = pipes[0].bytes_per_cycle, sends.bytes_per_cycle
    # One after the other along one link, and another copy that shares it in the middle.
    sends.send("first", 0, 4, 100_000, pipes=pipes[:2])
    sends.send("second", 0, 4, 100_000, pipes=pipes[:2])
    sends.send("from VMEM", 2, 4, 50_000, time=1000.0)
    for pipe in pipes:  # copies of their own, all the time
        pipe.carry(0, 10_000)
    sends.ends()
    assert [pipe.free for pipe in pipes] == pytest.approx([10_000 + 200_000 / full] * 2 + [10_000])
    assert 250_000 / taken < 10_000
    assert all(pipe.left == 1 for pipe in pipes)


def test_more_copies_than_anybody_waits_for_are_refused() -> None:
    sends = Sends(slice_of("v6e", "2x2"), most_copies=2)
    sends.send("first", 0, 1, 100)
    sends.send("second", 0, 1, 100)
    with pytest.raises(TooManyCopiesError, match=r"send each other 3 copies or more.*2 are the most"):
        sends.send("third", 0, 1, 100)


def test_copies_that_end_together_but_for_rounding_are_followed_once() -> None:
    sends = Sends(slice_of("v6e", "2x4"))
    for name, source, target in (("a", 0, 3), ("b", 1, 3), ("c", 1, 5), ("d", 4, 5)):
        sends.send(name, source, target, 333_333)
    ends = sends.ends()
    assert all(end * 1024 == round(end * 1024) for end in ends.values())


def test_starting_copies_to_another_device_is_counted_beside_the_waits_for_them() -> None:
    communications, route = Communications(), Routes(slice_of("v6e", "2x2")).between(0, 1)
    for time in (0, 30):
        communications.sent("fusion", time, 16384, route, 30)
    communications.waited("fusion", 60, 70)
    tally = communications.finished()["fusion"]
    assert (tally.issued_cycles, tally.waited_cycles, tally.cycles) == (60, 10, 70)
