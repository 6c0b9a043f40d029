"""Operations whose cost is told do what they say, and each can be told apart."""

import numpy as np
import pytest
from operation_costs import faults, programs, register_shape
from operations import ELEMENTWISE, SHAPINGS, Elementwise

from systolic.chips import V5E

OPERATIONS = (*ELEMENTWISE, *SHAPINGS)
GROUPS = tuple(dict.fromkeys(each.group for each in OPERATIONS))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("group", GROUPS)
def test_against_float64(group: str) -> None:
    assert faults([each for each in OPERATIONS if each.group == group][:6], V5E) == []


def test_every_operation_is_told_apart() -> None:
    names = [(each.name, each.dtype) for each in OPERATIONS]
    assert len(set(names)) == len(names)
    for each in ELEMENTWISE:
        assert not each.beside or (each.beside, each.dtype) in names


def test_registers() -> None:
    assert register_shape("float32") == (8, 128)
    assert register_shape("bfloat16") == (16, 128)
    assert register_shape("int8") == (32, 128)
    for each in OPERATIONS:
        (once, twice), _, count = programs(each)
        assert once.keywords["times"] * 2 == twice.keywords["times"]  # pyright: ignore[reportFunctionMemberAccess]
        # Never less than a register an operation: smaller blocks would cost more than they seem to.
        assert count >= (32 if isinstance(each, Elementwise) else 1)
        assert np.isfinite(count)
