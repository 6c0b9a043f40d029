"""Tables of a predicted step, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from systolic.report.columns import numeric, textual
from systolic.report.explained_table import ExplainedTable, explained_table
from systolic.report.time_errors import time_text
from systolic.report.written import percent
from systolic.simulator import CollectiveRun
from systolic.steps import PASSES, PartRun, StepChange, StepRun
from systolic.steps.parts import BETWEEN
from systolic.steps.records import GIB

_MAX_PARTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class KindOfCollective:
    """All collectives of one kind on the device that ends last."""

    kind: str
    collectives: tuple[CollectiveRun, ...]

    @property
    def exposed_cycles(self) -> int:
        """Cycles in which nothing else ran."""
        return sum(collective.exposed_cycles for collective in self.collectives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A step, or one that differs from it in one parameter, with its outcome."""

    label: str  # the function, or the difference
    run: StepRun | None  # None: there is no time
    reason: str = ""  # the reason why there is no time


def ms_of(run: StepRun, cycles: float) -> str:
    """Write cycles as milliseconds, without the unit."""
    return f"{run.us(cycles) / 1e3:,.3f}"


def parts_table(run: StepRun) -> ExplainedTable[PartRun] | None:
    if not run.parts:
        return None
    cycles = max(1, run.run.later_core.cycles)
    return explained_table(
        (
            textual("part", lambda part: part.part),
            textual("pass", lambda part: part.in_pass),
            numeric("simulated ms", lambda part: ms_of(run, part.cycles)),
            numeric("share", lambda part: percent(part.cycles / cycles), share=lambda part: part.cycles / cycles),
            numeric(
                "MXU busy",
                lambda part: percent(part.matrix_busy_cycles / (part.cycles * run.run.matrix_units)),
                droppable=True,
            ),
            numeric("HBM MB", lambda part: f"{part.hbm_bytes / 1e6:,.0f}", droppable=True),
            numeric("exposed ms", lambda part: ms_of(run, part.exposed_cycles)),
            textual("limited by", lambda part: f"{part.limit} ({percent(part.limit_share)})"),
        ),
        run.parts,
        max_rows=_MAX_PARTS,
    )


def passes_text(run: StepRun) -> str:
    """Return the share of time of each pass, in words."""
    cycles = max(1, run.run.later_core.cycles)
    totals = {name: sum(part.cycles for part in run.parts if part.in_pass == name) for name in PASSES}
    # Work between operations belongs to no pass.
    names = {"all": BETWEEN}
    return ", ".join(f"{names.get(name, name)} {percent(total / cycles)}" for name, total in totals.items() if total)


def kinds_table(run: StepRun) -> ExplainedTable[KindOfCollective] | None:
    """List communication by kind, the longest exposed first."""
    kinds = {collective.kind for collective in run.collectives}
    if not kinds:
        return None
    rows = [
        KindOfCollective(kind=kind, collectives=tuple(call for call in run.collectives if call.kind == kind))
        for kind in kinds
    ]

    def total(values: Sequence[int]) -> str:
        return ms_of(run, sum(values))

    return explained_table(
        (
            textual("collective", lambda row: row.kind),
            numeric("operations", lambda row: len(row.collectives)),
            numeric("calls", lambda row: sum(collective.calls for collective in row.collectives), ","),
            numeric("MB sent", lambda row: f"{sum(call.sent_bytes for call in row.collectives) / 1e6:,.1f}"),
            numeric("simulated ms", lambda row: total([collective.cycles for collective in row.collectives])),
            numeric("exposed ms", lambda row: ms_of(run, row.exposed_cycles)),
            numeric("hidden ms", lambda row: total([collective.hidden_cycles for collective in row.collectives])),
        ),
        sorted(rows, key=lambda row: -row.exposed_cycles),
        max_rows=len(rows),
    )


def changes_table(run: StepRun) -> ExplainedTable[StepChange] | None:
    """List the changes that would help most."""
    if not run.changes:
        return None
    return explained_table(
        (
            textual("what would help", lambda change: change.title),
            numeric("saves at most (modelled)", lambda change: percent(change.saving)),
            textual("how", lambda change: change.change),
        ),
        run.changes,
        max_rows=len(run.changes),
    )


def trials_table(base: StepRun, trials: Sequence[Prediction]) -> ExplainedTable[Prediction] | None:
    """List the outcomes of the step's trials."""
    if not trials:
        return None

    def of_run(words: Callable[[StepRun], str]) -> Callable[[Prediction], str]:
        return lambda trial: "" if trial.run is None else words(trial.run)

    return explained_table(
        (
            textual("change", lambda trial: trial.label),
            textual(
                "simulated",
                lambda trial: trial.reason if trial.run is None else time_text(trial.run.time_us, trial.run.error),
            ),
            numeric("against the step", of_run(lambda run: gain_text(base, run))),
            numeric("MFU", of_run(lambda run: percent(run.mfu) if run.flops else "")),
            numeric("HBM GiB", of_run(lambda run: f"{run.memory.needed_bytes / GIB:,.2f}")),
        ),
        trials,
        max_rows=len(trials),
    )


def memory_text(run: StepRun) -> str:
    """Return the step's HBM and its parts, in words."""
    memory = run.memory
    parts = {
        "arguments": memory.argument_bytes,
        "other results": max(0, memory.result_bytes - memory.donated_bytes),
        "temporaries": memory.temporary_bytes,
        "code": memory.code_bytes,
    }
    named = ", ".join(f"{name} {size / GIB:,.2f}" for name, size in parts.items() if size)
    return (
        f"HBM per device, as the compiler reports it: peak {memory.needed_bytes / GIB:,.2f} of "
        f"{memory.capacity_bytes / GIB:,.2f} GiB; not all in use at once: {named}"
    )


def gain_text(base: StepRun, run: StepRun) -> str:
    """Return the speedup of a step, by tokens if both have them, in words."""
    if base.tokens and run.tokens:
        return f"{run.tokens_per_s_per_device / base.tokens_per_s_per_device - 1:+.1%} tokens/s"
    return f"{run.time_us / base.time_us - 1:+.1%} time"
