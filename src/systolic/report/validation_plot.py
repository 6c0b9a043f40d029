"""Predicted over measured times: on the diagonal, a prediction is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from systolic.report.plots import save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND = 0.15
_MARKERS, _COLOURS = "osD^vP", ("#1f6feb", "#d1690e", "#2da44e", "#8250df", "#cf222e", "#57606a")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePoint:
    """A time that was measured and the predicted one."""

    chip: str
    measured_us: float
    predicted_us: float


def draw_predictions(axes: Axes, points: Sequence[TimePoint], *, provenance: str) -> None:
    """Draws predicted over measured times into `axes`, both logarithmic: a marker a chip, the diagonal, ±15 %.

    Args:
      points: at least one.
      provenance: how the predictions are known: modelled or simulated.
    """
    times = [time for point in points for time in (point.measured_us, point.predicted_us)]
    ends = (min(times) / 1.5, max(times) * 1.5)
    band = [[end * (1 + sign * BAND) for end in ends] for sign in (-1, 1)]
    axes.fill_between(ends, band[0], band[1], color="#8b949e", alpha=0.25, linewidth=0, label=f"±{BAND:.0%}")
    axes.plot(ends, ends, color="#57606a", linewidth=1, label="as measured")
    for index, chip in enumerate(dict.fromkeys(point.chip for point in points)):
        shown = [point for point in points if point.chip == chip]
        axes.plot(
            [point.measured_us for point in shown],
            [point.predicted_us for point in shown],
            linestyle="none",
            marker=_MARKERS[index % len(_MARKERS)],
            color=_COLOURS[index % len(_COLOURS)],
            markerfacecolor="none",
            label=f"{chip} ({len(shown)})",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    axes.set_xlabel("measured µs, less dispatch")
    axes.set_ylabel(f"{provenance} µs")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")


def plot_predictions(points: Sequence[TimePoint], path: Path, *, title: str, provenance: str) -> Path:
    """Writes the picture of `draw_predictions` as a PNG to `path`, whose folder is made; returns `path`.

    Raises:
      OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    draw_predictions(axes, points, provenance=provenance)
    axes.set_title(title, fontsize=11)
    return save_png(figure, path)
