"""The limits that a function cannot beat: matrix units, HBM and, on a slice, the links between chips."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.explaining import Explanation, Program
from systolic.report.columns import numeric, textual
from systolic.report.explained_table import ExplainedTable, explained_table
from systolic.report.written import percent, us


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """One limit of one program, on one device."""

    name: str  # the limiting unit
    amount: str  # the work, with its unit
    rate: str  # the unit's rate, with its unit
    least_us: float  # the least time


def ceilings(explanation: Explanation, program: Program) -> tuple[Ceiling, ...]:
    """Return the known limits of a program. HBM's limit is the rate that the simulator's copies reach."""
    roof = explanation.roofline
    limits: list[tuple[str, str, str, float]] = []
    if program.flops and roof.peak_flops_per_s:
        work, rate = program.flops, roof.peak_flops_per_s
        rate_words = f"{rate / 1e12:,.0f} Tflop/s in {roof.dtype}"
        limits.append(("matrix units", f"{work / 1e9:,.1f} Gflop", rate_words, work / rate * 1e6))
    if program.hbm_bytes:
        work, rate = program.hbm_bytes, roof.simulated_hbm_bytes_per_s
        limits.append(("HBM", f"{work / 1e6:,.1f} MB", f"{rate / 1e9:,.0f} GB/s", work / rate * 1e6))
    talk = program.communication
    if talk is not None and talk.link_us:
        rate_words = f"{talk.link_bytes / talk.link_us / 1e3:,.0f} GB/s"
        limits.append(("links (ICI)", f"{talk.link_bytes / 1e6:,.1f} MB over the busiest", rate_words, talk.link_us))
    return tuple(
        Ceiling(name=name, amount=amount, rate=rate, least_us=least_us) for name, amount, rate, least_us in limits
    )


def ceilings_table(explanation: Explanation) -> ExplainedTable[Ceiling]:
    """Return a table of the function's own limits, the closest first."""

    def share(ceiling: Ceiling) -> float:
        return ceiling.least_us / explanation.time_us if explanation.time_us else 0.0

    return explained_table(
        (
            textual("limit", lambda ceiling: ceiling.name),
            numeric("of one device", lambda ceiling: ceiling.amount),
            numeric("at", lambda ceiling: ceiling.rate),
            numeric("takes at least µs", lambda ceiling: us(ceiling.least_us)),
            numeric("of the time", lambda ceiling: percent(share(ceiling)), share=share),
        ),
        sorted(ceilings(explanation, explanation.programs[0]), key=lambda ceiling: -ceiling.least_us),
    )
