"""Print results of `systolic tune`: the winner of each product, and the best of its trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from systolic.cli.output import printable, versions
from systolic.cli.tables import console, say, show_table
from systolic.ops.op import op_of
from systolic.report.columns import Column, numeric, textual
from systolic.report.time_errors import time_text, verdict_text
from systolic.report.written import us
from systolic.store import Trial
from systolic.timing.opponent import opponent_words
from systolic.tuning import TuningResult

_SHOWN = 10  # trials
ENDS = {
    "trials": "as many trials as asked for",
    "time": "the time budget was used up",
    "bound": "nothing that is left can be faster",
    "all": "all were tried",
    "stopped": "stopped by Ctrl-C",
}


def show_searches(results: Sequence[Any], show_one: Callable[[Any], None], store: Path) -> None:
    """Print searches of products or of functions, and their common facts."""
    installed = versions()
    say(f"times are simulated: compiled by libtpu {installed['libtpu']} (jax {installed['jax']}), executed on a model")
    for result in results:
        say("")
        show_one(result)
    say(f"\nall trials are stored in {store}")


def show_product(result: TuningResult) -> None:
    what = named(result)
    winner = result.winner
    if winner is None or winner.time_us is None:
        say(f"{what}: no trial has a time")
    else:
        time = f"{provenance(winner)} {time_text(winner.time_us, result.winner_error)}"
        say(f"{what}: {time}{_beside_xla(result)} with {winner.config}")
        if result.level_trials:
            say(
                f"{result.level_trials} other trials of its kernel are level: their times differ by less than the error"
            )
    say(
        f"{result.compiled} of {result.considered:,} configurations tried in {result.seconds:.0f} s, "
        f"{len(result.trials)} with stored ones; {ENDS[result.end]}"
    )
    show_table(console(), _columns(result.xla_us), result.trials[:_SHOWN])
    if result.xla is not None and result.xla_us is None:
        say(f"XLA has no time: {printable(_first_line(result.xla.reason))}")


def _beside_xla(result: TuningResult) -> str:
    if result.ratio_to_xla is None or result.xla is None:
        return ""
    ratio = f", {result.ratio_to_xla:.3f} × XLA {opponent_words(result.xla.flags)}"
    if result.winner_error is None or result.xla_error is None:  # measured
        return ratio
    return f"{ratio} ({verdict_text(result.verdict, result.ratio_error_percent)})"


def _columns(xla_us: float | None) -> tuple[Column[Trial], ...]:
    return (
        textual("config", lambda trial: str(trial.config)),
        numeric("simulated µs", lambda trial: trial.status if trial.simulated_us is None else trial.simulated_us, us),
        numeric("measured µs", lambda trial: trial.measured_us, us, optional=True),
        numeric("modelled µs", lambda trial: trial.modelled_us, us, droppable=True),
        numeric("× XLA", lambda trial: xla_us / trial.time_us if xla_us and trial.time_us else None, ".3f"),
        textual(
            "limited by", lambda trial: trial.limit if trial.time_us is not None else _first_line(trial.reason)[:60]
        ),
        numeric("VMEM MiB", lambda trial: trial.vmem_bytes / 2**20 if trial.vmem_bytes is not None else None, ".0f"),
        numeric("compile s", lambda trial: trial.compile_s, ".1f", droppable=True),
    )


def _first_line(reason: str) -> str:
    return next(iter(reason.splitlines()), "–")


def named(result: TuningResult) -> str:
    sizes, dtypes, _ = op_of(result.spec).words(result.spec)
    return f"{sizes}, {dtypes} on {result.chip}"


def provenance(trial: Trial | None) -> str:
    return "measured" if trial is not None and trial.measured_us is not None else "simulated"
