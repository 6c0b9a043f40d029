"""The page's roofline, as a Vega-Lite specification: simulated rates below what the chip allows."""

from __future__ import annotations

from typing import Any

from systolic.explaining import Explanation, Program
from systolic.report.charts import KeyItem, Spec, colours, data, finished, tooltips
from systolic.report.explained_tables import rate_tflops

_ROLES = {"this": "this kernel", "xla": "XLA", "other": "another function", "change": "a change of it"}


def roofline_key(explanation: Explanation) -> tuple[KeyItem, ...]:
    """Says what the marks of `roofline_chart` mean."""
    roof = explanation.roofline
    roles = [role for role in _ROLES if any(found.role == role and found.time_us for found in explanation.programs)]
    return (
        KeyItem(tone="roof", title=f"HBM as published, {roof.hbm_bytes_per_s / 1e9:,.0f} GB/s", form="line"),
        KeyItem(tone="roof", title=f"HBM as simulated, {roof.simulated_hbm_bytes_per_s / 1e9:,.0f} GB/s", form="dash"),
        *(KeyItem(tone=role, title=_ROLES[role], form="dot") for role in roles),
    )


def roofline_chart(explanation: Explanation) -> Spec | None:
    """Draws rates over operations per HBM byte, below the roof; None where no program has both."""
    import altair as alt

    placed = [found for found in explanation.programs if rate_tflops(found) and found.hbm_bytes]
    if not placed:
        return None
    roof = explanation.roofline
    # The last is drawn on top: the function itself.
    placed.sort(key=lambda found: -list(_ROLES).index(found.role))
    points = [_point(found) for found in placed]
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
    colour = colours("role", {title: f"var(--{role})" for role, title in _ROLES.items()})
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
            color=colour,
            size=alt.condition("datum.role == 'this kernel'", alt.value(230), alt.value(110)),
            tooltip=tooltip,
        )
    )
    named = (
        data(points)
        .transform_filter("datum.role != 'a change of it'")
        .mark_text(align="left", dx=11, fontWeight=600, limit=260)
        .encode(x=x, y=y, text="label:N", color=colour)
    )
    return finished((lines + label + dots + named).properties(height=360))


def _point(found: Program) -> dict[str, Any]:
    return {
        "label": found.label,
        "role": _ROLES[found.role],
        "intensity": found.flops / found.hbm_bytes,
        "tflops": rate_tflops(found),
        "time": f"{found.time_us:,.2f} µs",
    }
