"""Write an explanation as one HTML file that contains everything that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from systolic.chips import with_clock_state
from systolic.explaining import Explanation
from systolic.report import charts, explained_tables, run_tables, slice_tables, timeline_charts
from systolic.report.ceilings import ceilings, ceilings_table
from systolic.report.headline import figures, time_parts
from systolic.report.html import Plot, render
from systolic.report.roofline_chart import roofline_chart, roofline_key
from systolic.report.timeline import view
from systolic.simulator import SliceRun


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPart:
    """A window of the timeline with its plot, or without a plot if none of its spans was recorded."""

    title: str
    span: str
    words: str
    plot: Plot | None
    left_out: int


def explanation_page(explanation: Explanation) -> str:
    """Write the page of an explanation; see `html.render`."""
    windows = _windows(explanation)
    plots = _plots(explanation)
    return render(
        "page.html.j2",
        [*plots.values(), *(window.plot for window in windows if window.plot is not None)],
        command="systolic explain",
        title=f"{explanation.function} · {with_clock_state(explanation.chip)}",
        it=explanation,
        chip=with_clock_state(explanation.chip),
        run=explanation.run,
        slice=explanation.slice_run,
        way=slice_tables.way_text(explanation.slice_run) if explanation.slice_run is not None else "",
        figures=figures(explanation),
        time_parts=time_parts(explanation.run),
        plots=plots,
        windows=windows,
        tables=_tables(explanation),
        roof=_roof_words(explanation),
        how_shared=explained_tables.HOW_SHARED,
    )


def _plots(explanation: Explanation) -> dict[str, Plot]:
    """Draw the plots, by name, without empty ones."""
    run = explanation.run
    result = {
        "roofline": (
            roofline_chart(explanation),
            "The roofline: rate over operations per HBM byte",
            "A point below the roof's slope waits for HBM at best; one below its flat part could use more of the "
            "matrix units.",
        ),
        "overview": (
            timeline_charts.overview_plot(run, explanation.windows),
            "The whole run: how busy each lane is",
            "Height is the busy share. The numbered bands are the stretches that follow.",
        ),
        "vmem": (
            charts.vmem(explanation.vmem) if explanation.vmem is not None else None,
            "VMEM of each operation",
            "Buffers end to end, against the limit.",
        ),
        "units": (charts.units(run), "Busy share of each unit", "Of issue slots; of mxu and dma, of the time."),
        "traffic": (
            charts.traffic(explanation.traffic),
            "HBM traffic by operand",
            "Pale: all moved bytes. Dark: every byte once, which is the minimum.",
        ),
    }
    if explanation.slice_run is not None:
        result["slice"] = (
            timeline_charts.slice_plot(explanation.slice_run),
            "Timeline of the slice: devices, collectives and links",
            "A row for each class of devices, the slowest device's communication, and each link in one direction.",
        )
    keys = {"roofline": roofline_key(explanation), "slice": timeline_charts.SLICE_KEY}
    if explanation.vmem is not None:
        keys["vmem"] = charts.vmem_key(explanation.vmem)
    return {
        name: Plot(name=name, title=title, words=words, spec=spec, key=keys.get(name, ()), zooms=name == "slice")
        for name, (spec, title, words) in result.items()
        if spec is not None
    }


def _windows(explanation: Explanation) -> list[WindowPart]:
    parts = []
    for at, window in enumerate(explanation.windows):
        bars = view(explanation.run, window.begin_us, window.end_us)
        plot = Plot(
            name=f"window-{at + 1}",
            title=f"Timeline, {window.title}",
            words=window.words,
            spec=timeline_charts.window_plot(bars, window.begin_us, window.end_us),
            zooms=True,
        )
        parts.append(
            WindowPart(
                title=window.title,
                span=f"{window.begin_us:,.2f} to {window.end_us:,.2f} µs",
                words=window.words,
                plot=plot if bars.bars and window.end_us > window.begin_us else None,
                left_out=bars.left_out,
            )
        )
    return parts


def _tables(explanation: Explanation) -> dict[str, Any]:
    tables, slice_run = explained_tables, explanation.slice_run
    return {
        **(_slice_tables(slice_run) if slice_run is not None else {}),
        "ceilings": ceilings_table(explanation) if slice_run is not None else None,
        "programs": tables.programs_table(explanation),
        "vmem": tables.vmem_table(explanation),
        "units": run_tables.units_table(explanation.run),
        "regions": tables.regions_table(explanation),
        "line_times": tables.line_times_table(explanation),
        "lines": tables.lines_table(explanation),
        "traffic": tables.traffic_table(explanation),
        "savings": tables.savings_table(explanation),
        "ops": [
            (program, run_tables.ops_table(run))
            for program in explanation.programs
            if (run := program.device_run) is not None
        ],
    }


def _slice_tables(run: SliceRun) -> dict[str, Any]:
    return {
        "collectives": slice_tables.collectives_table(run),
        "axes": slice_tables.link_axes_table(run),
        "links": slice_tables.links_table(run),
        "devices": slice_tables.devices_table(run),
    }


def _roof_words(explanation: Explanation) -> str:
    """Say how far the function is below the roof, if that is known."""
    mine, roof = explanation.programs[0], explanation.roofline
    rate = explained_tables.rate_tflops(mine)
    if rate is None or not mine.hbm_bytes:
        return ""
    limits = {ceiling.name: mine.flops / ceiling.least_us * 1e6 for ceiling in ceilings(explanation, mine)}
    closest = min(limits, key=lambda name: limits[name])
    limit = limits[closest]
    words = {"HBM": "HBM, as simulated", "matrix units": f"the {roof.dtype} peak"}
    return (
        f"With {mine.flops / mine.hbm_bytes:,.0f} useful operations per HBM byte, the limit is "
        f"{words.get(closest, 'the busiest link between chips')}: {limit / 1e12:,.0f} Tflop/s. "
        f"It reaches {rate:,.0f}, {rate * 1e12 / limit:.0%} of that."
    )
