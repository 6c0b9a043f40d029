"""The quick selection holds each value of each parameter."""

import itertools

import pytest
from hypothesis import settings
from selection import covering, examples, mark_exhaustive


def test_each_value_is_chosen_once() -> None:
    cases = list(itertools.product("abc", range(4)))
    chosen = [cases[position] for position in covering(cases)]
    assert len(chosen) == 4
    assert {name for name, _ in chosen} == set("abc")
    assert {number for _, number in chosen} == set(range(4))


def test_a_count_limits_them_and_spreads_them() -> None:
    assert covering([[number] for number in range(9)], 3) == {0, 8, 4}
    assert covering([[0], [0]], 5) == {0}
    assert covering([[]]) == {0}


def test_each_pair_is_chosen_once() -> None:
    cases = list(itertools.product("abc", range(4), (False, True)))
    chosen = [cases[position] for position in covering(cases, at_once=2)]
    assert len(chosen) == 12
    for left, right in itertools.combinations(range(3), 2):
        assert {(case[left], case[right]) for case in chosen} == {(case[left], case[right]) for case in cases}
    assert covering([[1], [2]], at_once=2) == {0}


@pytest.mark.parametrize(("profile", "expected"), [("exhaustive", [2, 90]), ("quick", [2, 30])])
def test_profiles_differ_in_their_examples(monkeypatch: pytest.MonkeyPatch, profile: str, expected: list[int]) -> None:
    monkeypatch.setattr(type(settings), "default", settings.get_profile(profile), raising=False)
    assert [examples(1), examples(300)] == expected


def test_every_second_exhaustive_case_is_left_out_by_ci(request: pytest.FixtureRequest) -> None:
    def case(number: int, *markers: str) -> pytest.Function:
        made = pytest.Function.from_parent(request.node.parent, name=f"test_something[{number}]", callobj=lambda: None)
        for name in markers:
            made.add_marker(name)
        return made

    cases = [case(0), *(case(number, "exhaustive") for number in range(1, 5)), case(5, "exhaustive", "slow")]
    mark_exhaustive(cases)
    assert [bool(made.get_closest_marker("alternate")) for made in cases] == [False, False, True, False, True, False]
