"""Programs that take turns: who goes first, who is woken, and what happens by itself."""

from __future__ import annotations

import math

import pytest

from systolic.simulator import DeadlockError
from systolic.simulator.schedule import Running, Schedule, Waited


def test_the_one_furthest_behind_goes_first() -> None:
    schedule, seen = Schedule(), []

    def program(name: str, *times: float) -> Running:
        for time in times:
            seen.append((name, time))
            yield time
        return times[-1]

    schedule.start(0, program("a", 1, 5), lambda: "a")
    schedule.start(0, program("b", 2, 3), lambda: "b")
    assert schedule.run() == [5, 3]
    assert seen == [("a", 1), ("b", 2), ("a", 5), ("b", 3)]


def test_of_acts_at_the_same_time_the_one_that_was_announced_first_comes_first() -> None:
    schedule, seen = Schedule(), []

    def program(name: str, *times: float) -> Running:
        for time in times:
            yield time
            seen.append((name, time, schedule.now))
        return times[-1]

    schedule.start(0, program("a", 1, 2, 5, 6), lambda: "a")
    schedule.start(0, program("b", 4, 5), lambda: "b")
    schedule.at(2, lambda: seen.append(("event", 2, schedule.now)))
    assert schedule.run() == [6, 5]
    acts = [("a", 1, 1), ("event", 2, 2), ("a", 2, 2), ("b", 4, 4), ("a", 5, 5), ("b", 5, 5), ("a", 6, 6)]
    assert seen == acts


def test_a_program_that_wakes_another_does_not_act_again_before_it() -> None:
    schedule, flag, seen = Schedule(), Waited(), []

    def waker() -> Running:
        yield 1
        schedule.changed(flag)
        yield 2
        seen.append("waker")
        return 2

    def waiter() -> Running:
        schedule.wait_for(flag)
        yield None
        seen.append("waiter")
        return schedule.now

    schedule.start(0, waker(), lambda: "waker")
    schedule.start(0, waiter(), lambda: "waiter")
    assert schedule.run() == [2, 1]
    assert seen == ["waiter", "waker"]


def waiting(schedule: Schedule, flag: Waited, done: list[bool], tries: list[float]) -> Running:
    while not done:
        tries.append(schedule.now)
        schedule.wait_for(flag)
        yield None
    return schedule.now


def test_only_what_a_program_waits_for_wakes_it() -> None:
    schedule, flag, other, done, tries = Schedule(), Waited(), Waited(), [], []

    def set_flag() -> None:
        done.append(True)
        schedule.changed(flag)

    schedule.start(0, waiting(schedule, flag, done, tries), lambda: "it")
    for time in (1, 2, 3):
        schedule.at(time, lambda: schedule.changed(other))
    schedule.at(4, set_flag)
    assert schedule.run() == [4]
    assert tries == [0]


@pytest.mark.parametrize(("changes", "end"), [(False, 9), (True, 4)])
def test_a_time_that_is_known_wakes_too_and_an_earlier_change_before_it(changes: bool, end: int) -> None:
    schedule, flag, tries = Schedule(patient=True), Waited(), []

    def program() -> Running:
        while schedule.now not in (4, 9):
            tries.append(schedule.now)
            schedule.wait_for(flag, 9)
            yield None
        return schedule.now

    schedule.start(0, program(), lambda: "it")
    if changes:
        schedule.at(4, lambda: schedule.changed(flag))
    assert schedule.run() == [end]
    assert tries == [0]


def test_a_wait_that_ends_when_it_is_due_leaves_nothing() -> None:
    """A loop's rounds could not be skipped for what it left: that grew in each."""
    schedule, flag, left = Schedule(patient=True), Waited(), []

    def program() -> Running:
        for due in (5, 10, 15):
            schedule.wait_for(flag, due)
            yield None
            left.append(list(flag.waiting))
        return 15

    schedule.start(0, program(), lambda: "it")
    assert schedule.run() == [15]
    assert left == [[]] * 3


def test_what_never_comes_is_a_deadlock_that_says_who_waits() -> None:
    schedule = Schedule()
    schedule.start(0, waiting(schedule, Waited(), [], []), lambda: "device 3, core 0")
    with pytest.raises(DeadlockError, match="device 3, core 0"):
        schedule.run()


def test_a_deadlock_of_many_programs_names_each_place_once_and_not_all_places() -> None:
    schedule = Schedule()
    for program in range(40):
        place = "every subcore" if program < 20 else f"device {program}"
        schedule.start(program, waiting(schedule, Waited(), [], []), lambda place=place: place)
    with pytest.raises(DeadlockError) as caught:
        schedule.run()
    first, second, *_, last = str(caught.value).split("; ")
    assert first == "every subcore waits for what never comes (20 times)"
    assert second == "device 20 waits for what never comes"
    assert last == "and 13 more places"


def test_nothing_else_acts_before_the_next_entry() -> None:
    schedule, flag, seen = Schedule(), Waited(), []

    def program() -> Running:
        yield 5
        seen.append(schedule.settled_until)
        schedule.changed(flag)  # wakes a program that may act at once
        seen.append(schedule.settled_until)
        yield 30
        seen.append(schedule.settled_until)
        return 30

    def waiter() -> Running:
        schedule.wait_for(flag)
        yield None
        return 5

    schedule.start(0, waiter(), lambda: "waiter")
    schedule.start(0, program(), lambda: "program")
    schedule.at(20, lambda: None)
    assert schedule.run() == [5, 30]
    assert seen == [20, -math.inf, math.inf]
