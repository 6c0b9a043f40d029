"""Plot all trials of a search: time over the volume of a tile, colored by their limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_LIMITS = {"matrix units": "#2da44e", "copies": "#1f6feb", "starting copies": "#d1690e", "the other core": "#8250df"}
_OTHER, _XLA, _BEST = "#57606a", "#8b949e", "#cf222e"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPoint:
    """A trial with a time. `volume` is tile_m · tile_k · tile_n, or the product of the sizes of a function."""

    volume: int
    time_us: float
    limit: str


def trials_plot(
    points: Sequence[TrialPoint],
    *,
    title: str,
    provenance: str,
    xla_us: float | None,
    axis: str = "volume of a tile, m · k · n",
) -> Any:
    """Draw, for `save_png`, times over tile volumes: a color for each limit, the fastest ringed, XLA as a line.

    Args:
      points: at least one.
      provenance: how the times are known: modelled, simulated or measured.
      xla_us: XLA's time; None: not drawn.
      axis: the title of `volume`.
    """
    import altair as alt

    counts = Counter(point.limit for point in points)
    names = {limit: f"limited by {limit} ({count})" for limit, count in counts.items()}
    series = {name: _LIMITS.get(limit, _OTHER) for limit, name in names.items()}
    series |= {"best": _BEST} | ({"XLA": _XLA} if xla_us is not None else {})
    best = min(points, key=lambda point: point.time_us)
    x = alt.X(
        "volume:Q",
        title=axis,
        scale=alt.Scale(type="log", base=2, nice=False, padding=15),
        axis=alt.Axis(labelExpr="'2^' + format(log(datum.value) / log(2), 'd')"),
    )
    y = alt.Y("time_us:Q", title=f"{provenance} µs", scale=alt.Scale(zero=False))
    scale = alt.Scale(domain=list(series), range=list(series.values()))
    color = alt.Color("series:N", title=None, scale=scale, legend=alt.Legend(labelLimit=300))

    def drawn(rows: list[dict[str, Any]]) -> Any:
        return alt.Chart(alt.Data(values=rows)).encode(y=y, color=color)

    def row(point: TrialPoint, name: str) -> dict[str, Any]:
        return {"volume": point.volume, "time_us": point.time_us, "series": name}

    layers = [
        drawn([row(point, names[point.limit]) for point in points]).mark_point(filled=True, size=60).encode(x=x),
        drawn([row(best, "best")]).mark_point(size=220, strokeWidth=2).encode(x=x),
    ]
    if xla_us is not None:
        layers.append(drawn([{"time_us": xla_us, "series": "XLA"}]).mark_rule(strokeDash=[5, 4]))
    return alt.layer(*layers).properties(title=title, width=520, height=340)
