"""Tables of rows that devices send to those of their experts, with NumPy as the links."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from systolic.ops.exchange.tables import Slices
from systolic.ops.moe.all_to_all.sending import Sending, arriving_rows, sending
from systolic.ops.moe.arguments import Call
from systolic.ops.moe.routing import Sorted
from systolic.ops.moe.schedule import GRANULE_TOKENS

DEVICES, HERE, TOKENS, TOP_K = 4, 3, 30, 3


def call_of(ids: Any, capacity: int | None, experts: int = DEVICES * HERE, *, repeats: bool = True) -> Call:
    weights = jnp.ones(ids.shape, jnp.float32)
    return Call(
        x=weights,
        ids=ids,
        weights=weights,
        experts=experts,
        first_expert=None,
        capacity=capacity,
        repeats=repeats,
    )


@functools.cache
def of_devices(capacity: int | None) -> Callable[[np.ndarray], Sending]:
    """Return the tables of all devices."""
    tables = jax.vmap(lambda ids: sending(call_of(ids, capacity), HERE, "expert"), axis_name="expert")
    return jax.jit(tables)


def sent(rows: np.ndarray, slices: Slices, room: int) -> np.ndarray:
    """Return the rows that arrive at each device, -1 where none does, and check that both ends say the same."""
    devices, count = slices.send_sizes.shape
    per_device, out = count // devices, np.full((devices, room), -1)
    for sender, number in np.ndindex(devices, count):
        receiver, arriving = number // per_device, sender * per_device + number % per_device
        size, begin = slices.send_sizes[sender, number], slices.output_offsets[sender, number]
        assert (size, begin) == (slices.recv_sizes[receiver, arriving], slices.recv_offsets[receiver, arriving])
        first = slices.input_offsets[sender, number]
        assert (out[receiver, begin : begin + size] == -1).all()
        out[receiver, begin : begin + size] = rows[sender, first : first + size]
    return out


def moved(rows: np.ndarray, choices: Sorted) -> np.ndarray:
    """Return the rows in the order of their experts or devices, and check what else is said of them."""
    for device, order in enumerate(choices.order):
        ids, counts = choices.ids[device], choices.counts[device]
        np.testing.assert_array_equal(order[choices.place[device]], np.arange(order.size))
        assert (np.diff(ids[order]) >= 0).all()
        assert ((ids < counts.shape[1]) == (rows[device] >= 0)).all()
        for granule, sizes in enumerate(counts):
            own = ids[granule * GRANULE_TOKENS : (granule + 1) * GRANULE_TOKENS]
            np.testing.assert_array_equal(np.bincount(own, minlength=sizes.size + 1)[:-1], sizes)
    return np.take_along_axis(rows, np.asarray(choices.order), 1)


@pytest.mark.exhaustive  # two programs are compiled
@settings(max_examples=30, deadline=None)
@given(capacity=st.sampled_from([None, 3]), share=st.floats(0.05, 0.9), seed=st.integers(0, 99))
def test_rows_arrive_in_the_order_of_experts_and_come_back(capacity: int | None, share: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    # Most to the first experts, and some to none.
    ids = np.minimum(random.geometric(share, (DEVICES, TOKENS, TOP_K)) - 2, DEVICES * HERE - 1).astype(np.int32)
    tables = jax.tree.map(np.asarray, of_devices(capacity)(ids))
    choices = np.arange(ids.size).reshape(DEVICES, -1)
    rows = np.take_along_axis(choices, tables.choices.order, 1)  # as they lie on each device
    room = arriving_rows(call_of(ids[0], capacity), HERE, DEVICES)
    arrived = moved(sent(rows, tables.sent, room), tables.by_expert)
    for device in range(DEVICES):
        experts = range(device * HERE, (device + 1) * HERE)
        by_expert = [np.flatnonzero(ids.reshape(-1) == expert)[:capacity] for expert in experts]
        expected = np.concatenate(by_expert)
        np.testing.assert_array_equal(arrived[device, : expected.size], expected)
        np.testing.assert_array_equal(tables.sizes[device], [len(chosen) for chosen in by_expert])
        assert (arrived[device, expected.size :] == -1).all()
    back = sent(moved(arrived, tables.by_device), tables.back, choices.shape[1])
    np.testing.assert_array_equal(back, np.where(np.isin(rows, arrived), rows, -1))
    for device in range(DEVICES):
        is_kept = tables.choices.place[device] < tables.choices.counts[device].sum()
        np.testing.assert_array_equal(choices[device][is_kept], np.sort(back[device][back[device] >= 0]))


@pytest.mark.parametrize(
    ("here", "capacity", "repeats", "rows"),
    [
        (4, None, False, 8 * 6 * 3),  # all choices of all tokens
        (2, None, False, 8 * 6 * 2),  # a router's choices of a token differ
        (2, None, True, 8 * 6 * 3),
        (2, 7, False, 16),  # 14 rows, in whole tiles
        (2, 1000, False, 8 * 6 * 2),
    ],
)
def test_there_is_room_for_all_rows_that_could_arrive(
    here: int, capacity: int | None, *, repeats: bool, rows: int
) -> None:
    call = call_of(np.zeros((6, 3), np.int32), capacity, experts=8 * here, repeats=repeats)
    assert arriving_rows(call, here, 8) == rows
