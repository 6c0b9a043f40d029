"""Write rows of a store, and read and check them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from systolic.ops.op import kept_as
from systolic.store import database
from systolic.store.database import StoreDamagedError, named_errors
from systolic.store.reading import read_subject, read_trial
from systolic.store.trial import Subject, Trial, best_first
from systolic.support.untrusted import UntrustedError, mapping, read_json

TRIAL_COLUMNS = "rowid, subject, config, status, modelled_us, simulated_us, measured_us, trial"
_SUBJECT_COLUMNS = "rowid, key, chip, subject"

Records = Sequence[tuple[Subject, Sequence[Trial]]]
Row = Sequence[Any]  # of SQLite, whose texts are bytes


def write(connection: sqlite3.Connection, records: Records) -> None:
    """Add trials; they replace trials of the same configuration unless those know more: a time, or a measured one."""
    for subject, trials in records:
        sizes = kept_as(subject.spec).words(subject.spec)[0]
        connection.execute(
            "INSERT INTO subjects VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
            "chip = excluded.chip, sizes = excluded.sizes, subject = excluded.subject",
            (subject.key, subject.chip, sizes, subject.as_json()),
        )
        for trial in trials:
            _write(connection, subject, trial)


def _write(connection: sqlite3.Connection, subject: Subject, trial: Trial) -> None:
    config = None if trial.tried is None else dataclasses.asdict(trial.tried)
    key = (subject.key, _config_text(config))
    stored_rows = connection.execute(
        f"SELECT {TRIAL_COLUMNS} FROM trials WHERE subject = ? AND config = ?", key
    ).fetchall()
    if stored_rows and not list(read_trials(stored_rows, subject, [])):
        # An unreadable trial is replaced, whatever its columns say.
        connection.execute("DELETE FROM trials WHERE subject = ? AND config = ?", key)
    connection.execute(
        # A failure may be this machine's fault: it does not replace a time.
        "INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (subject, config) DO UPDATE SET "
        "status = excluded.status, modelled_us = excluded.modelled_us, simulated_us = excluded.simulated_us, "
        "measured_us = excluded.measured_us, trial = excluded.trial, kept_at = excluded.kept_at "
        "WHERE (excluded.status = 'ok' OR trials.status <> 'ok') "
        "AND (excluded.measured_us IS NOT NULL OR trials.measured_us IS NULL)",
        (*key, trial.status, trial.modelled_us, trial.simulated_us, trial.measured_us, trial.as_json(), time.time()),
    )


def read_subjects(connection: sqlite3.Connection) -> list[Subject]:
    """Return all subjects that can be read."""
    subjects = _joined(connection.execute(f"SELECT {_SUBJECT_COLUMNS} FROM subjects NOT INDEXED"), (), [])
    return [subject for subject, _ in subjects]


def read_all(connection: sqlite3.Connection, bad: list[str]) -> list[tuple[Subject, list[Trial]]]:
    """Return all trials by chip and product; add a line to `bad` for each row that cannot be read."""
    subjects = connection.execute(f"SELECT {_SUBJECT_COLUMNS} FROM subjects NOT INDEXED")
    trials = connection.execute(f"SELECT {TRIAL_COLUMNS} FROM trials NOT INDEXED")
    return _joined(subjects, trials, bad)


def read_trials(rows: Iterable[Row], subject: Subject, bad: list[str]) -> Iterator[Trial]:
    """Yield the trials of a subject; add a line to `bad` for each row that cannot be read."""
    for row in rows:
        try:
            yield _trial(row, subject)
        except UntrustedError as error:
            bad.append(f"trial {row[0]}: {error}")


def salvaged(file: Path) -> list[tuple[Subject, list[Trial]]]:
    """Return the readable rows of a damaged store: from both ends, up to the first broken page."""
    subjects: dict[int, Row] = {}
    trials: dict[int, Row] = {}
    with suppress(StoreDamagedError), named_errors(file), closing(database.wreck(file)) as connection:
        for rows_by_id, columns, table in ((subjects, _SUBJECT_COLUMNS, "subjects"), (trials, TRIAL_COLUMNS, "trials")):
            for order in ("ASC", "DESC"):
                with suppress(sqlite3.DatabaseError, UnicodeError):
                    query = f"SELECT {columns} FROM {table} NOT INDEXED ORDER BY rowid {order}"
                    for row in connection.execute(query):
                        rows_by_id.setdefault(row[0], row)
    return _joined(subjects.values(), trials.values(), [])


def _joined(subjects: Iterable[Row], trials: Iterable[Row], bad: list[str]) -> list[tuple[Subject, list[Trial]]]:
    result: dict[bytes, tuple[Subject, list[Row]]] = {}
    for row in subjects:
        try:
            result[row[1]] = _subject(row), []
        except UntrustedError as error:
            bad.append(f"subject {row[0]}: {error}")
    for row in trials:
        if row[1] in result:
            result[row[1]][1].append(row)
        else:
            bad.append(f"trial {row[0]}: its subject cannot be read")
    pairs = [(subject, best_first(read_trials(rows, subject, bad))) for subject, rows in result.values()]
    return sorted(pairs, key=lambda pair: (pair[0].chip, pair[0].as_json()))


def _subject(row: Row) -> Subject:
    _, key, chip, text = row
    subject = read_subject(_json(text))
    if (key, chip) != (hashlib.sha256(text).hexdigest()[:32].encode(), subject.chip.encode()):
        raise UntrustedError("its columns are not those of its record")
    return subject


def _trial(row: Row, subject: Subject) -> Trial:
    _, _, config, *columns, text = row
    record = _json(text)
    trial = read_trial(record, subject)
    expected_columns = [trial.status.encode(), trial.modelled_us, trial.simulated_us, trial.measured_us]
    if config != _config_text(record.get("function") or record["config"]).encode() or columns != expected_columns:
        raise UntrustedError("its columns are not those of its record")
    return trial


def _config_text(config: Any) -> str:
    """Return the text of the column `config`; XLA's program has no configuration."""
    return "" if config is None else json.dumps(config, sort_keys=True)


def _json(text: Any) -> Any:
    if not isinstance(text, bytes):
        raise UntrustedError("its record is not text")
    return mapping(read_json(text), "its record")
