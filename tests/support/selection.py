"""The quick selection of `make test`: a few cases of large products; `make test-exhaustive` runs the others."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import hypothesis
import pytest

_ALL_EXAMPLES = 100  # Hypothesis' own default
_EXHAUSTIVE_EXAMPLES = 40  # so that all tests of `.ci/run` take less than 45 minutes


def register_profiles() -> None:
    # Hypothesis' limit of 200 ms an example is one by the clock: a busy machine misses it.
    hypothesis.settings.register_profile("exhaustive", deadline=None, max_examples=_EXHAUSTIVE_EXAMPLES)
    hypothesis.settings.register_profile("quick", deadline=None, max_examples=10)
    hypothesis.settings.load_profile("quick")


def examples(count: int) -> int:
    """Return the profile's share of `count`, the examples of a property test where others have a hundred.

    At least two: property tests in interpret mode have few, because an example takes seconds.
    """
    return max(2, math.ceil(count * hypothesis.settings().max_examples / _ALL_EXAMPLES))


def mark_exhaustive(items: Sequence[pytest.Item]) -> None:
    """Mark the cases of tests marked `sampled` that the quick selection leaves out."""
    cases: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        is_chosen_from = item.get_closest_marker("sampled") and not item.get_closest_marker("slow")
        if isinstance(item, pytest.Function) and is_chosen_from:
            cases[item.nodeid.partition("[")[0]].append(item)
    for functions in cases.values():
        marker = functions[0].get_closest_marker("sampled")
        assert marker is not None
        chosen = covering([_values(function) for function in functions], *marker.args)
        for position, function in enumerate(functions):
            if position not in chosen:
                function.add_marker(pytest.mark.exhaustive)


def covering(cases: Sequence[Sequence[object]], count: int | None = None) -> set[int]:
    """Return the positions of cases that hold each value of each parameter at least once, greedily few.

    Only the first `count` of them where that is fewer; among equals, cases that are far from the chosen ones.
    """
    missing = {pair for case in cases for pair in enumerate(case)}
    chosen: list[int] = []
    while missing and (count is None or len(chosen) < count):

        def gain(position: int) -> tuple[int, int, int]:
            distance = min((abs(position - other) for other in chosen), default=0)
            return len(missing.intersection(enumerate(cases[position]))), distance, -position

        best = max(range(len(cases)), key=gain)
        chosen.append(best)
        missing.difference_update(enumerate(cases[best]))
    return set(chosen) or {0}


def _values(function: pytest.Function) -> list[str]:
    callspec = getattr(function, "callspec", None)
    return [repr(value) for value in callspec.params.values()] if callspec else []
