"""The selections of `make test`, a few cases of large products, of `make test-exhaustive` and of `make test-half`."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import hypothesis
import pytest

_ALL_EXAMPLES = 100  # Hypothesis' own default
_EXHAUSTIVE_EXAMPLES = 30  # so that all tests of `.ci/run` take less than 45 minutes


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
    """Mark the cases that selections leave out.

    `make test-exhaustive` leaves out some of tests marked `paired`, `make test` some of `sampled`, and `make test-half`
    every second one of those that `make test` leaves out.
    """
    for _, functions in _cases(items, "paired"):
        _mark_others(functions, pytest.mark.slow, covering([_values(function) for function in functions], at_once=2))
    for count, functions in _cases(items, "sampled"):
        chosen = covering([_values(function) for function in functions], *count)
        _mark_others(functions, pytest.mark.exhaustive, chosen)
    for _, functions in _cases(items, "exhaustive"):
        _mark_others(functions, pytest.mark.alternate, set(range(0, len(functions), 2)))


def _cases(items: Sequence[pytest.Item], name: str) -> Iterator[tuple[tuple[int, ...], list[pytest.Function]]]:
    """Yield the cases of each test that bear the marker, but for slow ones, and the arguments of the marker."""
    cases: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker(name) and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for functions in cases.values():
        marker = functions[0].get_closest_marker(name)
        assert marker is not None
        yield marker.args, functions


def _mark_others(functions: Sequence[pytest.Function], marker: pytest.MarkDecorator, chosen: set[int]) -> None:
    for position, function in enumerate(functions):
        if position not in chosen:
            function.add_marker(marker)


def covering(cases: Sequence[Sequence[object]], count: int | None = None, *, at_once: int = 1) -> set[int]:
    """Return the positions of cases that hold each value of each parameter at least once, greedily few.

    With `at_once` of two, each pair of values of two parameters. Only the first `count` of them where that is fewer;
    among equals, cases that are far from the chosen ones.
    """
    held = [set(itertools.combinations(enumerate(case), at_once)) for case in cases]
    missing = set().union(*held)
    chosen: list[int] = []
    while missing and (count is None or len(chosen) < count):

        def gain(position: int) -> tuple[int, int, int]:
            distance = min((abs(position - other) for other in chosen), default=0)
            return len(missing & held[position]), distance, -position

        best = max(range(len(cases)), key=gain)
        chosen.append(best)
        missing.difference_update(held[best])
    return set(chosen) or {0}


def _values(function: pytest.Function) -> list[str]:
    callspec = getattr(function, "callspec", None)
    return [repr(value) for value in callspec.params.values()] if callspec else []
