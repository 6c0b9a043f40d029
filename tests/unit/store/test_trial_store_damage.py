"""A store that is damaged, hostile, locked, full or read-only: what can be read is, and the rest is named."""

from __future__ import annotations

import json
import random
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trials import SUBJECT, config, trial

from systolic.cli import main
from systolic.ops.planner import plan, use
from systolic.spec import MatmulSpec
from systolic.store import StoreDamagedError, StoreError, StoreWarning, Subject, Trial, TrialStore
from systolic.support.untrusted import UntrustedError

HERE = Subject.here(MatmulSpec.of(512, 1024, 2048, "bfloat16"), "v6e")


def change(store: TrialStore, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(store.file)) as connection, connection:
        assert connection.execute(statement, values).rowcount > 0


@pytest.mark.parametrize(
    ("first", "last", "left"),
    [
        (0, 16, 0),  # SQLite's mark, without which it reads nothing
        (68, 72, 40),  # the application's
        (100, 10**6, 0),  # all but the head
        (2000, 4096, 0),  # the text of the tables
        (4096 * 7, 4096 * 8, 30),  # a page of trials
    ],
)
def test_a_damaged_file_is_set_aside_and_what_can_be_read_is_kept(
    store: TrialStore, first: int, last: int, left: int
) -> None:
    held = bytearray(store.file.read_bytes())
    last = min(last, len(held))
    held[first:last] = b"x" * (last - first)
    store.file.write_bytes(held)
    with pytest.warns(
        StoreWarning, match=r"trials\.sqlite is damaged.*kept as .*begun anew with the \d+ trials"
    ) as told:
        found = store.trials(SUBJECT)
    (aside,) = (path for path in store.file.parent.glob("trials.sqlite.damaged-*") if path.name[-1].isdigit())
    assert aside.read_bytes() == held
    assert f"the {len(found)} trials" in str(told[0].message)
    assert len(found) >= left
    assert all(one in [trial(16 * number) for number in range(1, 41)] for one in found)
    store.keep(SUBJECT, trial(16))
    assert trial(16) in store.trials(SUBJECT)


def test_a_byte_that_is_no_text_costs_one_row(store: TrialStore, capsys: pytest.CaptureFixture[str]) -> None:
    change(store, "UPDATE trials SET trial = CAST(x'7b22ff227d' AS TEXT) WHERE rowid = 7")
    for act in (lambda: store.trials(SUBJECT), lambda: store.records()[0][1]):
        with pytest.warns(StoreWarning, match=r"left out of .*trials\.sqlite: trial 7: .*byte 3 is not UTF-8"):
            assert len(act()) == 39
    with pytest.warns(StoreWarning, match="trial 7"):
        assert main(["table", "show", "--store", str(store.file)]) == 0
    assert "1 product in" in capsys.readouterr().out
    with pytest.warns(StoreWarning, match="trial 7"):
        assert main(["table", "export", str(store.file.parent / "kept.json"), "--store", str(store.file), "-q"]) == 0
    health = store.health()
    assert (health.schema, health.subjects, health.trials, health.problem) == (2, 1, 39, "")
    assert len(health.unreadable) == 1
    assert "trial 7" in health.unreadable[0]
    # Tried again, it is kept: a row that nobody can read takes no place.
    store.keep(SUBJECT, trial(16 * 7))
    assert len(store.trials(SUBJECT)) == 40


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ('UPDATE trials SET trial = \'{"of": "another version"}\' WHERE rowid = 1', "config is missing"),
        ("UPDATE trials SET simulated_us = -1 WHERE rowid = 1", "columns are not those"),
        ("UPDATE trials SET config = 'x' WHERE rowid = 1", "columns are not those"),
        (
            "UPDATE trials SET trial = replace(trial, '10.0', '-1.0'), simulated_us = -1 WHERE rowid = 1",
            "not a time above 0",
        ),
        (
            "UPDATE trials SET trial = replace(trial, '10.0', '1e308'), simulated_us = 1e308 WHERE rowid = 1",
            "no time: it is 1e.12 µs or more",
        ),
        (
            "UPDATE trials SET trial = replace(trial, '10.0', '1e999'), simulated_us = 9e999 WHERE rowid = 1",
            "not a finite",
        ),
        (
            "UPDATE trials SET trial = replace(trial, '10.0', 'true'), simulated_us = 1 WHERE rowid = 1",
            "True is not a finite",
        ),
        ("UPDATE trials SET trial = '5' WHERE rowid = 1", "is not an object"),
        ("UPDATE trials SET trial = printf('%.*c', 200000, '[') WHERE rowid = 1", "nested too deep"),
        ("UPDATE trials SET subject = 'nobody' WHERE rowid = 1", "its subject cannot be read"),
        ("UPDATE subjects SET chip = 'v5e'", "subject 1: its columns"),
        ("UPDATE subjects SET subject = '{}'", "subject 1: .* is missing"),
    ],
)
def test_a_bad_row_is_named_and_hides_no_other(store: TrialStore, statement: str, said: str) -> None:
    store.keep(replace(SUBJECT, chip="v5e"), trial())
    change(store, statement + (" AND rowid = 1" if "WHERE" in statement else " WHERE rowid = 1"))
    with pytest.warns(StoreWarning, match=said) as told:
        found = store.records()
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    assert sum(len(trials) for _, trials in found) == (40 if "trials SET" in statement else 1)
    assert not list(store.file.parent.glob("*.damaged-*"))


def hostile(store: TrialStore, one: Trial) -> None:
    """A row as nobody here would write it."""
    with closing(sqlite3.connect(store.file)) as connection, connection:
        kernel = json.dumps(json.loads(one.as_json())["config"], sort_keys=True)
        values = (HERE.key, kernel, one.status, one.modelled_us, one.simulated_us, one.measured_us, one.as_json(), 0.0)
        connection.execute("INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)


@pytest.mark.parametrize(
    "one",
    [
        trial(256, -1.0),
        trial(256, 1e-9),  # no kernel is that fast
        trial(64 * 1024, 5.0),  # no chip has that much VMEM
        Trial(config=config(4), status="ok", simulated_us=5.0),  # no register has four rows
        replace(trial(256, 5.0), measured_us=1e-3),
        replace(trial(256, 5.0), stalls={"copy": -1.0}),
    ],
)
def test_a_hostile_row_does_not_win(tmp_path: Path, one: Trial) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    store.keep(HERE, trial(128, 30.0))
    hostile(store, one)
    with use(store=store), pytest.warns(StoreWarning, match="left out of") as told:
        made = plan(HERE.spec, "v6e")
    assert (made.provenance, made.time_us, len(told)) == ("simulated", 30.0, 1)
    with pytest.raises(UntrustedError):
        store.keep(HERE, one)


@pytest.mark.exhaustive
def test_a_library_call_falls_back_with_one_warning(tmp_path: Path) -> None:
    """Whatever byte is wrong: `plan` answers, and says at most once that there is no winner."""
    store = TrialStore(tmp_path / "trials.sqlite")
    store.keep_all([(HERE, [trial(number, 30.0 + number) for number in (64, 128, 256)])])
    held = store.file.read_bytes()
    choose = random.Random(15)
    answers = set()
    for _ in range(150):
        bytes_now = bytearray(held)
        at = choose.randrange(len(held)) if choose.random() < 0.5 else choose.choice(_used(held))
        bytes_now[at] ^= 1 << choose.randrange(8)
        store.file.write_bytes(bytes_now)
        with use(store=store), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            made = plan(HERE.spec, "v6e")
        assert len(told) <= 1
        assert all(issubclass(one.category, StoreWarning) for one in told)
        if made.provenance != "simulated":
            assert len(told) == 1 or _orphaned(store)
        answers.add(made.time_us)
        assert store.file.read_bytes() == bytes_now  # a library call renames nothing
    assert {94.0} <= answers


def _used(held: bytes) -> list[int]:
    return [at for at, byte in enumerate(held) if byte]


def _orphaned(store: TrialStore) -> bool:
    """True if the damage has given the trials another subject, which only reading everything shows."""
    health = store.health()
    return bool(health.unreadable or health.problem)


@pytest.mark.exhaustive
def test_flipped_bits_never_raise_anything_else(tmp_path: Path, store: TrialStore) -> None:
    """Reading, keeping, looking: an answer or a `StoreError`, and after it the store can be written to."""
    held = store.file.read_bytes()
    choose = random.Random(16)
    for number in range(60):
        copy = TrialStore(tmp_path / f"{number}" / "trials.sqlite")
        copy.file.parent.mkdir()
        bytes_now = bytearray(held)
        for _ in range(choose.choice((1, 1, 20))):
            bytes_now[choose.randrange(len(held))] ^= 1 << choose.randrange(8)
        if choose.random() < 0.1:
            del bytes_now[choose.randrange(len(held)) :]
        copy.file.write_bytes(bytes_now)
        copy.health()
        assert copy.file.read_bytes() == bytes_now
        acts: list[Callable[[], Any]] = [
            lambda copy=copy: copy.winner(SUBJECT),
            lambda copy=copy: copy.nearest(HERE),
            lambda copy=copy: copy.records(),
            lambda copy=copy: copy.trials(SUBJECT),
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoreWarning)
            refused = list(filter(None, map(_refusal, acts)))
            # Two of the first set nothing right; after the others it can be used, unless two marks are gone or it says
            # that it is newer.
            usable = all(isinstance(error, StoreDamagedError) for error in refused)
            assert len(refused) <= (2 if usable else 4)
            if not usable:
                said = str(refused[-1])
                assert "not a store of trials" in said or "another version" in said
            else:
                copy.keep(SUBJECT, trial(16 * 99))
                assert trial(16 * 99) in copy.trials(SUBJECT)


def _refusal(act: Callable[[], Any]) -> StoreError | None:
    try:
        act()
    except StoreError as error:
        return error
    return None


@pytest.mark.parametrize("version", [1, 99])
def test_another_versions_store_is_refused_everywhere_and_stays(
    store: TrialStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    with closing(sqlite3.connect(store.file)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("ALTER TABLE trials ADD COLUMN more TEXT")
        connection.commit()
    before = store.file.read_bytes()
    monkeypatch.setenv("SYSTOLIC_STORE", str(store.file))
    for arguments in (["tune", "512,512,512"], ["table", "show"], ["table", "diff", str(store.file), str(store.file)]):
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert f"another version of systolic (schema {version}, here 2)" in said
        assert said.count("\n") == 1
    with use(store=store), pytest.warns(StoreWarning, match="another version"):
        assert plan(HERE.spec, "v6e").provenance != "simulated"
    assert store.file.read_bytes() == before
    assert "another version" in store.health().problem
