"""Plot times over a size, with a line for each competitor, in a panel for each chip, one below the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Colors of series in every picture; other series take the rest in turn.
_KNOWN = {"limit": "#2da44e", "systolic": "#1f6feb", "XLA": "#8b949e"}
_OTHERS = ("#bc4c00", "#8250df", "#bf8700", "#cf222e", "#1b7c83", "#bf3989", "#57606a", "#0550ae", "#4d2d00")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePoint:
    """One time of one competitor."""

    x: float  # the size
    time_us: float
    series: str  # the competitor, as in the legend
    panel: str = ""  # the chip, where there are several panels
    dashed: bool = False  # its line is a baseline


def times_plot(points: Sequence[TimePoint], *, title: str, x_title: str, provenance: str) -> Any:
    """Draw, for `save_png`, a line for each series, both axes logarithmic.

    Args:
      points: at least one. Lines of one name have one color in all panels, and are in the legend in order of
        appearance.
      x_title: the size, with its unit.
      provenance: how the times are known.
    """
    import altair as alt

    names = list(dict.fromkeys(point.series for point in points))
    others = [name for name in names if name not in _KNOWN]
    colors = _KNOWN | {name: _OTHERS[number % len(_OTHERS)] for number, name in enumerate(others)}
    panels = list(dict.fromkeys(point.panel for point in points))
    rows = [
        {"x": point.x, "us": point.time_us, "series": point.series, "panel": point.panel, "dashed": point.dashed}
        for point in points
    ]
    drawn = alt.Chart().encode(
        x=alt.X("x:Q", title=x_title, scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("us:Q", title=f"{provenance} µs", scale=alt.Scale(type="log", nice=False)),
        color=alt.Color(
            "series:N",
            title=None,
            sort=None,
            scale=alt.Scale(domain=names, range=[colors[name] for name in names]),
        ),
    )
    dashed = drawn.transform_filter("datum.dashed").mark_line(strokeDash=[5, 4])
    lines = drawn.transform_filter("!datum.dashed").mark_line(point=alt.OverlayMarkDef(filled=True, size=45))
    alone = len(panels) == 1
    layers = alt.layer(dashed, lines, data=alt.Data(values=rows))
    layers = layers.properties(width=520, height=340 if alone else 200)
    if not alone:
        header = alt.Header(orient="top", labelAnchor="start", labelPadding=4)
        layers = layers.facet(row=alt.Row("panel:N", title=None, sort=panels, header=header))
    return layers.properties(title=title)
