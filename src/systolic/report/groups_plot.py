"""Time of a grouped product over the rows of a group, beside its limit, XLA and public kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_OURS, _XLA, _LIMIT = "#1f6feb", "#8b949e", "#2da44e"
_PEERS = ("#bc4c00", "#8250df", "#bf8700", "#cf222e")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsPoint:
    """Times of one number of rows; those that are not known are left out."""

    rows_per_group: float
    limit_us: float
    times_us: Mapping[str, float]  # by who takes them


def groups_plot(points: Sequence[GroupsPoint], *, title: str, ours: str, xla: str, provenance: str) -> Any:
    """Draws a line for the limit and for everybody who has a time, both axes logarithmic.

    Args:
      points: with `ours` and `xla` among the names of their times.
      provenance: how the times are known.

    Returns:
      An Altair chart, for `save_png`.
    """
    import altair as alt

    others = sorted({name for point in points for name in point.times_us} - {ours, xla})
    series = {"limit": _LIMIT, ours: _OURS, xla: _XLA}
    series |= {name: _PEERS[number % len(_PEERS)] for number, name in enumerate(others)}
    rows = [
        {"rows": point.rows_per_group, "us": time_us, "series": name}
        for point in points
        for name, time_us in {"limit": point.limit_us, **point.times_us}.items()
    ]
    scale = alt.Scale(type="log", nice=False)
    drawn = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("rows:Q", title="rows of a group, on average", scale=scale),
        y=alt.Y("us:Q", title=f"{provenance} µs", scale=alt.Scale(type="log", nice=False)),
        color=alt.Color(
            "series:N", title=None, scale=alt.Scale(domain=list(series), range=list(series.values())), sort=None
        ),
    )
    limit = drawn.transform_filter("datum.series == 'limit'").mark_line(strokeDash=[5, 4])
    lines = drawn.transform_filter("datum.series != 'limit'").mark_line(point=alt.OverlayMarkDef(filled=True, size=45))
    return alt.layer(limit, lines).properties(title=title, width=520, height=340)
