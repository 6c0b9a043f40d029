"""Communications of an operation that is executed alone, and is counted again in later calls."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from systolic.simulator.slice.communication import Communications, RecordedCommunications
from systolic.simulator.slice.routes import Link, Route

ROUTES = [Route((Link(0, 1, axis),), 1e-6) for axis in "xy"]
LABELS = st.sampled_from(["all-reduce.1", "all-gather.2"])
Act = Callable[[Communications, int], None]


def signalled(label: str, time: int) -> Act:
    return lambda to, begin: to.signalled(label, begin + time)


def sent(label: str, time: int, size_bytes: int, route: int) -> Act:
    return lambda to, begin: to.sent(label, begin + time, size_bytes, ROUTES[route], time % 7)


def waited(label: str, time: int, cycles: int) -> Act:
    return lambda to, begin: to.waited(label, begin + time, begin + time + cycles)


TIMES = st.integers(0, 1000)
ACTS = st.lists(
    st.one_of(
        st.builds(signalled, LABELS, TIMES),
        st.builds(sent, LABELS, TIMES, st.integers(1, 4096), st.integers(0, 1)),
        st.builds(waited, LABELS, TIMES, st.integers(0, 50)),
    ),
    max_size=20,
)


@given(ACTS, ACTS)
def test_recorded_acts_count_as_if_they_happened_again(before: list[Act], acts: list[Act]) -> None:
    direct, repeated, recorded = Communications(), Communications(), RecordedCommunications()
    for act in acts:
        act(recorded, 0)
    for communications in (direct, repeated):
        for act in before:
            act(communications, 0)
    for begin in (10_000, 20_000):
        for act in acts:
            act(direct, begin)
        repeated.repeat(begin, recorded)
    assert repeated.finished() == direct.finished()
