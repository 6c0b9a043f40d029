"""The simulator's knowledge of memory, and unknown values."""

from __future__ import annotations

import operator
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from systolic.simulator import UnknownValueError
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.memory import Memory
from systolic.simulator.hardware.values import (
    Unknown,
    as_float,
    as_word,
    float_compare,
    float_from_signed,
    float_result,
    larger,
    leading_zeros,
    rounded_float,
    signed_division,
    signed_from_float,
    smaller,
)

WORDS = st.integers(0, 2**32 - 1)
FLOATS = st.floats(width=32, allow_nan=False)


def memory() -> Memory:
    return Memory(lambda address: -address, IterationBudget(10**6))


def test_scalar_memory_keeps_words_and_asks_for_others() -> None:
    found = memory()
    found.store(7, 11)
    assert (found.load(7), found.load(8)) == (11, -8)


def test_contents_follow_copies() -> None:
    found = memory()
    found.define("hbm", 1000, 8, lambda: list(range(8)))
    found.copy("hbm", 1002, "vmem", 50, 4, contiguous=True)
    assert [found.word("vmem", 50 + i) for i in range(4)] == [2, 3, 4, 5]
    found.copy("vmem", 51, "smem", 9, 2, contiguous=True)
    assert (found.load(9), found.load(10), found.load(11)) == (3, 4, -11)
    found.store(10, 99)
    found.copy("smem", 9, "hbm", 5000, 2, contiguous=True)
    assert (found.word("hbm", 5000), found.word("hbm", 5001)) == (3, 99)


def test_what_an_operation_was_told_is_not_what_the_program_brought() -> None:
    found = memory()
    found.define("vmem", 128, 8, lambda: [7] * 8, brought=False)
    assert found.word("vmem", 128) == 7
    assert isinstance(found.brought_word("vmem", 128), Unknown)
    found.copy("vmem", 128, "vmem", 512, 8, contiguous=True)
    assert found.brought_word("vmem", 512) == 7


def test_what_is_overwritten_is_not_known() -> None:
    found = memory()
    found.define("vmem", 0, 8, lambda: list(range(8)))
    found.copy("hbm", 0, "vmem", 6, 1, contiguous=True)  # from a place of which nothing is known
    assert isinstance(found.word("vmem", 1), Unknown)
    found.define("vmem", 0, 8, lambda: list(range(8)))
    found.define("hbm", 0, 8, lambda: list(range(8)))
    found.copy("hbm", 0, "vmem", 0, 8, contiguous=False)
    assert isinstance(found.word("vmem", 0), Unknown)


def test_contents_are_asked_for_late() -> None:
    found = memory()
    found.define("hbm", 0, 4, lambda: pytest.fail("nobody wanted to know"))
    found.copy("hbm", 0, "vmem", 0, 4, contiguous=True)


def test_unknown_contents_say_whose_they_are() -> None:
    found = memory()
    found.define("hbm", 0, 4, lambda: Unknown("argument n", computed=False))
    found.copy("hbm", 0, "smem", 3, 2, contiguous=True)
    with pytest.raises(UnknownValueError, match="argument n"):
        bool(found.load(4))


def test_a_store_anywhere_makes_everything_uncertain() -> None:
    found = memory()
    found.store(1, 5)
    found.store(Unknown("an index"), 6)
    assert isinstance(found.load(1), Unknown)


@pytest.mark.parametrize("operation", [operator.add, operator.mul, operator.rshift, operator.xor, operator.lt])
def test_unknown_values_pass_through_arithmetic(operation) -> None:
    value = Unknown("x")
    assert operation(value, 3) is value
    if operation is not operator.lt:
        assert operation(3, value) is value


@pytest.mark.parametrize("decide", [bool, int, float, operator.index, hash, lambda value: 1 if value == 3 else 2])
def test_an_unknown_value_decides_nothing(decide) -> None:
    with pytest.raises(UnknownValueError, match="depends on the weather"):
        decide(Unknown("the weather"))


def test_some_results_do_not_depend_on_the_value() -> None:
    value = Unknown("x")
    assert (value & 0, 0 & value, value | 2**32 - 1) == (0, 0, 2**32 - 1)
    assert (value & False, value | True, True | value) == (False, True, True)
    assert value & True is value
    assert value | False is value


@given(FLOATS, FLOATS, st.sampled_from(["add", "sub", "mul", "min", "max"]))
def test_float_arithmetic(a: float, b: float, name: str) -> None:
    with np.errstate(all="ignore"):
        expected = {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "min": np.minimum,
            "max": np.maximum,
        }[name](np.float32(a), np.float32(b))
    found = float_result(name, as_word(a), as_word(b))
    assert isinstance(found, int)
    if np.isnan(expected):
        assert np.isnan(as_float(found))
    else:
        assert as_float(found) == expected


@given(FLOATS, FLOATS)
def test_float_comparison(a: float, b: float) -> None:
    assert float_compare("<", as_word(a), as_word(b)) == (a < b)
    assert float_compare(">=", as_word(a), as_word(b)) == (a >= b)


@given(FLOATS)
def test_float_words_are_those_of_ieee(a: float) -> None:
    assert as_word(a) == struct.unpack("<I", struct.pack("<f", a))[0]
    assert as_float(as_word(a)) == a


@given(st.integers(-(2**31), 2**31 - 1))
def test_conversions(a: int) -> None:
    word = float_from_signed(a & 0xFFFFFFFF)
    assert as_float(word) == float(np.float32(a))
    if abs(a) < 2**24:
        assert signed_from_float(word) == a & 0xFFFFFFFF


def test_conversions_at_the_edges() -> None:
    assert signed_from_float(as_word(3e9)) == 0x7FFFFFFF
    assert signed_from_float(as_word(-3e9)) == 0x80000000
    assert signed_from_float(as_word(-2.7)) == 0xFFFFFFFE
    assert signed_from_float(0x7FC00000) == 0  # not a number
    assert as_float(rounded_float("floor", as_word(-2.5))) == -3
    assert as_float(rounded_float("ceil", as_word(2.1))) == 3


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1).filter(bool))
def test_signed_division_rounds_towards_zero(a: int, b: int) -> None:
    quotient, remainder = signed_division(a & 0xFFFFFFFF, b & 0xFFFFFFFF)
    expected = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    assert (quotient, remainder) == (expected & 0xFFFFFFFF, (a - b * expected) & 0xFFFFFFFF)


@given(WORDS, WORDS)
def test_orders_and_leading_zeros(a: int, b: int) -> None:
    assert (smaller(a, b), larger(a, b)) == (min(a, b), max(a, b))
    assert leading_zeros(a) == len(f"{a:032b}") - len(f"{a:032b}".lstrip("0"))
    value = Unknown("x")
    assert smaller(a, value) is value
    assert larger(value, b) is value
