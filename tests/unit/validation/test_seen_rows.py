"""Rows that were in view when constants were chosen."""

from __future__ import annotations

from systolic.chips import CHIPS
from systolic.validation.seen_rows import SeenRows, seen_rows


def test_seen_rows_are_of_chips_that_are_known() -> None:
    assert set(seen_rows()) <= set(CHIPS)
    assert SeenRows(op="xla", sizes=(4096, 4096, 4096)) in seen_rows()["v6e"].rows
