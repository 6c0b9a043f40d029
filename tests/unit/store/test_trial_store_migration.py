"""Stores and exports of systolic 0.3.0 are read, and rewritten when something is kept in them."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from systolic.cli import main
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import Epilogue, FusedOperand, MatmulSpec, Prologue
from systolic.store import StoreError, StoreWarning, Subject, Trial, TrialStore
from systolic.store.migration import subject_of_schema_1

# The tables as 0.3.0 made them.
SCHEMA = """
CREATE TABLE IF NOT EXISTS subjects (
  key TEXT PRIMARY KEY,
  chip TEXT NOT NULL,
  sizes TEXT NOT NULL,
  subject TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS trials (
  subject TEXT NOT NULL REFERENCES subjects (key),
  blocking TEXT NOT NULL,
  status TEXT NOT NULL,
  modelled_us REAL,
  simulated_us REAL,
  measured_us REAL,
  trial TEXT NOT NULL,
  kept_at REAL NOT NULL,
  PRIMARY KEY (subject, blocking)
) STRICT;
PRAGMA application_id = 1937339252;
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
"""
SIZES = {"m": 512, "k": 1024, "n": 2048, "batch": 1, "batch_lhs": 1, "batch_rhs": 1}
PROBLEM = {
    **SIZES,
    "dtype_lhs": "bfloat16",
    "dtype_rhs": "bfloat16",
    "dtype_out": "bfloat16",
    "precision": "default",
    "transpose_lhs": False,
    "transpose_rhs": False,
    "fusion": {
        "extras": [],
        "lhs_fn": None,
        "rhs_fn": None,
        "epilogue": "",
        "epilogue_ops": 0,
        "more_outputs": [],
    },
}
SUBJECT = {"problem": PROBLEM, "chip": "v6e", "kernel_version": 1, "jax": "0.10.2", "libtpu": "0.0.42"}


def blocking(tile_m: int, buffers: int, pieces: int, outer: str = "m") -> dict[str, Any]:
    tiles = {"tile_m": tile_m, "tile_k": 256, "tile_n": 512}
    cut = {"slice_m": tile_m, "slice_n": 256}
    return {"tiles": tiles, **cut, "buffers": buffers, "outer": outer, "pieces": pieces}


def trial(its: dict[str, Any] | None, time_us: float | None) -> dict[str, Any]:
    times = {"modelled_us": 9.5, "simulated_us": time_us, "prefetch_us": None, "measured_us": None}
    made = {"vmem_bytes": 2**20, "hbm_bytes": None, "bundles": 900, "compile_s": 1.5}
    status = "ok" if time_us is not None else "refused"
    return {"blocking": its, "status": status, **times, "stalls": {"copy": 0.25}, **made, "reason": ""}


TRIALS = [
    trial(blocking(128, 2, 0), 30.0),
    trial(blocking(256, 3, 0, "n"), 20.0),
    trial(blocking(512, 3, 2), 10.0),
    trial(blocking(512, 2, 1), None),
    trial(None, 25.0),
]


def config(tile_m: int, pipeline: str, num_stages: int, fill_chunks: int = 1, grid_order: str = "m") -> KernelConfig:
    return KernelConfig(
        tiles=Tiles(tile_m=tile_m, tile_k=256, tile_n=512),
        subtile_m=tile_m,
        subtile_n=256,
        pipeline=pipeline,  # type: ignore[arg-type]
        num_stages=num_stages,
        grid_order=grid_order,  # type: ignore[arg-type]
        fill_chunks=fill_chunks,
    )


MIGRATED = [
    config(512, "manual", 3, fill_chunks=2),
    config(256, "emit", 3, grid_order="n"),
    None,
    config(128, "auto", 2),
    config(512, "manual", 2),
]
HERE = Subject(
    op="matmul",
    spec=MatmulSpec.of(512, 1024, 2048, "bfloat16"),
    chip="v6e",
    kernel_version=1,
    jax="0.10.2",
    libtpu="0.0.42",
    constants="0.3.0",
)


def text(record: Any) -> str:
    return "" if record is None else json.dumps(record, sort_keys=True)


@pytest.fixture
def old(tmp_path: Path) -> TrialStore:
    """A file as 0.3.0 wrote it."""
    file = tmp_path / "trials.sqlite"
    key = hashlib.sha256(text(SUBJECT).encode()).hexdigest()[:32]
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.executescript(SCHEMA)
        connection.execute("INSERT INTO subjects VALUES (?, ?, ?, ?)", (key, "v6e", "1x512x1024x2048", text(SUBJECT)))
        for one in TRIALS:
            times = one["modelled_us"], one["simulated_us"], one["measured_us"]
            row = (key, text(one["blocking"]), one["status"], *times, text(one), 1.7e9)
            connection.execute("INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    return TrialStore(file)


def version(store: TrialStore) -> int:
    with closing(sqlite3.connect(store.file)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def configs(trials: list[Trial]) -> list[KernelConfig | None]:
    return [one.config for one in trials]


def test_reading_changes_nothing_in_the_file(old: TrialStore) -> None:
    before = old.file.read_bytes()
    assert old.subjects() == [HERE]
    assert configs(old.trials(HERE)) == MIGRATED
    winner = old.winner(HERE)
    assert winner is not None
    assert (winner.config, winner.time_us, winner.stalls, winner.bundles) == (MIGRATED[0], 10.0, {"copy": 0.25}, 900)
    assert (old.health().problem, old.health().trials, old.health().unreadable) == ("", 5, ())
    assert old.file.read_bytes() == before
    assert version(old) == 1


def test_keeping_rewrites_the_file_once(old: TrialStore) -> None:
    kept = Trial(config=config(64, "auto", 2), status="ok", simulated_us=8.0)
    old.keep(HERE, kept)
    assert version(old) == 2
    assert configs(old.trials(HERE)) == [kept.config, *MIGRATED]
    old.keep(HERE, Trial(config=MIGRATED[-1], status="ok", simulated_us=40.0))  # tried again: one row
    assert len(old.trials(HERE)) == 6
    assert not list(old.file.parent.glob("*.damaged-*"))


def test_a_kill_while_it_is_rewritten_leaves_the_old_one(old: TrialStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("systolic.store.migration._key", killed)
        with pytest.raises(KeyboardInterrupt):
            old.check_writable()
    assert version(old) == 1
    assert configs(old.trials(HERE)) == MIGRATED
    old.check_writable()
    assert version(old) == 2
    assert configs(old.trials(HERE)) == MIGRATED


def test_a_row_that_was_damaged_is_named_and_the_others_are_migrated(old: TrialStore) -> None:
    with closing(sqlite3.connect(old.file)) as connection, connection:
        connection.execute("UPDATE trials SET trial = '{' WHERE rowid = 1")
        connection.execute(
            "UPDATE trials SET trial = replace(trial, '\"buffers\": 3', '\"buffers\": 9') WHERE rowid = 2"
        )
    for act in (lambda: old.trials(HERE), lambda: old.check_writable() or old.trials(HERE)):
        with pytest.warns(StoreWarning, match="left out of .* trial 1: "):
            assert configs(act()) == [one for one in MIGRATED if one not in (MIGRATED[1], MIGRATED[3])]
    assert version(old) == 2


def test_what_was_fused_is_found_again(old: TrialStore) -> None:
    def extra(beside: str, rows: bool, columns: bool, dtype: str) -> dict[str, Any]:
        return {"beside": beside, "rows": rows, "columns": columns, "dtype": dtype}

    fusion = {
        "extras": [
            extra("rhs", False, True, "float32"),
            extra("out", False, True, "bfloat16"),
            extra("out", True, True, "bfloat16"),
        ],
        "lhs_fn": None,
        "rhs_fn": {"dtype": "bfloat16", "ops": 2},
        "epilogue": "bias, gelu, residual",
        "epilogue_ops": 0,
        "more_outputs": [],
    }
    subject = {**SUBJECT, "problem": {**PROBLEM, "dtype_rhs": "int8", "fusion": fusion}}
    whole, row = (FusedOperand(rows=rows, columns=True, dtype="bfloat16") for rows in (True, False))
    scale = replace(row, dtype="float32")
    spec = replace(
        HERE.spec,
        dtype_rhs="int8",
        rhs_prologue=Prologue(dtype="bfloat16", op_count=2, operands=(scale,)),
        epilogue=Epilogue(bias=row, activation="gelu", residual=whole),
    )
    with closing(sqlite3.connect(old.file)) as connection, connection:
        key = hashlib.sha256(text(subject).encode()).hexdigest()[:32]
        connection.execute("INSERT INTO subjects VALUES (?, ?, ?, ?)", (key, "v6e", "1x512x1024x2048", text(subject)))
    assert old.subjects() == sorted([HERE, replace(HERE, spec=spec)], key=Subject.as_json)


def test_a_damaged_old_store_is_salvaged(old: TrialStore) -> None:
    with closing(sqlite3.connect(old.file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    held = bytearray(old.file.read_bytes())
    held[68:72] = b"xxxx"  # the application's mark
    old.file.write_bytes(held)
    with pytest.warns(StoreWarning, match="begun anew with the 5 trials"):
        assert configs(old.trials(HERE)) == MIGRATED
    assert version(old) == 2


def test_somebody_elses_old_store_and_old_export_are_imported(old: TrialStore, tmp_path: Path) -> None:
    document = {
        "command": "table export",
        "versions": {},
        "rows": [{"subject": SUBJECT, "trials": TRIALS}],
        "summary": {"products": 1, "schema": 1},
    }
    (tmp_path / "old.json").write_text(json.dumps(document))
    for name in ("old.json", "trials.sqlite"):
        into = TrialStore(tmp_path / f"of {name}.sqlite")
        assert main(["table", "import", str(tmp_path / name), "--store", str(into.file), "-q"]) == 0
        assert configs(into.trials(HERE)) == MIGRATED
    assert version(old) == 1


def test_another_schema_is_refused_with_one_line(old: TrialStore, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(old.file)) as connection:
        connection.execute("PRAGMA user_version = 3")
    with pytest.raises(StoreError, match=r"newer version of systolic \(schema 3, here 2\)"):
        old.trials(HERE)
    assert main(["table", "show", "--store", str(old.file)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_simulated_times_of_changed_constants_count_no_more() -> None:
    for name, unchanged in (("v4", True), ("v5e", True), ("v5p", True), ("v6e", False), ("v7x", False)):
        now = Subject.here(HERE.spec, name).constants
        assert (subject_of_schema_1({**SUBJECT, "chip": name})["constants"] == now) == unchanged
