"""Ends of the inputs that change fewer results than their neighbors do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from systolic.checking.ends import unread_ends


def found(fn: Callable[[np.ndarray], np.ndarray]) -> list[tuple[int, bool, int]]:
    x = np.random.default_rng(0).standard_normal((16, 40)).astype(np.float32)
    return [(end.axis, end.is_last, end.elements) for end in unread_ends(lambda given: [fn(*given)], [x], [fn(x)])]


def _softmax(x: np.ndarray, counted: int) -> np.ndarray:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power[:, :counted].sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        pytest.param(lambda x: x[:, :-1].sum(-1), [(1, True, 1)], id="last column"),
        pytest.param(lambda x: x[:, 1:].max(-1), [(1, False, 1)], id="first column"),
        pytest.param(lambda x: x[:-1].mean(0), [(0, True, 1)], id="last row"),
        pytest.param(lambda x: _softmax(x, 39), [(1, True, 1)], id="denominator"),
        pytest.param(lambda x: x[:, :-10].sum(-1), [(1, True, 9)], id="a block"),
    ],
)
def test_an_end_that_is_left_out(fn: Callable[[np.ndarray], np.ndarray], expected: list[tuple[int, bool, int]]) -> None:
    assert found(fn) == expected


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda x: x.sum(-1), id="sum"),
        pytest.param(lambda x: _softmax(x, 40), id="softmax"),
        pytest.param(lambda x: x.cumsum(-1), id="prefix sums"),
        pytest.param(lambda x: np.maximum(x, 0), id="elementwise"),
        pytest.param(lambda x: x.argmax(-1), id="places"),
    ],
)
def test_ends_that_count(fn: Callable[[np.ndarray], np.ndarray]) -> None:
    assert found(fn) == []
