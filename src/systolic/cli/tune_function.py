"""Print and write results of `systolic tune` for functions: the winner's static arguments, and the trials."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from systolic.cli.tables import console, say, show_table
from systolic.cli.tune_table import ENDS
from systolic.report.columns import Column, numeric, textual
from systolic.report.time_errors import error_column, time_text, verdict_text
from systolic.report.written import us
from systolic.store import Trial
from systolic.tuning import FunctionTuning

_SHOWN = 10  # trials, and left-out combinations


def show_function(result: FunctionTuning) -> None:
    what = f"{result.spec.name}({'; '.join(result.spec.arguments)}) on {result.chip}"
    winner = result.winner
    if winner is None or winner.time_us is None:
        say(f"{what}: no trial has a time")
    else:
        say(f"{what}: simulated {time_text(winner.time_us, result.error(winner))} with {winner.function}")
        if result.speed_ratio is not None and result.default_trial is not None and result.default_trial is not winner:
            error = result.ratio_error_percent(result.default_trial)
            verdict = verdict_text(result.verdict, error, same_kernel=True)
            say(f"{result.speed_ratio:.2f} × as fast as it is now, {verdict}")
        if result.level_trials:
            say(f"{result.level_trials} other trials are level with it: their times differ by less than the error")
        say(_as_python(result.spec.name.rpartition(".")[2], winner))
    say(
        f"{result.compiled} of {result.considered:,} variants tried in {result.seconds:.0f} s, "
        f"{len(result.trials)} with stored ones; {ENDS[result.end]}"
    )
    if result.unmodelled_trials:
        say(
            f"{result.unmodelled_trials} of them call no Pallas kernel: no model ranks these, only earlier simulated "
            "times; --exhaustive tries all"
        )
    if result.trials:
        show_table(console(), _columns(result), result.trials[:_SHOWN])
    for variant in result.left_out[:_SHOWN]:
        say(f"left out: {variant}")
    if len(result.left_out) > _SHOWN:
        say(f"left out: {len(result.left_out) - _SHOWN} more, which --json lists")


def _as_python(name: str, winner: Trial) -> str:
    """Return the winner as Python source. Only the user knows the other fields of a record."""
    chosen = winner.function.arguments if winner.function is not None else {}
    records: dict[str, str] = {}
    for keyword, value in chosen.items():
        argument, dot, field = keyword.partition(".")
        fields = f"{records.get(argument, f'dataclasses.replace({argument}')}, {field}={value!r}"
        records[argument] = fields if dot else repr(value)
    ends = {argument: ")" * text.startswith("dataclasses.") for argument, text in records.items()}
    return f"functools.partial({name}{''.join(f', {key}={text}{ends[key]}' for key, text in records.items())})"


def _columns(result: FunctionTuning) -> tuple[Column[Trial], ...]:
    def ratio(trial: Trial) -> float | None:
        mine, default = trial.time_us, result.default_trial
        return default.time_us / mine if default is not None and default.time_us and mine else None

    return (
        textual("arguments", lambda trial: f"{trial.function}{' (now)' * (trial is result.default_trial)}"),
        numeric("simulated µs", lambda trial: trial.status if trial.time_us is None else trial.time_us, us),
        error_column(result.error),
        numeric("× now", ratio, ".2f"),
        numeric("modelled µs", lambda trial: trial.modelled_us, us, droppable=True),
        textual("limited by", lambda trial: trial.limit if trial.time_us is not None else trial.reason[:60]),
        numeric("VMEM MiB", lambda trial: trial.vmem_bytes / 2**20 if trial.vmem_bytes is not None else None, ".1f"),
        numeric("compile s", lambda trial: trial.compile_s, ".1f", droppable=True),
    )


def function_record(result: FunctionTuning) -> dict[str, Any]:
    winner = result.winner
    return {
        "chip": result.chip,
        "function": result.spec.name,
        "arguments": result.spec.arguments,
        "winner": function_trial(result, winner) if winner is not None else None,
        "time_us": winner.time_us if winner is not None else None,
        "provenance": "simulated",
        "speed_ratio_to_default": result.speed_ratio,
        "ratio_error_percent": (
            None if result.default_trial is None else result.ratio_error_percent(result.default_trial)
        ),
        "verdict": result.verdict,
        "level_trials": result.level_trials,
        "unmodelled_trials": result.unmodelled_trials,
        "default": function_trial(result, result.default_trial) if result.default_trial is not None else None,
        "trials": [function_trial(result, trial) for trial in result.trials],
        "left_out": [{"keywords": _values(variant.keywords), "reason": variant.reason} for variant in result.left_out],
        "considered": result.considered,
        "compiled": result.compiled,
        "seconds": result.seconds,
        "end": result.end,
    }


def function_trial(result: FunctionTuning, trial: Trial) -> dict[str, Any]:
    error, config = result.error(trial), trial.function
    return {
        **dataclasses.asdict(trial),
        "keywords": _values(config.keywords) if config is not None else {},
        "time_us": trial.time_us,
        "time_error": None if error is None else dataclasses.asdict(error),
        "limit": trial.limit,
    }


def _values(keywords: Any) -> dict[str, str]:
    return {keyword.name: keyword.value for keyword in keywords}


def volume(trial: Trial) -> int:
    """Return the product of all sizes among the static arguments, for the plot's axis."""
    values = trial.function.arguments.values() if trial.function is not None else ()
    sizes = [size for value in values for size in (value if isinstance(value, tuple) else (value,))]
    return math.prod(size for size in sizes if isinstance(size, int) and size > 0)
