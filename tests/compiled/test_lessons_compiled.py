"""Lessons whole, on one chip each: every part runs, compiles and is simulated, or is wrong on purpose as it must be."""

import importlib

import pytest

from systolic.chips import chip
from systolic.lessons import LESSONS, Lesson

SHOWN = [
    ("reductions", "v5p"),
    ("cores", "v5p"),
    ("refs", "v5e"),
]


def told(name: str, on: str) -> Lesson:
    lesson = importlib.import_module(LESSONS[name]).lesson([chip(on)])
    assert lesson.name == name
    return lesson


@pytest.mark.parametrize(("name", "on"), SHOWN)
def test_everything_comes_out_as_it_must(name: str, on: str) -> None:
    lesson = told(name, on)
    assert [row for row in lesson.rows if row["status"] not in ("ok", "not on this chip")] == []
    assert lesson.ok
    assert all(lesson.lines)
