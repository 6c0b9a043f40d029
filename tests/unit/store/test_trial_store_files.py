"""A store in a file that is none, full, read-only or locked: that is noticed before the work."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
from trials import SUBJECT, trial

from systolic.cli import main
from systolic.store import StoreDamagedError, StoreError, StoreWarning, TrialStore
from systolic.support.untrusted import UntrustedError


def test_tables_that_run_code_are_no_store(store: TrialStore) -> None:
    """A view in place of a table, or a trigger, would run what somebody else has written."""
    with closing(sqlite3.connect(store.file)) as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM trials; END")
        connection.commit()
    with pytest.raises(StoreDamagedError, match="its tables are not those of a store"):
        store.foreign_records()
    with pytest.warns(StoreWarning, match="begun anew"):
        store.keep(SUBJECT, trial(16 * 50))
    assert trial(16 * 50) in store.trials(SUBJECT)


@pytest.mark.parametrize("content", [b"my notes\n", b"\0" * 5000, b"SQLite format 3\0"])
@pytest.mark.parametrize("how", ["option", "variable"])
def test_tune_leaves_a_file_of_something_else_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes, how: str
) -> None:
    file = tmp_path / "mine.db"
    file.write_bytes(content)
    monkeypatch.setenv("SYSTOLIC_STORE", str(file))
    assert main(["tune", "512,512,512", *(("--store", str(file)) if how == "option" else ())]) == 2
    said = capsys.readouterr().err
    assert said == f"systolic: {file} is not a store of trials; name another file\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.db"]
    assert file.read_bytes() == content


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path, Path("/dev/null"), tmp_path / "pipe", tmp_path / "a\0b"):
        for act in (
            lambda file=file: TrialStore(file).keep(SUBJECT, trial()),
            lambda file=file: TrialStore(file).subjects(),
        ):
            with pytest.raises(StoreError):
                act()
        assert TrialStore(file).health().problem


FULL = """
import resource, sys
from systolic.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(["tune", "512,512,512", "--store", sys.argv[2], "--time-budget", "1"]))
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_is_noticed_before_the_work(tmp_path: Path, there: bool) -> None:
    file = tmp_path / "trials.sqlite"
    if there:
        TrialStore(file).keep(SUBJECT, trial())
    # No file may grow past 100 bytes: as on a disk without room, SQLite's writes fail.
    done = subprocess.run([sys.executable, "-c", FULL, "100", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"the trials in {file} cannot be read or written" in done.stderr
    assert done.stderr.count("\n") == 1
    if there:
        assert TrialStore(file).trials(SUBJECT) == [trial()]
    assert not list(tmp_path.glob("*.damaged-*"))


READ_ONLY = """
import os, sys
from systolic.cli import main
from systolic.store import TrialStore
file = sys.argv[1]
main(["table", "show", "--store", file])  # all modules are loaded: the other user may not read them
if os.geteuid() == 0:
    os.setuid(65534)
assert main(["tune", "512,512,512", "--store", file, "--time-budget", "1"]) == 2
sys.exit(main(["table", "show", "--store", file]))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_read_only_is_noticed_before_the_work_and_can_be_read(what: str) -> None:
    # To root nothing is read-only: another user looks, who gets into no folder of pytest's.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = TrialStore(folder / "trials.sqlite")
        store.keep(SUBJECT, trial())
        store.file.chmod(0o444)
        folder.chmod(0o555 if what == "folder" else 0o777)
        script = [sys.executable, "-c", READ_ONLY, str(store.file)]
        done = subprocess.run(script, capture_output=True, text=True, check=False)
        folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert f"the trials in {store.file} cannot be read or written" in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout.count("1 product in") == 2


def test_a_locked_store_is_no_damage(store: TrialStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("systolic.store.database._BUSY_S", 0.1)
    with closing(sqlite3.connect(store.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="cannot be read or written: database is locked") as caught:
            store.keep(SUBJECT, trial())
        assert not isinstance(caught.value, StoreDamagedError)
        other.execute("ROLLBACK")
    assert len(store.trials(SUBJECT)) == 40


def test_all_or_nothing_is_kept(store: TrialStore) -> None:
    with pytest.raises(UntrustedError, match="simulated_us"):
        store.keep_all([(SUBJECT, [trial(16 * 50), trial(16 * 51, float("nan"))])])
    assert len(store.trials(SUBJECT)) == 40
    assert asdict(store.health())["trials"] == 40
