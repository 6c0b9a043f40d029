"""Amounts under way to a sync flag: in any order, with any waits in between, they count as if added up each time."""

import operator

from hypothesis import given
from hypothesis import strategies as st

from systolic.simulator.hardware.sync_flags import Flag

AMOUNTS = st.integers(-3, 9)
TIMES = st.integers(0, 20)
SENT = st.lists(st.tuples(TIMES, AMOUNTS), max_size=12)
RELATIONS = st.sampled_from([operator.ge, operator.eq, operator.ne, operator.lt])


def sent(amounts):
    flag = Flag()
    for time, amount in amounts:
        flag.send(time, amount)
    return flag


@given(SENT, RELATIONS, st.integers(-5, 40))
def test_a_flag_satisfies_when_the_first_sum_in_order_of_time_does(amounts, relation, value):
    flag = sent(amounts)
    count, expected = 0, None
    for pieces, (time, amount) in enumerate(flag.landing, 1):
        count += amount
        if expected is None and relation(count, value):
            expected = pieces, time

    assert flag.until(relation, value) == expected
    assert [time for time, _ in flag.landing] == sorted(time for time, _ in amounts)


@given(SENT, TIMES, st.integers(0, 3))
def test_what_has_landed_is_no_longer_under_way(amounts, time, first):
    flag = sent(amounts)

    flag.land_until(time)
    left = [(at, amount) for at, amount in flag.landing if at > time]

    assert flag.count == sum(amount for at, amount in amounts if at <= time)
    assert len(flag.landing) == len(left)
    assert flag.under_way == sum(amount for _, amount in left)

    pieces = min(first, len(left))
    flag.land_first(pieces)

    assert flag.count + flag.under_way == sum(amount for _, amount in amounts)
    assert len(flag.landing) == len(left) - pieces


@given(SENT)
def test_nothing_is_under_way_to_a_flag_that_was_reset(amounts):
    flag = sent(amounts)

    flag.reset(4)

    assert (flag.count, flag.under_way, len(flag.landing)) == (4, 0, 0)
