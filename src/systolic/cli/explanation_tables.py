"""Print an explanation in the terminal: the verdict, where the time goes, and what would change it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from systolic.chips import flags_text, with_clock_state
from systolic.cli.slice_tables import show_slice_tables
from systolic.cli.tables import show_section
from systolic.explaining import Explanation
from systolic.report.ceilings import ceilings_table
from systolic.report.explained_tables import (
    HOW_SHARED,
    line_times_table,
    lines_table,
    programs_table,
    regions_table,
    savings_table,
    traffic_table,
    vmem_table,
)
from systolic.report.headline import figures, time_parts
from systolic.report.run_tables import idle_units, ops_table, units_table
from systolic.report.slice_tables import way_text
from systolic.report.timeline import TITLES, busy_lanes
from systolic.report.written import percent, round_mib

_PIECES = 72
_LEVELS = " ▁▂▃▄▅▆▇█"
_NOT_KEPT = "·"
_SHOWN_PROGRAMS = 6  # rows, without details
_SHOWN_LINES = 4


def show_explanation(out: Console, explanation: Explanation, *, details: bool) -> None:
    """Print the verdict, the figures, the findings, the timeline and lines; with `details` all tables."""
    _heading(out, explanation)
    show_section(out, "findings", savings_table(explanation), "nothing was found that would save time")
    programs = programs_table(explanation)
    show_section(out, "programs", programs if details else programs.shortened(_SHOWN_PROGRAMS))
    if (slice_run := explanation.slice_run) is not None:
        show_section(out, "limits of one device", ceilings_table(explanation))
        out.print(f"\n{way_text(slice_run)}", markup=False)
        show_slice_tables(out, slice_run)
    _timeline(out, explanation)
    title = f"time by line of the source: {HOW_SHARED}"
    lines = line_times_table(explanation)
    show_section(out, title, lines if details or lines is None else lines.shortened(_SHOWN_LINES))
    if details:
        _details(out, explanation)
    if explanation.notes or explanation.run.assumptions:
        out.print("")
    for text in explanation.notes:
        out.print(f"note: {escape(text)}")
    for text in explanation.run.assumptions:
        out.print(f"assumed: {escape(text)}")
    if not details:
        out.print("\nVMEM, units, straight code, traffic of each operand, operations: --details, or a page by --out")


def _heading(out: Console, explanation: Explanation) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in explanation.versions.items() if version)
    slice_run = explanation.slice_run
    name = with_clock_state(explanation.chip) + (
        f" {slice_run.topology}, {slice_run.devices} devices" if slice_run else ""
    )
    chip = f"[bold]{name}[/] {escape(explanation.chip_title)}"
    flags = f" · compiled with {escape(flags_text(explanation.flags))}" if explanation.flags else ""
    out.print(f"{chip}{flags} · {escape(versions)}")
    arguments = ", ".join(explanation.arguments) or "none"
    out.print(f"{escape(explanation.function)}, arguments: {escape(arguments)}")
    out.print("times are simulated: compiled by the real compiler, executed on the chip's model\n")
    out.print(f"[bold]{escape(explanation.verdict)}[/]\n")
    out.print(
        "; ".join(
            f"{' '.join(filter(None, (figure.title, figure.value, figure.unit)))} ({escape(figure.note)})"
            for figure in figures(explanation)
        )
    )
    out.print("time: " + ", ".join(f"{part.title} {percent(part.share)}" for part in time_parts(explanation.run)))


def _details(out: Console, explanation: Explanation) -> None:
    run = explanation.run
    if explanation.vmem is not None:
        limit, capacity = round_mib(explanation.vmem.limit_bytes), round_mib(explanation.vmem.capacity_bytes)
        show_section(out, f"VMEM, limit {limit} MiB, capacity {capacity} MiB", vmem_table(explanation))
    show_section(out, f"units; the program has {run.bundles:,} bundles", units_table(run))
    if idle := idle_units(run):
        out.print(idle)
    show_section(out, "straight code, over all its executions", regions_table(explanation))
    show_section(out, "lines of the source, in one execution (modelled)", lines_table(explanation))
    show_section(out, "HBM traffic of each operand", traffic_table(explanation))
    for program in explanation.programs:
        if (device_run := program.device_run) is not None:
            show_section(out, f"operations of {program.label}", ops_table(device_run))


def _timeline(out: Console, explanation: Explanation) -> None:
    """Print the whole run and each window: words, and a line of blocks for each lane, as high as it is busy."""
    run = explanation.run
    if not run.later_core.spans:
        return
    left_out = run.later_core.spans_left_out
    gap = f"; {_NOT_KEPT} not recorded, {left_out:,} spans in the middle" if left_out else ""
    _stretch(out, explanation, "the whole run", 0.0, run.time_us, f"height shows how busy{gap}")
    for window in explanation.windows:
        _stretch(out, explanation, window.title, window.begin_us, window.end_us, window.words)


def _stretch(out: Console, explanation: Explanation, title: str, begin_us: float, end_us: float, words: str) -> None:
    out.print(f"\n[bold]{escape(title)}[/], {begin_us:,.2f} to {end_us:,.2f} µs: {escape(words)}")
    pieces = max(20, min(_PIECES, out.width - 20))
    for lane in busy_lanes(explanation.run, begin_us, end_us, pieces):
        bar = "".join(_NOT_KEPT if share is None else _block(share) for share in lane.shares)
        if bar.strip():
            out.print(f"{TITLES[lane.activity]:>14} ▕{bar}▏", markup=False)


def _block(share: float) -> str:
    # A small share must not look like none.
    level = round(share * (len(_LEVELS) - 1))
    return _LEVELS[max(level, 1 if share > 0.01 else 0)]
