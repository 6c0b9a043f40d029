"""The page's plots of a timeline, as Vega-Lite specifications: the whole run, and stretches of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from systolic.explaining import Window
from systolic.report.charts import KeyItem, Spec, color_scale, data, finished, tooltips
from systolic.report.slice_timeline import slice_view
from systolic.report.timeline import TITLES, Activity, BusyLane, View, busy_lanes
from systolic.simulator import SimulatedRun, SliceRun

_PIECES = 320  # of the whole run: a piece is a few pixels wide
_STEP_PX = 28  # height of a lane
ZOOM = "zoom"  # the selection's name, by which the page's buttons reach it
COLOURS: dict[Activity, str] = {
    "op": "var(--track)",
    "round": "var(--track)",
    "read": "var(--read)",
    "written": "var(--written)",
    "moved": "var(--moved)",
    "matrix": "var(--matrix)",
    "code": "var(--code)",
    "wait": "var(--wait)",
    "collective": "var(--this)",
    "link": "var(--read)",
}
# The meanings of colors of a slice's timeline.
SLICE_KEY = (
    KeyItem(tone="matrix", title="matrix units busy"),
    KeyItem(tone="code", title="other code"),
    KeyItem(tone="wait", title="waiting"),
    KeyItem(tone="this", title="collectives"),
    KeyItem(tone="read", title="bytes crossing a link"),
)


def window_plot(timeline: View, begin_us: float, end_us: float) -> Spec:
    """Draw one stretch of the timeline, to be moved by dragging and zoomed by Ctrl and the wheel."""
    import altair as alt

    rows = [
        {
            "lane": bar.lane,
            "activity": bar.activity,
            "begin": round(bar.begin_us, 5),
            "end": round(bar.end_us, 5),
            "what": bar.what,
            "detail": bar.detail,
        }
        for bar in timeline.bars
    ]
    # Vega's default takes every wheel event, and a page full of plots could not be scrolled.
    zoom = alt.selection_interval(
        name=ZOOM,
        bind="scales",
        encodings=["x"],
        zoom="wheel![event.ctrlKey || event.metaKey]",
    )
    base = data(rows).encode(
        y=alt.Y(
            "lane:N", title=None, sort=list(timeline.lanes), axis=alt.Axis(domain=False, ticks=False, labelLimit=110)
        )
    )
    kinds = {kind: COLOURS[kind] for kind in TITLES if any(bar.activity == kind for bar in timeline.bars)}
    bars = (
        base.mark_bar(clip=True, height={"band": 0.78}, cornerRadius=2, stroke="var(--paper)", strokeWidth=0.75)
        .encode(
            x=alt.X(
                "begin:Q",
                title="time from the program's start [µs]",
                scale=alt.Scale(domain=[begin_us, end_us], nice=False, zero=False),
                axis=alt.Axis(tickCount=8),
            ),
            x2="end:Q",
            color=color_scale("activity", kinds),
            tooltip=alt.Tooltip("detail:N"),
        )
        .add_params(zoom)
    )
    # In the middle of the visible part of a bar, and only where it fits.
    left, right = "max(scale('x', datum.begin), 0)", "min(scale('x', datum.end), width)"
    room = f"{right} - {left} > 7 * length(datum.what) + 6"
    words = base.mark_text(clip=True, fontSize=11, fontWeight=600, x=alt.expr(f"({left} + {right}) / 2")).encode(
        text="what:N",
        color=alt.condition(
            "datum.activity == 'op' || datum.activity == 'round'", alt.value("var(--ink)"), alt.value("var(--on-bar)")
        ),
        opacity=alt.condition(room, alt.value(1), alt.value(0)),
        tooltip=alt.Tooltip("detail:N"),
    )
    return finished((bars + words).properties(height=_STEP_PX * len(timeline.lanes)))


def slice_plot(run: SliceRun) -> Spec | None:
    """Draw devices, collectives and links of a slice; None without a timeline."""
    bars = slice_view(run, 0.0, run.time_us)
    return window_plot(bars, 0.0, run.time_us) if bars.bars else None


def overview_plot(run: SimulatedRun, windows: Sequence[Window]) -> Spec | None:
    """Draw how busy each lane is over the whole run, with the windows numbered; None without a timeline."""
    import altair as alt

    lanes = busy_lanes(run, 0, run.time_us, _PIECES)
    if not lanes:
        return None
    rows = [row for at, lane in enumerate(lanes) for row in _pieces(lane, at, run.time_us)]
    titles = " : ".join(f"datum.value == {at + 0.4} ? '{TITLES[lane.activity]}'" for at, lane in enumerate(lanes))
    top = -0.8 if windows else -0.15
    y = alt.Y(
        "base:Q",
        title=None,
        scale=alt.Scale(domain=[top, len(lanes)], reverse=True, nice=False, zero=False),
        axis=alt.Axis(
            values=[at + 0.4 for at in range(len(lanes))],
            labelExpr=f"{titles} : ''",
            grid=False,
            domain=False,
            ticks=False,
            labelLimit=110,
        ),
    )
    x = alt.X(
        "begin:Q",
        title="time from the program's start [µs]",
        scale=alt.Scale(domain=[0, run.time_us], nice=False),
        axis=alt.Axis(tickCount=8),
    )
    kinds = {lane.activity: COLOURS[lane.activity] for lane in lanes}
    tracks = [{"base": at + 0.82, "top": at, "begin": 0, "end": run.time_us} for at in range(len(lanes))]
    track = data(tracks).mark_rect(color="var(--track)", opacity=0.45)
    busy = data([row for row in rows if row["share"] is not None]).mark_rect()
    gone = data([row for row in rows if row["share"] is None]).mark_rect(color="var(--line)")
    layers = track.encode(x=x, x2="end:Q", y=y, y2="top:Q")
    if windows:
        layers += _marks(windows, x)
    layers += busy.encode(
        x=x,
        x2="end:Q",
        y=y,
        y2="top:Q",
        color=color_scale("activity", kinds),
        tooltip=[
            *tooltips(title="lane"),
            alt.Tooltip("begin:Q", title="from µs", format=",.2f"),
            alt.Tooltip("share:Q", title="busy", format=".0%"),
        ],
    )
    layers += gone.encode(x=x, x2="end:Q", y=y, y2="top:Q", tooltip=alt.Tooltip("note:N"))
    return finished(layers.properties(height=30 * len(lanes) + 26))


def _pieces(lane: BusyLane, at: int, time_us: float) -> list[dict[str, Any]]:
    """Make rectangles from a lane's ground upwards; neighbors of one height are one."""
    rows: list[dict[str, Any]] = []
    width = time_us / max(1, len(lane.shares))
    for piece, exact in enumerate(lane.shares):
        share = None if exact is None else round(exact, 2)
        if rows and rows[-1]["share"] == share:
            rows[-1]["end"] = round((piece + 1) * width, 4)
            continue
        rows.append(
            {
                "activity": lane.activity,
                "title": TITLES[lane.activity],
                "begin": round(piece * width, 4),
                "end": round((piece + 1) * width, 4),
                "share": share,
                "base": at + 0.82,
                "top": round(at + 0.82 - 0.82 * (1 if share is None else share), 3),
                "note": "not kept: the middle of a long timeline is left out",
            }
        )
    return [row for row in rows if row["share"] != 0]


def _marks(windows: Sequence[Window], x: Any) -> Any:
    import altair as alt

    marks = data(
        [
            {"begin": window.begin_us, "end": window.end_us, "number": str(at + 1), "title": window.title}
            for at, window in enumerate(windows)
        ]
    )
    bands = marks.mark_rect(color="var(--this)", opacity=0.13, stroke="var(--this)", strokeWidth=1)
    numbers = marks.transform_calculate(middle="(datum.begin + datum.end) / 2").mark_text(
        color="var(--this)", fontWeight=700, fontSize=13, baseline="top", dy=3
    )
    tooltip, top = tooltips(title="window"), alt.value(0)
    bands = bands.encode(x=x, x2="end:Q", y=top, y2=alt.value("height"), tooltip=tooltip)
    return bands + numbers.encode(x="middle:Q", y=top, text="number:N", tooltip=tooltip)
