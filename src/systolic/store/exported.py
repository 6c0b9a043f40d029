"""Read files of trials from elsewhere: output of `systolic table export`, or another user's store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from systolic.store.database import StoreError
from systolic.store.reading import read_subject, read_trial
from systolic.store.trial import Subject, Trial
from systolic.store.trial_store import TrialStore
from systolic.support.call_errors import WrongCallError
from systolic.support.printable import printable
from systolic.support.regular_file import open_regular
from systolic.support.untrusted import UntrustedError, mapping, read_json, shown

EXPORT_SCHEMA = 2  # of the rows that `systolic table export` writes
_MAX_BYTES = 64 * 2**20  # some sixty thousand trials
_COMMAND = "table export"


class TrialsFileError(WrongCallError, ValueError):
    """The file holds no trials that can be read; the message names the place and the value, in one line."""


def read_trials_file(file: Path) -> list[tuple[Subject, list[Trial]]]:
    """Return all trials of a store or an exported file. It is not ours: nothing in it is skipped or repaired.

    Raises:
      TrialsFileError: one value in it is not what it has to be, or it is neither.
    """
    name = printable(str(file))
    try:
        with open_regular(file) as opened:
            content = opened.read(_MAX_BYTES + 1)
        if content.startswith(b"SQLite format 3"):
            return TrialStore(file).foreign_records()
        if len(content) > _MAX_BYTES:
            raise UntrustedError(f"it has more than {_MAX_BYTES // 2**20} MiB")
        return read_exported(read_json(content))
    except OSError as error:
        raise TrialsFileError(f"cannot read {name}: {error.strerror}") from error
    except (StoreError, UntrustedError) as error:
        raise TrialsFileError(
            f"{name} is not a store, and nothing that systolic table export wrote: {error}"
        ) from error


def read_exported(document: Any) -> list[tuple[Subject, list[Trial]]]:
    """Return the trials of a document of `systolic table export`; raise UntrustedError if a value is wrong."""
    document = mapping(document, "it")
    if document.get("command") != _COMMAND:
        raise UntrustedError(f"made by {shown(document.get('command'))}")
    schema = mapping(document.get("summary", {}), "summary").get("schema")
    if type(schema) is not int or schema != EXPORT_SCHEMA:
        raise UntrustedError(f"schema {shown(schema)} is of another version of systolic; here it is {EXPORT_SCHEMA}")
    rows = document.get("rows")
    if not isinstance(rows, list):
        raise UntrustedError(f"rows is not a list but {shown(rows)}")
    result = []
    for number, row in enumerate(rows, 1):
        where = f"row {number}"
        row = mapping(row, where)
        trials = row.get("trials")
        if set(row) != {"subject", "trials"} or not isinstance(trials, list):
            raise UntrustedError(f"{where} is not a subject with a list of trials")
        try:
            where = f"row {number}, subject"
            subject = read_subject(row["subject"])
            read = []
            for place, trial in enumerate(trials, 1):
                where = f"row {number}, trial {place}"
                read.append(read_trial(trial, subject))
        except UntrustedError as error:
            raise UntrustedError(f"{where}: {error}") from error
        result.append((subject, read))
    return result
