"""The ladder's plots: Tflop/s over size, one picture a rung."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class PlottedRow(Protocol):
    """What a plot needs of a row of results."""

    @property
    def m(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def chip(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def tflops(self) -> float | None: ...
    @property
    def xla_time_us(self) -> float | None: ...
    @property
    def provenance(self) -> str | None: ...


_OURS, _XLA, _PEAK, _REFUSED = "#1f6feb", "#8b949e", "#2da44e", "#cf222e"


def plot_rates(
    rows: Sequence[PlottedRow], *, title: str, peak_tflops: float, xla_tflops: dict[int, float], path: Path
) -> Path:
    """Draws the rate of one kernel over the matrix size, XLA's beside it and the peak as a line.

    Args:
      rows: square products of one kernel, chip and dtype. A row without a rate is marked at the bottom, by its status.
      peak_tflops: of the operands' dtype.
      xla_tflops: XLA's rate by size.
      path: of the PNG; its folder is made. A picture that was there is replaced only when the new one is whole.

    Returns:
      `path`.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
    sizes = [row.m for row in rows]
    positions = {size: place for place, size in enumerate(sizes)}
    timed = [row for row in rows if row.tflops is not None]
    axes.axhline(peak_tflops, color=_PEAK, linewidth=1.5, label=f"peak {peak_tflops:,.0f}")
    known = [size for size in sizes if size in xla_tflops]
    axes.plot([positions[s] for s in known], [xla_tflops[s] for s in known], "s--", color=_XLA, label="XLA jnp.matmul")
    axes.plot(
        [positions[row.m] for row in timed], [row.tflops for row in timed], "o-", color=_OURS, label=title.split(" ")[0]
    )
    for row in timed:
        axes.annotate(
            f"{row.tflops:.1f}",
            (positions[row.m], row.tflops),
            textcoords="offset points",
            xytext=(0, 7),
            ha="center",
            fontsize=8,
            color=_OURS,
        )
    missing = [row for row in rows if row.tflops is None]
    if missing:
        axes.plot(
            [positions[row.m] for row in missing],
            [0] * len(missing),
            "x",
            color=_REFUSED,
            markersize=9,
            markeredgewidth=2,
            clip_on=False,
            label="no time",
        )
        for row in missing:
            axes.annotate(
                row.status,
                (positions[row.m], 0),
                textcoords="offset points",
                xytext=(0, 9),
                ha="center",
                fontsize=8,
                color=_REFUSED,
            )
    axes.set_xticks(range(len(sizes)), [f"{size}³" for size in sizes])
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylim(0, peak_tflops * 1.12)
    axes.set_xlabel("matrix size m = k = n")
    provenance = next((row.provenance for row in timed if row.provenance), "simulated")
    axes.set_ylabel(f"{provenance} Tflop/s")
    axes.set_title(title, fontsize=11)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        figure.savefig(partial, dpi=150, format="png")
        partial.replace(path)
    finally:
        pyplot.close(figure)
        partial.unlink(missing_ok=True)
    return path
