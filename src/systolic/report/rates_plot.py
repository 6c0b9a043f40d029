"""The ladder's plots: Tflop/s over size, one picture a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PEAK, _XLA, _OURS, _REFUSED = "#2da44e", "#8b949e", "#1f6feb", "#cf222e"


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """The rate of a square product; `tflops` is None where there is none, and `status` says why."""

    size: int
    tflops: float | None
    status: str


def rates_plot(
    points: Sequence[RatePoint],
    *,
    title: str,
    kernel: str,
    provenance: str,
    peak_tflops: float,
    xla_tflops: Mapping[int, float],
) -> Any:
    """Draw, for `save_png`, a kernel's and XLA's rates over sizes, and the peak as a line; mark sizes without a rate.

    Args:
      provenance: how the times are known: modelled, simulated or measured.
      peak_tflops: the chip's peak for the operands' dtype.
      xla_tflops: XLA's rate by size.
    """
    import altair as alt

    peak, missing = f"peak {peak_tflops:,.0f}", [point for point in points if point.tflops is None]
    series = {peak: _PEAK, "XLA": _XLA, kernel: _OURS} | ({"no time": _REFUSED} if missing else {})
    sizes = [f"{point.size}³" for point in points]
    axis = alt.Axis(labelAngle=0, grid=False)
    x = alt.X("size:N", title="matrix size m = k = n", scale=alt.Scale(domain=sizes), axis=axis)
    y = alt.Y("tflops:Q", title=f"{provenance} Tflop/s", scale=alt.Scale(domain=[0, peak_tflops * 1.12], nice=False))
    domain = alt.Scale(domain=list(series), range=list(series.values()))
    color = alt.Color("series:N", title=None, scale=domain)

    def drawn(name: str, rates: Mapping[int, float]) -> Any:
        rows = [{"size": f"{size}³", "tflops": rate, "series": name} for size, rate in rates.items()]
        return alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, color=color)

    ours = drawn(kernel, {point.size: point.tflops for point in points if point.tflops is not None})
    others = {point.size: xla_tflops[point.size] for point in points if point.size in xla_tflops}
    xla_line = alt.OverlayMarkDef(shape="square", filled=True, size=50)
    layers = [
        alt.Chart(alt.Data(values=[{"tflops": peak_tflops, "series": peak}])).mark_rule().encode(y=y, color=color),
        drawn("XLA", others).mark_line(strokeDash=[5, 4], point=xla_line),
        ours.mark_line(point=alt.OverlayMarkDef(filled=True, size=60)),
        ours.mark_text(dy=15).encode(text=alt.Text("tflops:Q", format=",.1f")),
    ]
    if missing:
        rows = [{"size": f"{row.size}³", "tflops": 0, "series": "no time", "text": row.status} for row in missing]
        refused = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, color=color)
        layers += [
            refused.mark_point(shape="cross", angle=45, filled=True, size=90),
            refused.mark_text(dy=-14).encode(text="text:N"),
        ]
    return alt.layer(*layers).properties(title=title, width=520, height=340)
