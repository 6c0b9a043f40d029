"""Write results of searches as JSON text and read them, for users without the store of the trials."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any, Literal

from systolic.store import Subject, Trial, read_subject, read_trial
from systolic.support.call_errors import WrongCallError
from systolic.support.ranges import Amount, Count
from systolic.support.untrusted import UntrustedError, mapping, read_json, shown, structured

FORMAT = 1

End = Literal["trials", "time", "bound", "all", "stopped"]


class SavedTuningError(WrongCallError, ValueError):
    """A text is not a result of a search, or one of another version's format; the message says what is wrong."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a search, as saved in its result."""

    considered: Count
    compiled: Count
    seconds: Amount
    end: End


def write_result(result: Any, subject: Subject, trials: Iterable[Trial], **fields: Any) -> str:
    """Write JSON text for `read_result`; `fields` are further JSON values of one kind of result."""
    ended = {field.name: getattr(result, field.name) for field in dataclasses.fields(Ended)}
    rows = [dataclasses.asdict(trial) for trial in trials]
    return json.dumps(
        {"format": FORMAT, "subject": dataclasses.asdict(subject), "trials": rows, "ended": ended, **fields},
        allow_nan=False,
    )


def read_result(text: str) -> tuple[Subject, list[Trial], Ended, dict[str, Any]]:
    """Return subject, trials, end of the search and document; raise UntrustedError if it is not of `write_result`."""
    document = dict(mapping(read_json(text), "it"))
    if document.get("format") != FORMAT:
        raise UntrustedError(f"format {FORMAT} is read here, and not that of {shown(document.get('format'))}")
    subject = read_subject(document.get("subject"))
    rows = document.get("trials")
    if not isinstance(rows, list):
        raise UntrustedError(f"trials is not a list but {shown(rows)}")
    return subject, [read_trial(row, subject) for row in rows], structured(document.get("ended"), Ended), document
