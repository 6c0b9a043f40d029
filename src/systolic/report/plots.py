"""The ladder's plots: Tflop/s over size, one picture a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from systolic.report.whole_file import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OURS, _XLA, _PEAK, _REFUSED = "#1f6feb", "#8b949e", "#2da44e", "#cf222e"


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """The rate of a square product; `tflops` is None where there is none, and `status` says why."""

    size: int
    tflops: float | None
    status: str


def draw_rates(
    axes: Axes,
    points: Sequence[RatePoint],
    *,
    kernel: str,
    provenance: str,
    peak_tflops: float,
    xla_tflops: Mapping[int, float],
) -> None:
    """Draws rates over sizes into `axes`: the kernel's, XLA's beside it, the peak as a line, what has no rate marked.

    Args:
      provenance: how the times are known: modelled, simulated or measured.
      peak_tflops: of the operands' dtype.
      xla_tflops: XLA's rate by size.
    """
    place = {point.size: index for index, point in enumerate(points)}
    axes.axhline(peak_tflops, color=_PEAK, linewidth=1.5, label=f"peak {peak_tflops:,.0f}")
    known = [size for size in place if size in xla_tflops]
    axes.plot([place[size] for size in known], [xla_tflops[size] for size in known], "s--", color=_XLA, label="XLA")
    timed = [(place[point.size], point.tflops) for point in points if point.tflops is not None]
    axes.plot([x for x, _ in timed], [y for _, y in timed], "o-", color=_OURS, label=kernel)
    for x, y in timed:
        axes.annotate(f"{y:.1f}", (x, y), textcoords="offset points", xytext=(0, -13), ha="center", fontsize=8)
    missing = [point for point in points if point.tflops is None]
    if missing:
        style = {"color": _REFUSED, "markersize": 9, "markeredgewidth": 2, "clip_on": False}
        axes.plot([place[point.size] for point in missing], [0.0] * len(missing), "x", label="no time", **style)
    for point in missing:
        where = (place[point.size], 0.0)
        axes.annotate(point.status, where, textcoords="offset points", xytext=(0, 9), ha="center", fontsize=8)
    axes.set_xticks(range(len(points)), [f"{point.size}³" for point in points])
    axes.set_xlim(-0.5, len(points) - 0.5)
    axes.set_ylim(0, peak_tflops * 1.12)
    axes.set_xlabel("matrix size m = k = n")
    axes.set_ylabel(f"{provenance} Tflop/s")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def plot_rates(
    points: Sequence[RatePoint],
    path: Path,
    *,
    title: str,
    kernel: str,
    provenance: str,
    peak_tflops: float,
    xla_tflops: Mapping[int, float],
) -> Path:
    """Writes the picture of `draw_rates` as a PNG to `path`, whose folder is made; returns `path`.

    A picture that was there is replaced only when the new one is whole.

    Raises:
      OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    draw_rates(axes, points, kernel=kernel, provenance=provenance, peak_tflops=peak_tflops, xla_tflops=xla_tflops)
    axes.set_title(title, fontsize=11)
    return save_png(figure, path)


def save_png(figure: Figure, path: Path) -> Path:
    """Writes a figure as a PNG, whole or not at all; its folder is made.

    Raises:
      OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=150, format="png")
    return path
