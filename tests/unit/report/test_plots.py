from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from systolic.report import RatePoint, draw_rates, plot_rates

POINTS = [
    RatePoint(size=512, tflops=40.0, status="ok"),
    RatePoint(size=1024, tflops=80.0, status="ok"),
    RatePoint(size=2048, tflops=None, status="refused"),
]


def test_the_picture_shows_rates_xla_peak_and_refusals() -> None:
    axes = Figure().subplots()
    draw_rates(
        axes, POINTS, kernel="v1", provenance="simulated", peak_tflops=197.0, xla_tflops={512: 50.0, 2048: 170.0}
    )
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    assert set(lines) == {"peak 197", "XLA", "v1", "no time"}
    assert list(lines["v1"].get_xydata()[:, 1]) == [40.0, 80.0]  # pyright: ignore[reportIndexIssue, reportCallIssue, reportArgumentType]
    assert list(lines["XLA"].get_xdata()) == [0, 2]  # pyright: ignore[reportArgumentType]
    assert list(lines["no time"].get_xdata()) == [2]  # pyright: ignore[reportArgumentType]
    assert "refused" in {text.get_text() for text in axes.texts}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["512³", "1024³", "2048³"]
    assert axes.get_ylabel() == "simulated Tflop/s"


def save(path: Path) -> Path:
    return plot_rates(
        POINTS, path, title="v1", kernel="v1", provenance="simulated", peak_tflops=197.0, xla_tflops={512: 50.0}
    )


def test_a_png_is_written_into_a_new_folder(tmp_path: Path) -> None:
    path = save(tmp_path / "new" / "v1.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [found.name for found in path.parent.iterdir()] == ["v1.png"]


def test_a_failed_save_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v1.png"
    path.write_bytes(b"before")

    def fail(_figure: Figure, file: Path, **_: object) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="No space"):
        save(path)
    assert path.read_bytes() == b"before"
    assert [found.name for found in tmp_path.iterdir()] == ["v1.png"]
