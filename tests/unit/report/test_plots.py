from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops

from systolic.report import RatePoint, rates_plot, save_png
from systolic.report.png import with_larger_text
from systolic.report.trials_plot import TrialPoint, trials_plot
from systolic.report.validation_plot import TimePoint, predictions_plot

POINTS = [
    RatePoint(size=512, tflops=40.0, status="ok"),
    RatePoint(size=1024, tflops=80.0, status="ok"),
    RatePoint(size=2048, tflops=None, status="refused"),
]


def rates(xla_tflops: dict[int, float]) -> Any:
    return rates_plot(POINTS, title="v1", kernel="v1", provenance="simulated", peak_tflops=197.0, xla_tflops=xla_tflops)


def drawn(chart: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each row that is drawn, with the encoding of its layer."""
    for layer in chart.to_dict()["layer"]:
        for row in layer["data"]["values"]:
            yield row, layer["encoding"]


def test_the_picture_shows_rates_xla_peak_and_refusals() -> None:
    rows = [row for row, _ in drawn(rates({512: 50.0, 2048: 170.0}))]
    places = {(row["series"], row.get("size"), row["tflops"], row.get("text")) for row in rows}
    assert places == {
        ("peak 197", None, 197.0, None),
        ("XLA", "512³", 50.0, None),
        ("XLA", "2048³", 170.0, None),
        ("v1", "512³", 40.0, None),
        ("v1", "1024³", 80.0, None),
        ("no time", "2048³", 0, "refused"),
    }
    _, encoding = list(drawn(rates({})))[-1]
    assert encoding["x"]["scale"]["domain"] == ["512³", "1024³", "2048³"]
    assert encoding["y"]["title"] == "simulated Tflop/s"
    assert encoding["color"]["scale"]["domain"] == ["peak 197", "XLA", "v1", "no time"]


def test_trials_are_coloured_by_what_limits_them_and_the_best_is_ringed() -> None:
    points = [TrialPoint(volume=2**20, time_us=9.0, limit="copies"), TrialPoint(volume=2**21, time_us=7.0, limit="x")]
    chart = trials_plot(points, title="t", provenance="simulated", xla_us=8.0)
    assert {(row["series"], row["time_us"]) for row, _ in drawn(chart)} == {
        ("limited by copies (1)", 9.0),
        ("limited by x (1)", 7.0),
        ("best", 7.0),
        ("XLA", 8.0),
    }


def test_predictions_lie_in_a_band_around_the_diagonal() -> None:
    points = [TimePoint(chip=chip, measured_us=10.0, predicted_us=11.0) for chip in ("v5e", "v5e", "v6e")]
    rows = [row for row, _ in drawn(predictions_plot(points, title="t", provenance="simulated"))]
    assert [row["chip"] for row in rows if "chip" in row] == ["v5e (2)", "v5e (2)", "v6e (1)"]
    edges = [row for row in rows if "low" in row]
    assert all(row["low"] < row["measured"] == row["predicted"] < row["high"] for row in edges)
    assert min(row["measured"] for row in edges) < 10 < 11 < max(row["measured"] for row in edges)


def test_a_png_is_written_into_a_new_folder(tmp_path: Path) -> None:
    path = save_png(rates({512: 50.0}), tmp_path / "new" / "v1.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [found.name for found in path.parent.iterdir()] == ["v1.png"]


def test_a_png_loses_nothing_on_its_way(tmp_path: Path) -> None:
    path, as_drawn = save_png(rates({512: 50.0}), tmp_path / "v1.png"), BytesIO()
    with_larger_text(rates({512: 50.0})).save(as_drawn, format="png", scale_factor=2)
    with Image.open(path) as found, Image.open(as_drawn) as wanted:
        assert (found.size, found.mode) == (wanted.size, wanted.mode)
        assert ImageChops.difference(found, wanted).getbbox() is None
    assert path.stat().st_size < len(as_drawn.getvalue())


def test_a_failed_save_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v1.png"
    path.write_bytes(b"before")

    def fail(file: Path, _content: bytes) -> None:
        with file.open("wb") as half:
            half.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space"):
        save_png(rates({}), path)
    assert path.read_bytes() == b"before"
    assert [found.name for found in tmp_path.iterdir()] == ["v1.png"]
