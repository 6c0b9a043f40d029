"""All trials of a search: time over the volume of a tile, coloured by what limits them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from systolic.report.plots import save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LIMITS = {"matrix units": "#2da44e", "copies": "#1f6feb", "starting copies": "#d1690e", "the other core": "#8250df"}
_OTHER, _XLA = "#57606a", "#8b949e"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPoint:
    """A trial with a time. `volume` is tile_m · tile_k · tile_n."""

    volume: int
    time_us: float
    limit: str


def draw_trials(axes: Axes, points: Sequence[TrialPoint], *, provenance: str, xla_us: float | None) -> None:
    """Draws times over tile volumes into `axes`: a colour for each limit, the fastest ringed, XLA as a line.

    Args:
      points: at least one.
      provenance: how the times are known: modelled, simulated or measured.
      xla_us: XLA's time; None: not drawn.
    """
    for limit in dict.fromkeys(point.limit for point in points):
        shown = [point for point in points if point.limit == limit]
        axes.plot(
            [point.volume for point in shown],
            [point.time_us for point in shown],
            "o",
            color=_LIMITS.get(limit, _OTHER),
            alpha=0.8,
            label=f"limited by {limit} ({len(shown)})",
        )
    best = min(points, key=lambda point: point.time_us)
    axes.plot([best.volume], [best.time_us], "o", markersize=13, markerfacecolor="none", color="#cf222e", label="best")
    if xla_us is not None:
        axes.axhline(xla_us, color=_XLA, linestyle="--", label="XLA")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("volume of a tile, m · k · n")
    axes.set_ylabel(f"{provenance} µs")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)


def plot_trials(points: Sequence[TrialPoint], path: Path, *, title: str, provenance: str, xla_us: float | None) -> Path:
    """Writes the picture of `draw_trials` as a PNG to `path`; returns `path`.

    Raises:
      OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    draw_trials(axes, points, provenance=provenance, xla_us=xla_us)
    axes.set_title(title, fontsize=11)
    return save_png(figure, path)
