"""Ctrl-C as a terminal sends it, to the command and to its workers at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import systolic
from systolic.store import Subject, Trial, TrialStore

pytestmark = [
    pytest.mark.fresh_workers,
    pytest.mark.usefixtures("ctrl_c"),
    pytest.mark.skipif(sys.platform == "win32", reason="sends a signal to a group of processes"),
]
_WAIT_S = 120.0


def finished(store: TrialStore, subject: Subject) -> list[Trial]:
    """Trials of kernels that have a time: XLA's program is one too, and comes first."""
    return [trial for trial in store.trials(subject) if trial.config is not None and trial.time_us is not None]


@pytest.mark.exhaustive
def test_tune_prints_what_is_finished_keeps_it_and_says_how_to_go_on(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    subject = Subject.here(systolic.MatmulSpec.of(256, 256, 256, "bfloat16"), "v5e")
    arguments = ("tune", "256,256,256", "--chip", "v5e", "--exhaustive", "--workers", "1", "--store", str(store.file))
    with subprocess.Popen(
        [sys.executable, "-m", "systolic", *arguments],
        env=os.environ | {"SYSTOLIC_CACHE_DIR": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        end = time.monotonic() + _WAIT_S
        while not finished(store, subject) and time.monotonic() < end:
            time.sleep(0.1)
        os.killpg(command.pid, signal.SIGINT)
        out, err = command.communicate(timeout=_WAIT_S)
    assert finished(store, subject)
    assert command.returncode == 130
    assert "stopped by Ctrl-C" in out
    assert "the same command goes on" in err
    assert "Traceback" not in out + err
    assert [str(trial.config) for trial in finished(store, subject) if str(trial.config) not in out] == []
