"""The page's roofline, as a Vega-Lite specification: simulated rates below the chip's limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from systolic.explaining import Explanation, Program
from systolic.report.charts import KeyItem, Spec, color_scale, data, finished, tooltips
from systolic.report.explained_tables import rate_tflops

# In pixels: the plot's height, its width on a narrow screen, a line of its text, and a letter.
_HEIGHT, _NARROW, _LINE, _LETTER = 360, 300, 15, 8
_ROLES = {"this": "this kernel", "xla": "XLA", "other": "another function", "change": "a change of it"}


def roofline_key(explanation: Explanation) -> tuple[KeyItem, ...]:
    roof = explanation.roofline
    roles = [
        role for role in _ROLES if any(program.role == role and program.time_us for program in explanation.programs)
    ]
    links = KeyItem(tone="written", title="what the busiest link between chips allows each program", form="line")
    return (
        KeyItem(tone="roof", title=f"HBM as published, {roof.hbm_bytes_per_s / 1e9:,.0f} GB/s", form="line"),
        KeyItem(tone="roof", title=f"HBM as simulated, {roof.simulated_hbm_bytes_per_s / 1e9:,.0f} GB/s", form="dash"),
        *([links] if any(map(_link_us, explanation.programs)) else []),
        *(KeyItem(tone=role, title=_ROLES[role], form="dot") for role in roles),
    )


def roofline_chart(explanation: Explanation) -> Spec | None:
    """Draw rates over operations per HBM byte, below the roof; None where no program has both.

    On a slice, all is of one device, and a line above each program is the third ceiling, of the links: it depends on
    the bytes sent, and not on HBM traffic.
    """
    import altair as alt

    placed = [program for program in explanation.programs if rate_tflops(program) and program.hbm_bytes]
    if not placed:
        return None
    roof = explanation.roofline
    # The last is drawn on top: the function itself.
    placed.sort(key=lambda program: -list(_ROLES).index(program.role))
    points = [_point(program) for program in placed]
    ridge = roof.peak_flops_per_s / roof.hbm_bytes_per_s
    left = min(ridge, *(point["intensity"] for point in points)) / 2
    right = max(ridge, *(point["intensity"] for point in points)) * 2
    peak = roof.peak_flops_per_s / 1e12
    bottom = min(left * roof.simulated_hbm_bytes_per_s / 1e12, *(point["tflops"] for point in points)) / 1.6
    roofs = []
    for words, rate in (("published", roof.hbm_bytes_per_s), ("simulated", roof.simulated_hbm_bytes_per_s)):
        for x in (left, roof.peak_flops_per_s / rate, right):
            roofs.append({"intensity": x, "tflops": min(peak, x * rate / 1e12), "roof": words})
    x = alt.X(
        "intensity:Q",
        title="useful operations per HBM byte [flop/byte]",
        scale=alt.Scale(type="log", domain=[left, right], nice=False),
        axis=alt.Axis(format="~s", tickCount=6, labelSeparation=8),
    )
    y = alt.Y(
        "tflops:Q",
        title="simulated rate [Tflop/s]",
        scale=alt.Scale(type="log", domain=[bottom, peak * 1.5], nice=False),
        axis=alt.Axis(format="~g", tickCount=6),
    )
    lines = (
        data(roofs)
        .mark_line(strokeWidth=2.5, color="var(--roof)", strokeJoin="round")
        .encode(
            x=x,
            y=y,
            strokeDash=alt.StrokeDash(
                "roof:N", scale=alt.Scale(domain=["published", "simulated"], range=[[1, 0], [6, 4]]), legend=None
            ),
        )
    )
    label = (
        data([{"intensity": right, "tflops": peak, "text": f"{roof.dtype} peak {peak:,.0f}"}])
        .mark_text(align="right", baseline="bottom", dy=-5, fontWeight=600, color="var(--roof)")
        .encode(x=x, y=y, text="text:N")
    )
    color = color_scale("role", {title: f"var(--{role})" for role, title in _ROLES.items()})
    tooltip = [
        *tooltips(label="program"),
        alt.Tooltip("tflops:Q", title="Tflop/s", format=",.1f"),
        alt.Tooltip("intensity:Q", title="flop/byte", format=",.1f"),
        *tooltips(time="simulated"),
    ]
    dots = (
        data(points)
        .mark_point(filled=True, opacity=0.95, stroke="var(--paper)", strokeWidth=1.5)
        .encode(
            x=x,
            y=y,
            color=color,
            size=alt.condition("datum.role == 'this kernel'", alt.value(230), alt.value(110)),
            tooltip=tooltip,
        )
    )
    named = [
        data([point])
        .mark_text(
            align="right" if leftwards else "left", dx=-11 if leftwards else 11, dy=down, fontWeight=600, limit=260
        )
        .encode(x=x, y=y, text="label:N", color=color)
        for point, down, leftwards in _name_places(points, left=left, right=right, bottom=bottom, top=peak * 1.5)
    ]
    ceilings = [_link_ceiling(program) for program in placed if _link_us(program)]
    layers = lines + label
    if ceilings:
        layers += (
            data([row for row in ceilings if bottom <= row["tflops"] <= peak * 1.5])
            .mark_tick(orient="horizontal", thickness=3, size=44, color="var(--written)")
            .encode(
                x=x,
                y=y,
                tooltip=[
                    *tooltips(label="program"),
                    alt.Tooltip("tflops:Q", title="links allow Tflop/s", format=",.1f"),
                    *tooltips(time="busiest link busy"),
                ],
            )
        )
    return finished(alt.layer(layers, dots, *named).properties(height=_HEIGHT))


def _name_places(
    points: Sequence[dict[str, Any]], *, left: float, right: float, bottom: float, top: float
) -> list[tuple[dict[str, Any], int, bool]]:
    """Return the pixels by which each point's name moves down, and True if the name is to the left of the point.

    On a narrow screen no names overlap, and names of points in the right half do not leave the plot.
    """
    result: list[tuple[dict[str, Any], int, bool]] = []
    taken: list[tuple[float, float, float]] = []
    for point in (point for point in points if point["role"] != _ROLES["change"]):
        begin = _NARROW * math.log(point["intensity"] / left) / math.log(right / left)
        width = _LETTER * len(point["label"])
        leftwards = begin > _NARROW / 2 and begin + width > _NARROW
        begin -= width * leftwards
        end = begin + width
        y = _HEIGHT * math.log(top / point["tflops"]) / math.log(top / bottom)
        down = 0
        while any(begin < other_end and other < end and abs(y + down - at) < _LINE for other, other_end, at in taken):
            down += _LINE
        taken.append((begin, end, y + down))
        result.append((point, down, leftwards))
    return result


def _link_us(program: Program) -> float:
    return program.communication.link_us if program.communication is not None else 0.0


def _link_ceiling(program: Program) -> dict[str, Any]:
    return {
        "label": program.label,
        "intensity": program.flops / program.hbm_bytes,
        "tflops": program.flops / _link_us(program) / 1e6,
        "time": f"{_link_us(program):,.2f} µs",
    }


def _point(program: Program) -> dict[str, Any]:
    return {
        "label": program.label,
        "role": _ROLES[program.role],
        "intensity": program.flops / program.hbm_bytes,
        "tflops": rate_tflops(program),
        "time": f"{program.time_us:,.2f} µs",
    }
