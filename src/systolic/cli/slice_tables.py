"""Tables of one run on a slice: the time, the communication, and the slowest device."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from systolic.chips import flags_text
from systolic.cli.simulated_tables import show_parts
from systolic.cli.tables import show_section
from systolic.report.slice_tables import (
    collectives_table,
    devices_table,
    devices_text,
    link_axes_table,
    link_name,
    links_table,
    way_text,
)
from systolic.report.time_errors import time_text
from systolic.report.written import percent, us
from systolic.simulator import SliceRun


def show_slice(out: Console, title: str, run: SliceRun) -> None:
    """Print a verdict, tables of collectives, links and devices, and the slowest device's tables."""
    time = escape(time_text(run.time_us, run.error))
    name = f"[bold]{run.chip} {run.topology}[/] {escape(title)}"
    out.print(f"{name}: [bold]{run.provenance} {time}[/]{escape(communication_text(run))}")
    out.print(way_text(run), markup=False)
    if run.flags:
        out.print(f"compiled with {flags_text(run.flags)}", markup=False, soft_wrap=True)
    show_slice_tables(out, run)
    slowest = run.slowest_class
    named = "any device" if len(run.classes) == 1 else f"the slowest of {len(run.classes)} classes of devices"
    out.print(f"\n[bold]{named}[/] ({devices_text(slowest.devices)})")
    show_parts(out, slowest.run)


def show_slice_tables(out: Console, run: SliceRun) -> None:
    """Print the tables of collectives, links and devices."""
    show_section(out, "communication of the slowest device", collectives_table(run))
    show_section(out, "links between chips, by direction", link_axes_table(run))
    show_section(out, "the busiest links", links_table(run))
    if len(run.classes) > 1:
        show_section(out, "devices that behave alike", devices_table(run))


def communication_text(run: SliceRun) -> str:
    """Return the number of devices, their skew, the share of time in communication, and the first call's time."""
    parts = [f", {run.devices} devices"]
    if run.skew_us:
        parts.append(f"the fastest ends {us(run.skew_us)} µs before the slowest")
    if run.collectives:
        share = run.exposed_us / run.time_us if run.time_us else 0.0
        parts.append(f"exposed communication {us(run.exposed_us)} µs ({percent(share)}), hidden {us(run.hidden_us)} µs")
    busiest = max(run.links, key=lambda link: link.busy_cycles, default=None)
    if busiest is not None and busiest.sent_bytes:
        share = busiest.busy_cycles / max(1, run.cycles)
        parts.append(f"busiest link {link_name(busiest)} ({busiest.axis}) busy {percent(share)}")
    if run.prefetch_us:
        parts.append(f"a first call takes {us(run.prefetch_us)} µs longer (prefetch of an argument)")
    return "; ".join(parts)
