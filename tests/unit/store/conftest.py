"""A store with trials."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from trials import SUBJECT, trial

from systolic.store import TrialStore


@pytest.fixture
def store(tmp_path: Path) -> TrialStore:
    """Forty trials, in more than ten pages."""
    made = TrialStore(tmp_path / "trials.sqlite")
    made.keep_all([(SUBJECT, [trial(16 * number) for number in range(1, 41)])])
    with closing(sqlite3.connect(made.file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return made
