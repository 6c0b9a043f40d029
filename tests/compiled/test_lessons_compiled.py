"""Lessons whole, on one chip each: every part runs, compiles and is simulated, or is wrong on purpose as it must be."""

import functools
from typing import Any

import pytest

from systolic.chips import chip
from systolic.lessons import LESSONS, Lesson

SHOWN = [
    ("refs", "v5e"),
    # Their kernels are run by tests in interpret mode; compiling all parts takes a minute each.
    *(
        pytest.param(*each, marks=pytest.mark.slow)
        for each in (
            ("sparse_core", "v6e"),
            ("grouped", "v5e"),
            ("unpacking", "v6e"),
            ("cores", "v5p"),
            ("pl_kernel", "v5e"),
            ("reductions", "v5p"),
        )
    ),
]
RIGHT = ("ok", "unsupported")


@functools.cache  # the lesson between chips is asked about twice
def told(name: str, on: str) -> Lesson:
    return LESSONS[name].run([chip(on)])


# Of SparseCores: jax 0.12 warns of the copies of its own pipeline.
@pytest.mark.filterwarnings("ignore:Destination semaphore is ignored")
@pytest.mark.exhaustive  # half a minute each; test_new_chip_compiled.py runs lessons that are short
@pytest.mark.parametrize(("name", "on"), SHOWN)
def test_everything_comes_out_as_it_must(name: str, on: str) -> None:
    lesson = told(name, on)
    assert [row for row in lesson.rows if row["status"] not in RIGHT] == []
    assert lesson.ok
    assert all(lesson.lines)


@pytest.mark.slow
def test_a_race_costs_nothing_and_a_wait_too_many_does() -> None:
    rows: list[dict[str, Any]] = [dict(row) for row in told("between_chips", "v6e").rows]
    times = {row["part"]: row["simulated_us"] for row in rows}
    wires = {row["part"]: row["wire_us"] for row in rows}
    assert all(times[part] > wires[part] for part in times)
    for name in ("all-gather", "reduce-scatter"):
        assert 0.5 < times[f"{name}, both ways"] / times[f"{name}, one way"] < 0.7
    assert 0.9 < times["all-gather, a wait too few"] / times["all-gather, one way"] <= 1
    # One direction after the other takes the bytes as long as one way does.
    assert times["all-gather, a wait too many"] > times["all-gather, one way"]


@pytest.mark.slow
def test_a_ring_both_ways_hides_products_unless_it_waits_first() -> None:
    rows: list[dict[str, Any]] = [dict(row) for row in told("across_chips", "v6e").rows]
    times = {row["part"]: row["simulated_us"] for row in rows}
    assert all(row["simulated_us"] > max(row["wire_us"], row["product_us"]) for row in rows)
    assert times["ring, both ways"] < 0.8 * times["gather, then multiply"] < times["ring, one way"]
    assert times["both ways, late"] <= times["ring, both ways"] < 0.8 * times["both ways, in turn"]
