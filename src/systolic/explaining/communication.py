"""Say whether communication between devices of a slice limits a function, and what would hide it."""

from __future__ import annotations

from systolic.explaining.explanation import Saving
from systolic.simulator import CollectiveRun, SliceRun

# These shares choose words, and change no reported number.
_LIMITS = 0.10  # of the time: this much exposed communication is called the limit of a function
_WORTH_SAYING = 0.02  # of the time that one collective is exposed
_FULL = 0.8  # of the time that the busiest link is busy: then more work can hide nothing
_SHORT = 0.25  # of a collective's time that its bytes take over one link: hops and waits take the rest


def communication_words(run: SliceRun) -> str:
    """Say how much of the time is exposed communication, and by which collective; "" if there is none."""
    if not run.collectives or not run.time_us:
        return ""
    share = run.exposed_us / run.time_us
    longest = max(run.collectives, key=lambda collective: collective.exposed_cycles)
    whose = f", most of it of {longest.name}" if longest.exposed_cycles and len(run.collectives) > 1 else ""
    links = f"the busiest link is busy {run.link_busy_share:.0%}"
    if share >= _LIMITS:
        return f"limited by communication between chips, exposed {share:.0%} of the time{whose}; {links}"
    return f"exposed communication {share:.0%}; {links}"


def is_limit(run: SliceRun) -> bool:
    """True if exposed communication limits a run."""
    return bool(run.time_us) and run.exposed_us / run.time_us >= _LIMITS


def communication_savings(run: SliceRun, *, tried_meshes: bool) -> list[Saving]:
    """List, for each collective, what hiding it would save at most, and what would hide it; the largest first."""
    exposed = [collective for collective in run.collectives if collective.exposed_cycles >= _WORTH_SAYING * run.cycles]
    return [
        Saving(
            title=f"{collective.name} hidden",
            why=_why(collective, run),
            change=_change(collective, run, tried_meshes=tried_meshes),
            time_us=(run.cycles - collective.exposed_cycles) / run.clock_hz * 1e6,
            saving=collective.exposed_cycles / run.cycles,
            provenance="modelled",
        )
        for collective in sorted(exposed, key=lambda collective: -collective.exposed_cycles)
    ]


def _why(collective: CollectiveRun, run: SliceRun) -> str:
    scale = 1e6 / run.clock_hz
    exposed_us, us = collective.exposed_cycles * scale, collective.cycles * scale
    words = f"{exposed_us:,.1f} of its {us:,.1f} µs are exposed: nothing else runs"
    if not collective.sent_bytes:
        return f"{words}, and it moves nothing"
    rate = collective.sent_bytes / max(1, collective.cycles) * run.clock_hz
    return f"{words}; {collective.sent_bytes / 1e6:,.2f} MB leave the device at {rate / 1e9:,.0f} GB/s"


def _change(collective: CollectiveRun, run: SliceRun, *, tried_meshes: bool) -> str:
    """Suggest how to hide or shorten a collective; at most its exposed time is saved."""
    mesh = "" if tried_meshes else "; other meshes and shardings may send less: --try-mesh"
    if run.link_busy_share >= _FULL:
        return f"fewer bytes over the busiest link, which is full: {_link(run)}{mesh}"
    if collective.sent_bytes / run.link_bytes_per_s < _SHORT * collective.cycles / run.clock_hz:
        return "it waits for hops and other devices more than for bytes: fewer and larger collectives, or none"
    if collective.hidden_cycles:
        return "more work between its start and its end: a product cut into parts that start as theirs arrive"
    return f"work that does not need its result between its start and its end{mesh}"


def _link(run: SliceRun) -> str:
    busiest = max(run.links, key=lambda link: link.busy_cycles)
    return f"{busiest.source} → {busiest.target} ({busiest.axis})"
