"""Results that show themselves: on a terminal, in a notebook, as a data frame."""

from __future__ import annotations

import importlib.util

import pytest

import systolic
from systolic.report import Comparison
from systolic.support.summary import Summarised, Summary

MANY = Summary(
    heading="1.2 µs <on> v5e",
    facts={"HBM": "busy 3 %", "flags": ""},
    columns=("op", "µs"),
    rows=tuple((f"op {number}", number / 2) for number in range(12)),
)


class Shown(Summarised):
    def summary(self) -> Summary:
        return MANY


def test_text_fits_one_screen_and_says_what_it_leaves_out() -> None:
    lines = str(Shown()).splitlines()
    assert len(lines) < 24
    assert lines[0] == MANY.heading
    assert not any(line.startswith("flags") for line in lines)
    assert lines[-1] == "and 2 more"


def test_a_long_cell_is_cut_on_a_terminal_and_whole_in_a_notebook() -> None:
    long = "tiles 2048/2048/2048, subtiles 2048×512, manual DMA, 3 stages, grid order m"
    summary = Summary(heading="a", columns=("config",), rows=((long,),))
    assert long not in summary.text()
    assert long in summary.as_html()


def test_a_notebook_shows_text_as_text() -> None:
    shown = Shown()._repr_html_()
    assert "&lt;on&gt;" in shown
    assert shown.count("<tr>") == 1 + 1 + 10  # the fact, the head, ten rows
    assert Shown()._repr_mimebundle_() == {"text/plain": str(Shown()), "text/html": shown}


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_a_data_frame_has_every_row() -> None:
    frame = Shown().to_dataframe()
    assert list(frame.columns) == ["op", "µs"]
    assert len(frame) == 12


def test_what_python_shows_of_a_plan_names_its_kernel() -> None:
    plan = systolic.plan(512, 512, 512, "v6e")
    assert str(plan.config) in str(plan)


RESULTS = (
    systolic.SimulatedRun,
    systolic.SliceRun,
    systolic.CheckReport,
    systolic.Explanation,
    systolic.TuningResult,
    systolic.FunctionTuning,
    systolic.Outcome,
    systolic.StepRun,
    systolic.Matmuls,
    Comparison,
)


@pytest.mark.parametrize("kind", RESULTS)
def test_every_result_shows_itself(kind: type[Summarised]) -> None:
    assert issubclass(kind, Summarised)
    assert kind.summary is not Summarised.summary
