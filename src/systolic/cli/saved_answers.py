"""Answers of `systolic explain`, `simulate` and `step`, read from the files that `--json` wrote."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from systolic.cli.results import WrongFileError, read_document, wrong_kind
from systolic.explaining import Explanation, ExplanationError
from systolic.simulator import SimulatedRun, SliceRun
from systolic.steps import StepRun
from systolic.support.ranges import Amount, Count, PositiveCount, Time
from systolic.support.untrusted import UntrustedError, mapping, structured

_WANTED = "the result of `systolic explain --json FILE`, `systolic simulate --json FILE` or `systolic step --json FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedAnswer:
    """One row of a file: a function on a chip, and its explanation or run."""

    function: str
    chip: str
    result: Explanation | SimulatedRun | SliceRun | None
    reason: str = ""  # why there is neither


@dataclass(frozen=True, slots=True, kw_only=True)
class _SimulatedRow:
    """The fields of a row of `simulate` that are compared, or repeat its run in other units."""

    function: str
    chip: str
    reason: str = ""
    time_us: Time | None = None
    error_percent: Amount | None = None
    prefetch_us: Amount = 0.0
    skew_us: Amount = 0.0
    exposed_us: Amount = 0.0
    hidden_us: Amount = 0.0
    cycles: PositiveCount | None = None
    devices: PositiveCount | None = None
    hbm_read_bytes: Count = 0
    hbm_written_bytes: Count = 0
    vmem_bytes: Count = 0
    spill_bytes: Count = 0
    compile_s: Amount = 0.0
    link_busy_share: Amount = 0.0
    core_share: tuple[Amount, ...] = ()
    busy: dict[str, Amount] = field(default_factory=dict)
    stalls: dict[str, Amount] = field(default_factory=dict)


_ROW_NAMES = tuple(part.name for part in dataclasses.fields(_SimulatedRow))


def read_answers(path: Path) -> list[SavedAnswer]:
    """Read the answers in a file.

    Raises:
      WrongFileError, ExplanationError: neither `explain` nor `simulate` wrote it, or a value in it is out of its range.
    """
    document = read_document(path, _WANTED)
    rows = document["rows"] if isinstance(document.get("rows"), list) else [document]
    answers = []
    try:
        for row in rows:
            answer = _read_row(row) if isinstance(row, dict) else None
            if answer is None:
                raise wrong_kind(path, document, _WANTED)
            answers.append(answer)
        if document.get("command") == "explain":
            failed = mapping(document.get("summary") or {}, "summary").get("failed") or {}
            reasons = structured(failed, dict[str, str])  # by chip, for chips without a row
            answers += [SavedAnswer(function="", chip=chip, result=None, reason=why) for chip, why in reasons.items()]
    except WrongFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise ExplanationError(f"{path}: {error}; this takes {_WANTED}") from error
    if not answers:
        raise ExplanationError(f"{path} holds no rows; this takes {_WANTED}")
    return answers


def _read_row(row: Mapping[str, Any]) -> SavedAnswer | None:
    """Return a row of the file; None if another command wrote it."""
    if "programs" in row:
        explanation = Explanation.from_json(json.dumps(row))
        if not explanation.programs or explanation.programs[0].device_run is None:
            raise ExplanationError("an explanation without the run of its function")
        return SavedAnswer(function=explanation.function, chip=explanation.chip, result=explanation)
    if "clock_hz" in row:
        run = _read_run(row)
        return SavedAnswer(function="", chip=run.chip, result=run)
    if {"step", "chip", "status"} <= row.keys():
        return _read_step(row)
    if not {"function", "chip"} <= row.keys() or not {"run", "reason"} & row.keys():
        return None
    try:
        simulated = structured({name: row[name] for name in _ROW_NAMES if name in row}, _SimulatedRow)
    except UntrustedError as error:
        raise ExplanationError(f"this is not a row of `systolic simulate`: {error}") from error
    run = _read_run(row["run"]) if "run" in row else None
    return SavedAnswer(function=simulated.function, chip=simulated.chip, result=run, reason=simulated.reason)


def _read_step(row: Mapping[str, Any]) -> SavedAnswer:
    """Return a row of `systolic step`. The step's own record is read with its run, and the run is what is compared."""
    try:
        texts = structured({name: row.get(name) or "" for name in ("step", "chip", "reason")}, dict[str, str])
    except UntrustedError as error:
        raise ExplanationError(f"this is not a row of `systolic step`: {error}") from error
    step = StepRun.from_json(json.dumps(row["run"])) if "run" in row else None
    run = None if step is None else step.slice_run or step.run
    return SavedAnswer(function=texts["step"], chip=texts["chip"], result=run, reason=texts["reason"])


def _read_run(document: Any) -> SimulatedRun | SliceRun:
    """Return the run of one device, or of a slice; only a slice's run has classes of devices."""
    kind = SliceRun if isinstance(document, dict) and "classes" in document else SimulatedRun
    return kind.from_json(json.dumps(document))
