"""The ladder's table fits a terminal of 80 columns."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from systolic.accuracy.time_error import TimeError
from systolic.cli.ladder import _COLUMNS
from systolic.cli.tables import show_table


class WideRow:
    """A row whose fields are as wide as any of the ladder on a v5e."""

    rung, status, check, m = "v1", "refused", "right", 8192
    tile_m = tile_k = tile_n = 8192
    time_us = xla_time_us = 90_000.0
    time_error = xla_time_error = TimeError(kind="", percent=12.0, ratio_percent=None, programs=9, reason="")
    xla_flags = None
    hbm_bytes = least_hbm_bytes = 10**9

    def __getattr__(self, name: str) -> Any:
        return 0.25


def test_80_columns_hold_a_line_for_each_row() -> None:
    written = io.StringIO()
    out = Console(width=80, force_terminal=True, no_color=True, file=written)
    rows: list[Any] = [WideRow()] * 3
    show_table(out, _COLUMNS, rows)
    lines = written.getvalue().splitlines()
    assert len(lines) == 1 + len(rows) + 2  # the heading, and which columns are not shown, in two lines
    assert all("8192/8192/8192" in line for line in lines[1:4])
