"""Lessons whole, on one chip each: every part runs, compiles and is simulated, or is wrong on purpose as it must be."""

import pytest

from systolic.chips import chip
from systolic.lessons import LESSONS, Lesson

SHOWN = [
    ("reductions", "v5p"),
    ("cores", "v5p"),
    ("refs", "v5e"),
    ("pl_kernel", "v5e"),
    ("between_chips", "v6e"),
    ("sparse_core", "v6e"),
]
RIGHT = ("ok", "unsupported")


def told(name: str, on: str) -> Lesson:
    return LESSONS[name].run([chip(on)])


# Of SparseCores: jax 0.12 warns of the copies of its own pipeline.
@pytest.mark.filterwarnings("ignore:Destination semaphore is ignored")
@pytest.mark.parametrize(("name", "on"), SHOWN)
def test_everything_comes_out_as_it_must(name: str, on: str) -> None:
    lesson = told(name, on)
    assert [row for row in lesson.rows if row["status"] not in RIGHT] == []
    assert lesson.ok
    assert all(lesson.lines)
