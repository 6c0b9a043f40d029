"""The store of trials: several writers, kills at any moment, damaged files, keys that name what they miss."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from trials import SUBJECT, trial

from systolic.store import StoreError, Trial, TrialStore


def test_what_is_kept_comes_back_fastest_first(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "folder" / "trials.sqlite")
    assert (store.trials(SUBJECT), store.winner(SUBJECT), store.subjects()) == ([], None, [])
    kept = [trial(128, 30.0), trial(256, 10.0), trial(384, None), Trial(config=None, status="ok", simulated_us=5.0)]
    for one in kept:
        store.keep(SUBJECT, one)
    assert store.trials(SUBJECT) == [kept[3], kept[1], kept[0], kept[2]]
    assert store.winner(SUBJECT) == kept[1]  # XLA's program is no kernel
    store.keep(SUBJECT, trial(256, 40.0))  # tried again
    assert store.winner(SUBJECT) == kept[0]
    assert store.subjects() == [SUBJECT]
    other = replace(SUBJECT, chip="v5e")
    assert store.trials(other) == []


def test_a_key_that_misses_says_which_part(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    assert store.nearest(SUBJECT) is None
    store.keep(replace(SUBJECT, chip="v5e", jax="0.9"), trial())
    store.keep(replace(SUBJECT, libtpu="0.0.41"), trial())
    found = store.nearest(SUBJECT)
    assert found is not None
    assert found[0].libtpu == "0.0.41"
    assert found[1] == ["libtpu: 0.0.41 in place of 0.0.42"]


@pytest.mark.parametrize("content", [b"my notes", b"x" * 5000])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mine.sqlite"
    file.write_bytes(content)
    for act in (TrialStore(file).subjects, lambda: TrialStore(file).keep(SUBJECT, trial())):
        with pytest.raises(StoreError, match="not a store of trials"):
            act()
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other:
        other.execute("CREATE TABLE things (name TEXT)")
        other.commit()
    before = (tmp_path / "other.sqlite").read_bytes()
    with pytest.raises(StoreError, match="not a store of trials"):
        TrialStore(tmp_path / "other.sqlite").keep(SUBJECT, trial())
    assert (file.read_bytes(), (tmp_path / "other.sqlite").read_bytes()) == (content, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.sqlite", "other.sqlite"]


def test_a_failure_takes_no_times_place(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    store.keep(SUBJECT, trial(128, None))
    store.keep(SUBJECT, trial(128, 10.0))
    store.keep(SUBJECT, trial(128, None))
    assert store.trials(SUBJECT) == [trial(128, 10.0)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("turn", range(3))
def test_many_begin_a_store_at_once(tmp_path: Path, turn: int) -> None:
    script = WRITER.format(folder=str(Path(__file__).parents[2] / "support")).replace(
        "while True:", "for _ in range(3):"
    )
    file = tmp_path / f"{turn}.sqlite"
    arguments = [[sys.executable, "-c", script, str(file), str(writer), "1"] for writer in range(4)]
    writers = [subprocess.Popen(one, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for one in arguments]
    said = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 4, said
    assert len(TrialStore(file).trials(SUBJECT)) == 12


def test_a_file_that_cannot_be_used_is_an_error_and_stays(tmp_path: Path) -> None:
    folder = tmp_path / "trials.sqlite"
    folder.mkdir()
    with pytest.raises(StoreError, match=r"trials\.sqlite"):
        TrialStore(folder).keep(SUBJECT, trial())
    newer = TrialStore(tmp_path / "newer.sqlite")
    newer.keep(SUBJECT, trial())
    with closing(sqlite3.connect(newer.file)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="another version"):
        newer.trials(SUBJECT)


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from trials import SUBJECT, trial
from systolic.store import TrialStore
store, writer = TrialStore(Path(sys.argv[1])), int(sys.argv[2])
number = int(sys.argv[3])
while True:
    store.keep(SUBJECT, trial(16 * (writer + 4 * number)))
    print(writer + 4 * number, flush=True)
    number += 1
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("rounds", [2, 10])
def test_kills_lose_nothing_that_was_kept(tmp_path: Path, rounds: int) -> None:
    """Four writers at once, killed at random moments: the file opens, and every trial that ended is in it."""
    store = TrialStore(tmp_path / "trials.sqlite")
    choose = random.Random(0)
    script = WRITER.format(folder=str(Path(__file__).parents[2] / "support"))
    kept: set[int] = set()
    starts = [1] * 4
    for _ in range(rounds):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", script, str(store.file), str(writer), str(starts[writer])],
                stdout=subprocess.PIPE,
                text=True,
            )
            for writer in range(4)
        ]
        for writer in writers:  # all are at work
            assert writer.stdout is not None
            kept.add(int(writer.stdout.readline()))
        for writer in choose.sample(writers, 4):
            time.sleep(choose.random() / 20)
            os.kill(writer.pid, signal.SIGKILL)
        for number, writer in enumerate(writers):
            assert writer.stdout is not None
            said = [int(line) for line in writer.stdout.read().split("\n")[:-1]]
            writer.wait()
            kept.update(said)
            starts[number] = max([starts[number], *(one // 4 for one in said)]) + 1
            writer.stdout.close()
    found = {one.config.tiles.tile_m // 16 for one in store.trials(SUBJECT) if one.config is not None}
    assert kept <= found
    assert len(found) <= len(kept) + 20  # each kill may hide one that was kept and not yet told


def test_what_was_measured_comes_first_and_is_not_lost(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    measured = replace(trial(128, 30.0), measured_us=36.0)
    for one in (measured, trial(256, 32.0), trial(128, 30.0)):
        store.keep(SUBJECT, one)
    assert store.trials(SUBJECT) == [measured, trial(256, 32.0)]
    assert store.winner(SUBJECT) == measured
