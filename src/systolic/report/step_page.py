"""A predicted step as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence

from systolic.chips import with_clock_state
from systolic.report import slice_tables, step_tables, timeline_charts
from systolic.report.charts import KeyItem, Spec, color_scale, data, finished, tooltips
from systolic.report.headline import Figure, share_figure, time_parts
from systolic.report.html import Plot, render
from systolic.report.run_tables import ops_table
from systolic.report.written import percent
from systolic.steps import PASSES, Pass, StepRun
from systolic.steps.records import GIB

_TONES: dict[Pass, str] = {
    "forward": "read",
    "recompute": "overhead",
    "backward": "code",
    "update": "written",
    "all": "track",
}
_BAR_PX = 30


def step_page(label: str, run: StepRun, trials: Sequence[step_tables.Prediction] = ()) -> str:
    """Write the page of a step on one chip: parts, memory, communication, timeline; see `html.render`.

    `trials` are steps with one change each.
    """
    plots = _plots(run)
    slice_run = run.slice_run
    return render(
        "step.html.j2",
        plots.values(),
        command="systolic step",
        title=f"{label} · {with_clock_state(run.chip)}",
        label=label,
        chip=with_clock_state(run.chip),
        it=run,
        run=run.run,
        figures=_figures(run),
        time_parts=time_parts(run.run),
        passes=step_tables.passes_text(run),
        memory=step_tables.memory_text(run),
        plots=plots,
        tables={
            "parts": step_tables.parts_table(run),
            "changes": step_tables.changes_table(run),
            "trials": step_tables.trials_table(run, trials),
            "kinds": step_tables.kinds_table(run),
            "collectives": slice_tables.collectives_table(slice_run) if slice_run is not None else None,
            "links": slice_tables.links_table(slice_run) if slice_run is not None else None,
            "ops": ops_table(run.run),
        },
        way=slice_tables.way_text(slice_run) if slice_run is not None else "",
    )


def _figures(run: StepRun) -> tuple[Figure, ...]:
    result = [
        Figure(
            title=f"{run.run.provenance} time",
            value=f"{run.time_us / 1e3:,.2f}",
            unit=f"ms {run.error.words}",
            note=f"{run.run.cycles:,} cycles at {run.run.clock_hz / 1e9:.2f} GHz",
        )
    ]
    if run.tokens:
        rate = f"{run.tokens_per_s_per_device:,.0f}"
        note = f"{run.tokens:,} tokens on {run.devices} device{'s' * (run.devices > 1)}"
        result.append(Figure(title="tokens per second and device", value=rate, unit="", note=note))
    if run.flops:
        half = f"{percent(run.mfu_causal)} with half of causal attention" if run.flops_causal != run.flops else ""
        result.append(share_figure("MFU", run.mfu, half or f"of {run.peak_ops_per_s / 1e12:,.0f} Tflop/s a device"))
    memory = run.memory
    share = memory.needed_bytes / memory.capacity_bytes
    note = f"{memory.needed_bytes / GIB:,.2f} of {memory.capacity_bytes / GIB:,.2f} GiB"
    result.append(share_figure("HBM taken", share, note))
    if (slice_run := run.slice_run) is not None and slice_run.time_us:
        note = f"{slice_run.exposed_us / 1e3:,.2f} ms; {slice_run.hidden_us / 1e3:,.2f} ms more are hidden"
        result.append(share_figure("exposed communication", slice_run.exposed_us / slice_run.time_us, note))
    return tuple(result)


def _plots(run: StepRun) -> dict[str, Plot]:
    result = {
        "parts": Plot(
            name="parts",
            title="Time by part of the model and pass",
            words="One bar for each part, the longest first, cut into passes.",
            spec=parts_plot(run),
            key=tuple(
                KeyItem(tone=_TONES[step_pass], title=step_pass)
                for step_pass in PASSES
                if any(part.in_pass == step_pass for part in run.parts)
            ),
        )
    }
    timeline = timeline_charts.overview_plot(run.run, ())
    if timeline is not None:
        words = "Height is the busy share."
        result["overview"] = Plot(name="overview", title="The whole step", words=words, spec=timeline)
    slices = timeline_charts.slice_plot(run.slice_run) if run.slice_run is not None else None
    if slices is not None:
        result["slice"] = Plot(
            name="slice",
            title="Timeline of the slice: devices, collectives and links",
            words="A row for each class of devices, the slowest device's communication, and each link.",
            spec=slices,
            key=timeline_charts.SLICE_KEY,
            zooms=True,
        )
    return result


def parts_plot(run: StepRun) -> Spec:
    """Draw the time of each part, the longest first, cut into passes."""
    import altair as alt

    totals: dict[str, int] = {}
    for model_part in run.parts:
        totals[model_part.part] = totals.get(model_part.part, 0) + model_part.cycles
    order = sorted(totals, key=lambda part: -totals[part])
    rows = [
        {
            "part": part.part,
            "pass": part.in_pass,
            "order": PASSES.index(part.in_pass),
            "ms": run.us(part.cycles) / 1e3,
            "detail": f"{run.us(part.cycles) / 1e3:,.3f} ms",
            "limit": f"{part.limit} ({percent(part.limit_share)})",
        }
        for part in run.parts
    ]
    chart = (
        data(rows)
        .mark_bar(height={"band": 0.68}, cornerRadius=2, stroke="var(--paper)", strokeWidth=1)
        .encode(
            y=alt.Y("part:N", title=None, sort=order, axis=alt.Axis(domain=False, ticks=False, labelLimit=140)),
            x=alt.X("ms:Q", title="simulated time [ms]", axis=alt.Axis(tickCount=8)),
            order="order:Q",
            color=color_scale("pass", {step_pass: f"var(--{tone})" for step_pass, tone in _TONES.items()}),
            tooltip=[*tooltips(part="part", detail="takes", limit="limited by"), alt.Tooltip("pass:N", title="pass")],
        )
    )
    return finished(chart.properties(height=_BAR_PX * len(order)))
