"""The progress bar on a terminal of 80 columns."""

from __future__ import annotations

import io

import pytest

from systolic.cli.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_label_does_not_cut_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    with progress_bar(quiet=False) as bar:
        bar.planned(17)
        bar.done("tile_m=2048 tile_k=4096 tile_n=256 with more VMEM")
    assert "1/17 0:00:00 left" in terminal.getvalue()
    assert "…" not in terminal.getvalue()
