"""Brings trials of schema 1, which systolic 0.3.0 wrote, into the form that they have now.

It renames and rearranges, and judges nothing: what is not as schema 1 has it is left as it is, and whoever reads it
afterwards refuses it with the reason.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from systolic.chips.history import constants_of_0_3_0
from systolic.untrusted import UntrustedError, read_json

Row = Sequence[Any]  # of SQLite, whose texts are bytes

_SIDES = ("lhs", "rhs", "out")
_FUSION_FIELDS = 6
_CONFIG_NAMES = {"slice_m": "subtile_m", "slice_n": "subtile_n", "buffers": "num_stages", "outer": "grid_order"}


def subject_of_schema_1(record: Any) -> Any:
    """A subject's JSON as it is now."""
    found = _renamed(record, {"problem": "spec"})
    if isinstance(found, dict) and isinstance(found.get("spec"), dict):
        found["spec"] = _spec(found["spec"])
    if not isinstance(found, dict):
        return found
    return {"op": "matmul", "constants": constants_of_0_3_0(str(found.get("chip"))), **found}


def trial_of_schema_1(record: Any) -> Any:
    """A trial's JSON as it is now."""
    found = _renamed(record, {"blocking": "config"})
    if isinstance(found, dict) and isinstance(found.get("config"), dict):
        found["config"] = _config(found["config"])
    return found


def _spec(problem: dict[str, Any]) -> dict[str, Any]:
    """Arrays beside a product were in one list, each with its side, and the epilogue's names in one text."""
    found = dict(problem)
    fusion = found.get("fusion")
    if not isinstance(fusion, dict):
        return found
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        extras = {side: [_fused(one) for one in fusion["extras"] if one["beside"] == side] for side in _SIDES}
        for side in ("lhs", "rhs"):
            fn, operands = fusion[f"{side}_fn"], extras[side]
            found[f"{side}_prologue"] = fn and {**_renamed(fn, {"ops": "op_count"}), "name": "", "operands": operands}
        words = [word for word in fusion["epilogue"].split(", ") if word]
        named = {"residual": None, "scale": None, "bias": None, "activation": "", "primal": None, "kept_sum": None}
        for word in words:
            if word in ("bias", "residual", "scale"):
                named[word] = extras["out"].pop(0)
            else:
                named["activation"] = word
        found["epilogue"] = {**named, "op_count": fusion["epilogue_ops"], "transcendentals": 0}
        if not extras["out"] and not fusion["more_outputs"] and len(fusion) == _FUSION_FIELDS:
            del found["fusion"]
    return found


def _fused(extra: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in extra.items() if name != "beside"}


def _config(blocking: dict[str, Any]) -> dict[str, Any]:
    """A blocking said its pipeline by numbers: no pieces and 2 buffers, no pieces and 3 buffers, or some pieces."""
    found = _renamed(blocking, _CONFIG_NAMES)
    if "pieces" in found:
        pieces = found.pop("pieces")
        found["pipeline"] = ("emit" if found.get("num_stages") == 3 else "auto") if pieces == 0 else "manual"
        found["fill_chunks"] = 1 if pieces == 0 else pieces
    return found


def _renamed(record: Any, names: dict[str, str]) -> Any:
    if not isinstance(record, dict):
        return record
    return {names.get(name, name): value for name, value in record.items()}


def rows_of_schema_1(subjects: Iterable[Row], trials: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Rows of both tables as they are now, in the columns of `store.rows`.

    Rows whose columns are not those of their records stay as they are, and so stay refused.
    """
    keys: dict[bytes, bytes] = {}
    new_subjects, new_trials = [], []
    for rowid, key, chip, text in subjects:
        with suppress(UntrustedError):
            if key == _key(text):
                text = _text(subject_of_schema_1(read_json(text)))
                keys[key] = key = _key(text)
        new_subjects.append((rowid, key, chip, text))
    for rowid, key, config, *columns, text in trials:
        with suppress(UntrustedError):
            record = read_json(text)
            if isinstance(record, dict) and config == config_text(record.get("blocking")).encode():
                record = trial_of_schema_1(record)
                config, text = config_text(record["config"]).encode(), _text(record)
        new_trials.append((rowid, keys.get(key, key), config, *columns, text))
    return new_subjects, new_trials


def migrate(opened: sqlite3.Connection) -> None:
    """Rewrites the tables of a store of schema 1; the caller's transaction makes it all or nothing."""
    opened.execute("ALTER TABLE trials RENAME COLUMN blocking TO config")
    subjects, trials = rows_of_schema_1(
        opened.execute("SELECT rowid, key, chip, subject FROM subjects NOT INDEXED").fetchall(),
        opened.execute("SELECT rowid, subject, config, trial FROM trials NOT INDEXED").fetchall(),
    )
    for rowid, key, _, text in subjects:
        _update(opened, "UPDATE OR REPLACE subjects SET key = ?, subject = ? WHERE rowid = ?", key, text, rowid)
    for rowid, key, config, text in trials:
        statement = "UPDATE OR REPLACE trials SET subject = ?, config = ?, trial = ? WHERE rowid = ?"
        _update(opened, statement, key, config, text, rowid)


def _update(opened: sqlite3.Connection, statement: str, *values: Any) -> None:
    with suppress(UnicodeDecodeError):  # such a row is damaged, and stays so
        opened.execute(statement, [one.decode() if isinstance(one, bytes) else one for one in values])


def config_text(config: Any) -> str:
    """A configuration in the column of that name; XLA's program has none."""
    return "" if config is None else json.dumps(config, sort_keys=True)


def _text(record: Any) -> bytes:
    return json.dumps(record, sort_keys=True).encode()


def _key(text: Any) -> bytes:
    return hashlib.sha256(text).hexdigest()[:32].encode() if isinstance(text, bytes) else b""
