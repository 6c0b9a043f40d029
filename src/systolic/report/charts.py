"""The page's plots of an explanation, as Vega-Lite specifications.

Colors are the page's own CSS variables, which an SVG understands: the same plot serves light and dark, and paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from systolic.explaining import OperandTraffic, VmemMap
from systolic.report.explained_tables import times_least
from systolic.report.run_tables import UNITS
from systolic.report.written import percent
from systolic.schedule import MIB
from systolic.simulator import SimulatedRun

Spec = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyItem:
    """A color and its meaning. The page writes keys as text, which wraps; Vega's keys do not wrap."""

    tone: str  # a CSS variable of the page
    title: str
    form: Literal["box", "dot", "line", "dash"] = "box"


_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_AXIS = {
    "labelColor": "var(--ink-soft)",
    "titleColor": "var(--ink-soft)",
    "gridColor": "var(--grid)",
    "domainColor": "var(--line)",
    "tickColor": "var(--line)",
    "labelFontSize": 12,
    "titleFontSize": 12,
    "titleFontWeight": 500,
    "titlePadding": 8,
    "labelPadding": 6,
}
CONFIG: Spec = {
    "background": None,
    "font": _FONT,
    "view": {"stroke": None},
    "axis": _AXIS,
    "text": {"fill": "var(--ink)", "fontSize": 12},
}
_KINDS = {"window": "read", "scratch": "code", "temporary": "xla", "spill": "wait"}


def vmem_key(vmem_map: VmemMap) -> tuple[KeyItem, ...]:
    kinds = [kind for kind in _KINDS if any(part.kind == kind for part in vmem_map.parts)]
    return tuple(KeyItem(tone=_KINDS[kind], title=kind) for kind in kinds)


def finished(chart: Any) -> Spec:
    """Turn a chart into a specification in the page's style, as wide as the page allows."""
    spec = chart.properties(width="container").to_dict()
    spec["config"] = CONFIG
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def data(rows: Sequence[Mapping[str, Any]]) -> Any:
    import altair as alt

    return alt.Chart(alt.Data(values=list(rows)))


def tooltips(**titles: str) -> list[Any]:
    """Make tooltips of text, from titles by field."""
    import altair as alt

    return [alt.Tooltip(f"{name}:N", title=title) for name, title in titles.items()]


def color_scale(field: str, by_value: Mapping[str, str]) -> Any:
    """Make a color scale without a legend: CSS colors by the values of a field."""
    import altair as alt

    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(by_value), range=list(by_value.values())), legend=None)


def vmem(vmem_map: VmemMap) -> Spec | None:
    """Draw each operation's buffers end to end, against the limit and, if it is near, the capacity."""
    import altair as alt

    if not vmem_map.parts:
        return None
    bars, ends = [], {}
    for part in sorted(vmem_map.parts, key=lambda part: (list(_KINDS).index(part.kind), -part.size_bytes)):
        begin = ends.get(part.op, 0)
        ends[part.op] = begin + part.size_bytes
        bars.append(
            {
                "op": part.op,
                "begin": begin / MIB,
                "end": ends[part.op] / MIB,
                "kind": part.kind,
                "name": part.name,
                "detail": f"{part.size_bytes / MIB:.2f} MiB" + (f" in {part.copies} copies" * (part.copies > 1)),
            }
        )
    marks = [{"at": vmem_map.limit_bytes / MIB, "text": f"limit {vmem_map.limit_bytes / MIB:,.0f} MiB"}]
    longest = max(*ends.values(), vmem_map.limit_bytes)
    # Next to a capacity that is many times the limit, the bars would be slivers; the text states it instead.
    if vmem_map.capacity_bytes <= 2 * longest:
        marks.append(
            {"at": vmem_map.capacity_bytes / MIB, "text": f"capacity {vmem_map.capacity_bytes / MIB:,.0f} MiB"}
        )
    right = max(longest / MIB, *(mark["at"] for mark in marks)) * 1.02
    scale = alt.Scale(domain=[0, right], nice=False)
    kinds = {kind: f"var(--{tone})" for kind, tone in _KINDS.items() if any(bar["kind"] == kind for bar in bars)}
    ops = alt.Y("op:N", title=None, axis=alt.Axis(labelLimit=110, domain=False, ticks=False))
    base = data(bars)
    boxes = base.mark_bar(height={"band": 0.7}, stroke="var(--paper)", strokeWidth=1.5, cornerRadius=3).encode(
        x=alt.X("begin:Q", title="VMEM [MiB]", scale=scale, axis=alt.Axis(tickCount=8)),
        x2="end:Q",
        y=ops,
        color=color_scale("kind", kinds),
        tooltip=tooltips(name="buffer", kind="kind", detail="takes"),
    )
    wide = "scale('x', datum.end) - scale('x', datum.begin) > 7.2 * length(datum.name) + 10"
    names = (
        base.transform_calculate(middle="(datum.begin + datum.end) / 2")
        .mark_text(color="var(--on-bar)", fontWeight=600)
        .encode(x="middle:Q", y=ops, text="name:N", opacity=alt.condition(wide, alt.value(1), alt.value(0)))
    )
    rules = data(marks).mark_rule(color="var(--wait)", strokeWidth=2, strokeDash=[5, 3])
    words = data(marks).mark_text(align="right", dx=-5, baseline="bottom", dy=-2, fontWeight=600)
    layers = (
        boxes
        + names
        + rules.encode(x="at:Q")
        + words.encode(x="at:Q", y=alt.value(0), text="text:N", color=alt.value("var(--wait-ink)"))
    )
    return finished(layers.properties(height=46 * len(ends) + 18))


def units(run: SimulatedRun) -> Spec:
    """Draw the busy share of every unit."""
    import altair as alt

    bars = [
        {"unit": unit, "busy": share, "text": percent(share), "does": UNITS.get(unit, "")}
        for unit, share in sorted(run.busy.items(), key=lambda item: -item[1])
    ]
    base = data(bars).encode(y=alt.Y("unit:N", title=None, sort=None, axis=alt.Axis(domain=False, ticks=False)))
    x = alt.X(
        "busy:Q",
        title="busy share of the time, or of issue slots [%]",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(labelExpr="round(datum.value * 100)", tickCount=5),
    )
    rest = base.mark_bar(color="var(--track)", cornerRadius=3, height={"band": 0.62}).encode(
        x=alt.datum(0), x2=alt.datum(1)
    )
    share = base.mark_bar(cornerRadius=3, height={"band": 0.62}).encode(
        x=x,
        color=alt.condition(
            "datum.unit == 'mxu' || datum.unit == 'dma'", alt.value("var(--matrix)"), alt.value("var(--code)")
        ),
        tooltip=tooltips(unit="unit", does="does", text="busy"),
    )
    words = base.mark_text(align="left", dx=5).encode(x=x, text="text:N")
    return finished((rest + share + words).properties(height=27 * len(bars)))


def traffic(operands: tuple[OperandTraffic, ...]) -> Spec | None:
    """Draw each operand's traffic relative to the least possible."""
    import altair as alt

    bars = [
        {
            "operand": operand.operand,
            "row": row,
            "moved": operand.moved_bytes / 1e6,
            "least": operand.least_bytes / 1e6,
            "text": times_least(operand),
            "kernel": operand.kernel,
        }
        for row, operand in zip(_rows(operands), operands, strict=True)
        if operand.moved_bytes is not None
    ]
    if not bars:
        return None
    base = data(bars).encode(
        y=alt.Y("row:N", title=None, sort=None, axis=alt.Axis(domain=False, ticks=False, labelLimit=120)),
        tooltip=[
            *tooltips(kernel="kernel", operand="operand"),
            alt.Tooltip("moved:Q", title="MB moved", format=",.2f"),
            alt.Tooltip("least:Q", title="MB at least", format=",.2f"),
        ],
    )
    right = max(max(bar["moved"], bar["least"]) for bar in bars) * 1.12 or 1
    scale = alt.Scale(domain=[0, right], nice=False)
    x = alt.X("moved:Q", title="HBM traffic [MB]", scale=scale, axis=alt.Axis(tickCount=6))
    moved = base.mark_bar(cornerRadius=3, color="var(--read)", opacity=0.45, height={"band": 0.68}).encode(x=x)
    least = base.mark_bar(cornerRadius=2, color="var(--read)", height={"band": 0.3}).encode(x="least:Q")
    words = base.mark_text(align="left", dx=6, fontWeight=600).encode(x=x, text="text:N")
    return finished((moved + least + words).properties(height=42 * len(bars)))


def _rows(operands: tuple[OperandTraffic, ...]) -> list[str]:
    """Give each operand a unique name."""
    several = len({operand.kernel for operand in operands}) > 1
    names: list[str] = []
    for operand in operands:
        name = f"{operand.kernel} {operand.operand}" if several else operand.operand
        names.append(name if name not in names else f"{name} ({len(names) + 1})")
    return names
