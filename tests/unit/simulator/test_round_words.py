"""Words of all rounds of a loop: arithmetic at once gives what each round's own gives."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.round_words import Probe, RoundWords, in_round
from systolic.simulator.hardware.values import COMPUTED, MASK
from systolic.simulator.hardware.words import SCOPE, joined, lane, picked
from systolic.simulator.rounds.repeated import _in_all_rounds

DEVICES, ROUNDS = 3, 5
TOO_LARGE = 1 << 70
words = st.one_of(st.integers(0, MASK), st.lists(st.integers(0, MASK), min_size=DEVICES, max_size=DEVICES))
operations = st.sampled_from(
    [
        *(operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor, operator.floordiv),
        *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
        *(SCOPE["larger"], SCOPE["smaller"]),
    ]
)


def made(values: list[Any]) -> Any:
    return RoundWords(Probe(), tuple(of_devices(value) for value in values))


def of_devices(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return Lanes(tuple(value)) if len(set(value)) > 1 else value[0]


def plain(word: Any) -> list[Any]:
    """Returns a round's word on each device."""
    return list(word.values) if isinstance(word, Lanes) else [word] * DEVICES


def each_round(word: Any) -> list[list[Any]]:
    return [plain(in_round(number, word)) for number in range(ROUNDS)]


@given(operations, st.lists(words, min_size=ROUNDS, max_size=ROUNDS), st.lists(words, min_size=ROUNDS, max_size=ROUNDS))
def test_arithmetic_of_all_rounds_is_that_of_each_round(operation: Any, first: list[Any], other: list[Any]) -> None:
    pairs = zip(first, other, strict=True)
    try:
        expected = [plain(operation(of_devices(one), of_devices(two))) for one, two in pairs]
    except ZeroDivisionError:
        return
    assert each_round(operation(made(first), made(other))) == expected


@given(words, st.lists(words, min_size=ROUNDS, max_size=ROUNDS))
def test_a_word_of_all_rounds_is_an_operand_on_either_side(word: Any, rounds: list[Any]) -> None:
    same = of_devices(word)
    expected = [plain(same - of_devices(value)) for value in rounds]
    assert each_round(same - made(rounds)) == expected
    assert each_round(made(rounds) - same) == [[-number for number in row] for row in expected]


def test_a_predicate_chooses_in_each_round_and_on_each_device() -> None:
    predicate = made([0, [0, 5, 9], 7, [1, 2, 3], 9]) > 4
    assert each_round(picked(predicate, made([1, 2, 3, 4, 5]), Lanes((6, 7, 8)))) == [
        *([6, 7, 8], [6, 2, 2], [3, 3, 3], [6, 7, 8], [5, 5, 5]),
    ]


def test_words_that_are_the_same_in_all_rounds_are_one() -> None:
    rounds = made([[1, 2, 3], [5, 6, 7], [1, 2, 3], [1, 2, 3], [9, 10, 11]])
    result = rounds & 0
    assert type(result) is int
    assert result == 0
    assert type(rounds % rounds) is int
    by_device = (rounds & 0) + Lanes((1, 2, 3))
    assert plain(by_device) == [1, 2, 3]


@pytest.mark.parametrize("first", [1, True, TOO_LARGE])
def test_words_of_each_device_are_joined(first: Any) -> None:
    by_device = [made([first, 2, 3, 4, 5]), 7, made([1, 2, 3, 4, 6])]
    word = joined(by_device)
    for number in range(ROUNDS):
        assert plain(in_round(number, word)) == [in_round(number, of_device) for of_device in by_device]
    for number, of_device in enumerate(by_device):
        assert each_round(lane(word, number)) == each_round(of_device)


@pytest.mark.parametrize("large", [TOO_LARGE, [1, 2, TOO_LARGE]])
def test_words_too_large_for_numpy_are_exact(large: Any) -> None:
    rounds = made([large, 1, 2, 3, 4])
    assert rounds.array is None
    assert each_round(rounds + 1)[0] == [number + 1 for number in plain(of_devices(large))]
    square = made([1 << 40, 1, 2, 3, 4]) * (1 << 40)
    assert each_round(square)[0] == [1 << 80] * DEVICES
    assert each_round(square >> 80)[0] == [1] * DEVICES


def test_an_unknown_word_stays_unknown_in_its_round() -> None:
    rounds = made([1, COMPUTED, 2, 3, 4])
    assert rounds.array is None
    assert rounds.settled() == 1
    assert rounds.probe.alike == 1
    assert in_round(1, rounds) is COMPUTED


@pytest.mark.parametrize("others", [[1, 1, 2, 1], [[1, 1, 1], 1, [1, 1, 2], 1], [1, 1, TOO_LARGE, 1]])
def test_rounds_are_alike_until_one_has_another_word(others: list[Any]) -> None:
    rounds = made([1, *others])
    assert rounds.settled() == 1
    assert rounds.probe.alike == 3
    assert {1, of_devices(others[2]) if not isinstance(others[2], list) else 2} <= rounds.places()


@pytest.mark.parametrize("truths", [False, Lanes((1, 5, 9)) > 4, Lanes((False, True, True))])
def test_truth_values_do_not_go_on_evenly(truths: Any) -> None:
    probe = Probe()
    assert _in_all_rounds(probe, truths, truths ^ True) is truths
    assert probe.failed


def test_numbers_go_on_evenly() -> None:
    probe = Probe()
    word = _in_all_rounds(probe, Lanes((7, 9, MASK)), Lanes((5, 10, MASK - 4)))
    assert [plain(in_round(number, word)) for number in (0, 1, 3)] == [[7, 9, MASK], [9, 8, 3], [13, 6, 11]]
    assert not probe.failed
