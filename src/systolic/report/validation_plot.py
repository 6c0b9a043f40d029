"""Predicted over measured times: on the diagonal, a prediction is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BAND = 0.15
_COLOURS = ("#1f6feb", "#d1690e", "#2da44e", "#8250df", "#cf222e", "#57606a")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePoint:
    """A time that was measured and the predicted one."""

    chip: str
    measured_us: float
    predicted_us: float


def predictions_plot(points: Sequence[TimePoint], *, title: str, provenance: str) -> Any:
    """Draw, for `save_png`, predicted over measured times, both logarithmic: a color a chip, the diagonal, and ±15 %.

    `points` has at least one point; `provenance` says how the predictions are known: modelled or simulated.
    """
    import altair as alt

    times = [time for point in points for time in (point.measured_us, point.predicted_us)]
    ends = (min(times) / 1.5, max(times) * 1.5)
    scale = alt.Scale(type="log", domain=list(ends), nice=False)
    x = alt.X("measured:Q", title="measured µs, less dispatch", scale=scale)
    y = alt.Y("predicted:Q", title=f"{provenance} µs", scale=scale)
    edges = [{"measured": end, "predicted": end, "low": end * (1 - BAND), "high": end * (1 + BAND)} for end in ends]
    counts = Counter(point.chip for point in points)
    names = {chip: f"{chip} ({count})" for chip, count in counts.items()}
    rows = [
        {"measured": point.measured_us, "predicted": point.predicted_us, "chip": names[point.chip]} for point in points
    ]
    colors = alt.Scale(domain=list(names.values()), range=_COLOURS)
    diagonal = alt.Chart(alt.Data(values=edges)).encode(x=x)
    chips = alt.Chart(alt.Data(values=rows)).mark_point(size=45, clip=True)
    return alt.layer(
        diagonal.mark_area(color="#8b949e", opacity=0.25, clip=True).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"),
        diagonal.mark_line(color="#57606a", strokeWidth=1).encode(y=y),
        chips.encode(
            x=x,
            y=y,
            color=alt.Color("chip:N", title=f"±{BAND:.0%} is grey", scale=colors),
            shape=alt.Shape("chip:N", scale=alt.Scale(domain=list(names.values()))),
        ),
    ).properties(title=title, width=440, height=440)
