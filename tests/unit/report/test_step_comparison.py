from __future__ import annotations

from dataclasses import replace

import pytest
from test_step_page import a_step

from systolic.report.step_comparison import ComparedStep, comparison_table
from systolic.steps import DoesNotFitError
from systolic.steps.records import GIB


def compared(label: str, tokens: int, *, chips: int = 8, price: float | None = None) -> ComparedStep:
    run = replace(a_step(), tokens=tokens)
    return ComparedStep(where="v6e 2x4", label=label, chips=chips, run=run, price=price)


def order(*steps: ComparedStep) -> list[str]:
    return [step.label for step in comparison_table(steps).rows]


def test_the_fastest_is_first_and_what_has_no_time_last() -> None:
    refused = ComparedStep(where="v6e", label="large", chips=1, run=None, reason="does not fit")
    assert order(refused, compared("slow", 1000), compared("fast", 4000)) == ["fast", "slow", "large"]


def test_the_need_of_a_step_that_does_not_fit_is_in_its_line() -> None:
    shortage = DoesNotFitError(40 * GIB, 32 * GIB, 8 * GIB)
    large = ComparedStep(where="v6e", label="large", chips=1, run=None, reason="does not fit", shortage=shortage)
    unknown = ComparedStep(where="v6e", label="unknown", chips=1, run=None, reason="not simulated")
    table = comparison_table([large, unknown])
    [hbm] = [column for column in table.columns if column.title == "HBM GiB"]
    assert [hbm.text(step) for step in table.rows] == ["40.00 of 32.00", ""]


def test_a_rate_is_for_a_chip_whatever_devices_it_has() -> None:
    assert order(compared("one device a chip", 4000), compared("two", 4000, chips=4)) == ["two", "one device a chip"]


def test_the_cost_is_of_all_chips_for_a_million_tokens() -> None:
    step = compared("priced", 4000, price=3.6)
    assert step.run is not None
    assert step.million_tokens_cost == pytest.approx(3.6 * 8 / 3600 * step.run.time_us * 1e-6 / 4000 * 1e6)
    assert order(compared("no price", 9000), compared("dear", 8000, price=9.0), step) == ["priced", "dear", "no price"]


def test_columns_that_say_nothing_are_left_out() -> None:
    titles = [column.title for column in comparison_table([compared("plain", 0)]).columns]
    assert "cost of 10⁶ tokens" not in titles
    assert "tokens/s a chip" not in titles
