"""The JSON of `systolic tune` for products."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from systolic.cli.tune_table import provenance
from systolic.ops.op import record_of
from systolic.store import Trial
from systolic.tuning import TuningResult


def product_record(result: TuningResult) -> dict[str, Any]:
    winner = result.winner
    return {
        "chip": result.chip,
        **record_of(result.spec),
        "computed": dataclasses.asdict(result.computed),
        "winner": {**_trial(winner), "ratio_to_xla": result.ratio_to_xla} if winner is not None else None,
        "time_us": winner.time_us if winner is not None else None,
        "time_error": None if result.winner_error is None else dataclasses.asdict(result.winner_error),
        "provenance": provenance(winner),
        "xla_us": result.xla_us,
        "ratio_to_xla": result.ratio_to_xla,
        "ratio_error_percent": result.ratio_error_percent,
        "verdict": result.verdict,
        "level_trials": result.level_trials,
        "xla": _trial(result.xla) if result.xla is not None else None,
        "trials": [_trial(trial) for trial in result.trials],
        "considered": result.considered,
        "compiled": result.compiled,
        "seconds": result.seconds,
        "end": result.end,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    kernel = "XLA" if trial.config is None else trial.config.kernel
    named = {"kernel": kernel, "name": str(trial.config or "XLA"), "time_us": trial.time_us, "limit": trial.limit}
    return {**named, **dataclasses.asdict(trial)}


def products_summary(results: list[TuningResult], store: Path) -> dict[str, Any]:
    first = results[0]
    return {
        "store": str(store),
        "products": len(results),
        "winner": _trial(first.winner) if len(results) == 1 and first.winner is not None else None,
        "ratio_to_xla": first.ratio_to_xla if len(results) == 1 else None,
        "compiled": sum(result.compiled for result in results),
    }
