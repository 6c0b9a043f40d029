"""Operations whose cost is told do what they say, and each can be told apart."""

import numpy as np
import pytest

from systolic.checking.running import run_checks
from systolic.chips import V5E
from systolic.lessons.operation_costs import checked, programs, register_shape
from systolic.lessons.operations import ELEMENTWISE, SHAPINGS, Elementwise

OPERATIONS = (*ELEMENTWISE, *SHAPINGS)
GROUPS = tuple(dict.fromkeys(each.group for each in OPERATIONS))


@pytest.mark.parametrize("group", GROUPS)
def test_against_float64(group: str) -> None:
    part = checked([each for each in OPERATIONS if each.group == group][:6], group)
    outcome = run_checks(part.fn, part.args, reference=part.reference, chip=V5E, seeds=(0, 1))
    assert outcome.summary.ran
    assert [each for each in outcome.findings if each.grade != "note"] == []


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
        (once, twice), count = programs(each)
        assert once.args == twice.args
        # Never less than a register an operation: smaller blocks would cost more than they seem to.
        assert count >= (32 if isinstance(each, Elementwise) else 1)
        assert np.isfinite(count)
