"""Show errors of simulated times: after a time, in a column, and in a verdict on two times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from systolic.accuracy.time_error import RatioVerdict, TimeError, percent_text
from systolic.report.columns import Column, numeric

_Row = TypeVar("_Row")

LEGEND = "±: nine of ten published times of similar programs lie within this distance of the simulated ones"


def time_text(time_us: float, error: TimeError | None) -> str:
    """Return a simulated time with its error: "164.8 µs ± 4 %"."""
    return f"{time_us:,.1f} µs" + (f" {error.words}" if error is not None else "")


def error_column(
    error: Callable[[_Row], TimeError | None], title: str = "±", *, droppable: bool = False
) -> Column[_Row]:
    """Return a column of errors, to follow the column of times."""

    def cell(row: _Row) -> str | None:
        row_error = error(row)
        return row_error.cell if row_error is not None else None

    return numeric(title, cell, droppable=droppable, optional=True)


def error_lines(errors: Iterable[TimeError | None]) -> list[str]:
    """Explain the column and its missing numbers; no lines if it is empty."""
    result = [error for error in errors if error is not None]
    reasons = dict.fromkeys(error.reason for error in result if error.percent is None)
    return [LEGEND] * bool(result) + [f"± ?: {reason}" for reason in reasons if reason]


def verdict_text(verdict: RatioVerdict, error_percent: float | None, *, same_kernel: bool = False) -> str:
    """Return a verdict on the ratio of two simulated times, in words that follow it."""
    if error_percent is None:
        return "the error of their ratio is not known"
    measured = "the same kernel, so " * same_kernel + f"the ratio may be off by {percent_text(error_percent)}"
    return measured if verdict != "level" else f"{measured}: no difference that holds"
