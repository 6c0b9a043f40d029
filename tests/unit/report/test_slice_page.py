"""The page of an explanation on a slice: rows of devices and links, three ceilings, and the JSON that it is made of."""

from __future__ import annotations

import pytest
from explanations import an_explanation
from rich.console import Console
from slices import GATHER, a_slice_explanation
from test_report_page import read, rows, specs

from systolic.cli.explanation_tables import show_explanation
from systolic.explaining import Explanation
from systolic.report import compare_explanations, explanation_page
from systolic.report.ceilings import ceilings, ceilings_table


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    return a_slice_explanation()


@pytest.fixture(scope="module")
def page(explanation: Explanation) -> str:
    return explanation_page(explanation)


def test_the_three_ceilings(explanation: Explanation) -> None:
    found = {each.name: each.least_us for each in ceilings(explanation, explanation.programs[0])}
    roof = explanation.roofline
    assert found == {
        "matrix units": pytest.approx(40e9 / roof.peak_flops_per_s * 1e6),
        "HBM": pytest.approx(58_720_256 / roof.simulated_hbm_bytes_per_s * 1e6),
        "links (ICI)": pytest.approx(30.0),
    }
    table = ceilings_table(explanation)
    closest = table.rows[0]
    assert closest.least_us == max(found.values())


@pytest.mark.exhaustive
def test_the_roofline_has_a_link_ceiling_for_each_program(page: str) -> None:
    spec = specs(read(page))["roofline"]
    marks = {row["label"]: row["tflops"] for row in rows(spec) if "label" in row and "role" not in row}
    assert marks == {
        "this function": pytest.approx(40e9 / 30.0 / 1e6),
        "mesh data=4,model=2": pytest.approx(40e9 / 50.0 / 1e6),
    }
    alone = specs(read(explanation_page(an_explanation())))["roofline"]
    assert not [row for row in rows(alone) if "label" in row and "role" not in row]


def test_the_page_has_a_row_for_each_class_and_each_link(page: str) -> None:
    found = read(page)
    lanes = {row["lane"] for row in rows(specs(found)["slice"])}
    assert {"devices 1–6", "devices 0, 7", "0 → 2 y+", "2 → 4 y+", "2 → 0 y-"} <= lanes
    text = " ".join(found.text.split())
    for words in ("8 devices of a 2x4 slice of TPU v6e", GATHER, "14.00 µs are exposed", "2.00 µs before the slowest"):
        assert words in text, words
    assert 'href="#slice"' in page
    assert 'href="#slice"' not in explanation_page(an_explanation())


def test_the_terminal_says_the_same(explanation: Explanation) -> None:
    out = Console(width=200, highlight=False)
    with out.capture() as captured:
        show_explanation(out, explanation, details=False)
    text = captured.get()
    for words in (
        "v6e 2x4, 8 devices",
        "links (ICI)",
        GATHER,
        "devices that behave alike",
        "exposed communication 18 %",
    ):
        assert words in text, words


def test_it_is_kept_reopened_and_compared(explanation: Explanation) -> None:
    again = Explanation.from_json(explanation.to_json())
    assert again == explanation
    made = compare_explanations(an_explanation(), again)
    assert (made.topology_before, made.topology_after) == ("", "2x4")
    assert {row.quantity for row in made.rows if row.group == "communication"} >= {"exposed", "hidden", "skew"}
