"""The key figures of a page, and where the time goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.explaining import Explanation
from systolic.report.explained_tables import program, rate_tflops
from systolic.report.written import mib, percent, round_mib, us
from systolic.simulator import SimulatedRun

Tone = Literal["matrix", "read", "overhead", "wait", "moved", "track"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure with its unit and its baseline."""

    title: str
    value: str
    unit: str
    note: str
    share: float | None = None  # drawn as a bar


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePart:
    """A share of the core's time."""

    title: str
    share: float
    tone: Tone


def figures(explanation: Explanation) -> tuple[Figure, ...]:
    """Return time, rate, speed relative to XLA, and the used share of each limit."""
    run = explanation.run
    error = (explanation.slice_run or run).error
    result = [
        Figure(
            title=f"{explanation.run.provenance} time",
            value=us(run.time_us),
            unit="µs" if error.percent is None else f"µs {error.words}",
            note=f"{run.cycles:,} cycles at {run.clock_hz / 1e9:.2f} GHz"
            + (f"; a first call {us(run.prefetch_us)} µs longer" if run.prefetch_cycles else ""),
        )
    ]
    rate = rate_tflops(explanation.programs[0])
    peak = explanation.roofline.peak_flops_per_s / 1e12
    if rate is not None and peak:
        note = f"{percent(rate / peak)} of the {explanation.roofline.dtype} peak of {peak:,.0f}"
        result.append(Figure(title="rate", value=f"{rate:,.1f}", unit="Tflop/s", note=note, share=rate / peak))
    xla = program(explanation, "xla")
    if xla is not None and xla.time_us:
        speed = xla.time_us / run.time_us
        note = f"{xla.label} takes {us(xla.time_us)} µs"
        result.append(Figure(title="speed relative to XLA", value=f"{speed:.2f}", unit="×", note=note))
    result += [
        share_figure(
            "matrix units busy",
            run.matrix_busy_share,
            f"{run.matrix_units} a core" + (f", of all {len(run.cores)} cores" if len(run.cores) > 1 else ""),
        ),
        share_figure("HBM busy", run.copy_busy_share, f"{run.hbm_bytes / 1e6:,.1f} MB moved"),
        share_figure("waiting", run.stall_share, "of the core's time"),
    ]
    if explanation.steps > 1:
        of_pallas = sum(op.cycles for op in run.later_core.ops if op.is_pallas) / run.clock_hz * 1e6
        overhead = run.stalls.get("overhead", 0.0) * run.time_us
        note = f"{us(of_pallas / explanation.steps)} µs each"
        if overhead >= 0.0005 * run.time_us:
            note += f", {us(overhead / explanation.steps)} of it starting copies: {us(overhead)} in all"
        result.append(Figure(title="steps", value=f"{explanation.steps:,}", unit="", note=note))
    if (slice_run := explanation.slice_run) is not None:
        exposed = slice_run.exposed_us / slice_run.time_us if slice_run.time_us else 0.0
        hidden = f"{us(slice_run.exposed_us)} µs; {us(slice_run.hidden_us)} µs more are hidden"
        result.append(share_figure("exposed communication", exposed, hidden))
        result.append(
            share_figure(
                "busiest link busy", slice_run.link_busy_share, f"of {len(slice_run.links)} directions of links"
            )
        )
    if run.vmem_bytes:
        limit = explanation.vmem.limit_bytes if explanation.vmem is not None else 0
        note = f"of {round_mib(limit)} MiB that it may use" if limit else "at most"
        if run.spill_bytes:
            note += f"; {mib(run.spill_bytes)} MiB of it spilled registers"
        share = run.vmem_bytes / limit if limit else None
        result.append(Figure(title="VMEM", value=mib(run.vmem_bytes), unit="MiB", note=note, share=share))
    return tuple(result)


def time_parts(run: SimulatedRun) -> tuple[TimePart, ...]:
    """Split the later core's time into waiting, by cause, and working."""
    names: dict[str, tuple[str, Tone]] = {
        "copy": ("waiting for copies", "wait"),
        "overhead": ("starting copies and checking their flags", "overhead"),
        "matrix": ("waiting for matrix units", "moved"),
        "semaphore": ("waiting for a semaphore", "track"),
    }
    stalls = run.stalls
    working = TimePart(title="working", share=max(0.0, 1 - sum(stalls.values())), tone="matrix")
    waits = [
        TimePart(title=names.get(cause, (cause, "track"))[0], share=share, tone=names.get(cause, ("", "track"))[1])
        for cause, share in stalls.items()
        if share >= 0.0005
    ]
    return (working, *sorted(waits, key=lambda part: -part.share))


def share_figure(title: str, share: float, note: str) -> Figure:
    return Figure(title=title, value=f"{share * 100:.0f}", unit="%", note=note, share=share)
