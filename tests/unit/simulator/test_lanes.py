"""Words that differ from device to device."""

from __future__ import annotations

from typing import Any

import pytest

from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.lanes import DivergedError, Lanes
from systolic.simulator.hardware.memory import Memory
from systolic.simulator.hardware.values import COMPUTED, Unknown
from systolic.simulator.hardware.words import SCOPE, joined, picked

IDS: Any = Lanes((0, 1, 2, 3))


def test_arithmetic_goes_lane_by_lane_and_joins_what_is_the_same() -> None:
    assert ((IDS + 3) & 3).values == (3, 0, 1, 2)
    assert (1 << IDS).values == (1, 2, 4, 8)
    assert (IDS - IDS) == 0
    assert type(IDS & 0) is int
    assert (IDS < 2).values == (True, True, False, False)
    assert (-IDS & 3).values == (0, 3, 2, 1)
    assert (~IDS & 3).values == (3, 2, 1, 0)
    assert SCOPE["smaller"](IDS, 2).values == (0, 1, 2, 2)
    assert [each if isinstance(each, int) else each.values for each in SCOPE["signed_division"](IDS, 2)] == [
        (0, 0, 1, 1),
        (0, 1, 0, 1),
    ]


def test_one_and_true_are_not_the_same() -> None:
    assert (IDS + 1).values[0].__class__ is int
    assert type((IDS + True).values[0]) is int
    assert joined([1, True]).values == (1, True)


def test_what_is_not_known_stays_unknown() -> None:
    assert isinstance(IDS + COMPUTED, Unknown)
    some = picked(IDS == 2, COMPUTED, 5)
    assert isinstance(some.values[2], Unknown)
    assert some.values[3] == 5


def test_a_choice_by_lanes_and_a_branch_on_them() -> None:
    assert picked(IDS > 1, 10, IDS).values == (0, 1, 10, 10)
    assert bool(IDS >= 0)
    with pytest.raises(DivergedError):
        bool(IDS > 1)
    for differs in (hash, int, float, abs, round, range):
        with pytest.raises(DivergedError):
            differs(IDS)


def test_a_copy_that_differs_in_size_overwrites_the_most() -> None:
    memory: Any = Memory(lambda address: 0, IterationBudget(100))
    for first in (0, 5, 6):  # of which devices overwrite 3 to 6 words
        memory.define("vmem", first, 1, lambda: [7])
    memory.copy("hbm", 0, "vmem", 0, IDS + 3, contiguous=True)
    assert [isinstance(memory.word("vmem", at), Unknown) for at in (0, 5, 6)] == [True, True, False]
    with pytest.raises(DivergedError, match="known"):
        memory.copy("vmem", 6, "hbm", 0, IDS + 1, contiguous=True)


def test_memory_is_read_and_written_lane_by_lane() -> None:
    memory: Any = Memory(lambda address: 100 + address, IterationBudget(1000))
    assert memory.load(IDS).values == (100, 101, 102, 103)
    memory.store(IDS + 1, 7)
    assert memory.load(1).values == (7, 101, 101, 101)
    assert memory.load(IDS + 1) == 7
    memory.define("hbm", 0, 8, lambda: [*range(50, 58)])
    memory.copy("hbm", IDS * 2, "smem", 40, 2, contiguous=True)
    assert (memory.load(40).values, memory.load(41).values) == ((50, 52, 54, 56), (51, 53, 55, 57))
    with pytest.raises(DivergedError):
        memory.copy("hbm", IDS, "vmem", 0, 2, contiguous=True)


def test_products_and_shifts_that_do_not_fit_64_bits_are_right() -> None:
    large: Any = Lanes(((1 << 32) - 1, 5))
    assert (large * 720).values == (((1 << 32) - 1) * 720, 3600)
    assert (large * large * large).values == (((1 << 32) - 1) ** 3, 125)
    assert ((large * 720) & 0xFFFFFFFF).values == ((1 << 32) - 720, 3600)
    assert (large << 40).values == (((1 << 32) - 1) << 40, 5 << 40)
    assert (large << Lanes((31, 3))).values == (((1 << 32) - 1) << 31, 40)
    assert ((large << 40) >> 40).values == large.values
