"""CI chooses a Python for the newest stack that runs and is new enough."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "newest-python"
RUNS, SHIM = "exit 0", "echo 'no such version' >&2; exit 127"


def put(file: Path, body: str) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """Provide the commands that the script needs, and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "env"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def newest(bin_folder: Path) -> tuple[int, str]:
    environment = {"PATH": str(bin_folder), "PYENV_ROOT": str(bin_folder.parent / "pyenv"), "HOME": "/nowhere"}
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


def test_there_is_none(bin_folder: Path) -> None:
    put(bin_folder / "python3.11", RUNS)
    assert newest(bin_folder) == (1, "")


def test_a_shim_that_runs_nothing_is_none(bin_folder: Path) -> None:
    put(bin_folder / "python3.14", SHIM)
    assert newest(bin_folder) == (1, "")
    in_pyenv = put(bin_folder.parent / "pyenv" / "versions" / "3.13.2" / "bin" / "python", RUNS)
    assert newest(bin_folder) == (0, in_pyenv)


def test_the_newer_one_is_taken(bin_folder: Path) -> None:
    put(bin_folder / "python3.13", RUNS)
    newer = put(bin_folder / "python3.14", RUNS)
    assert newest(bin_folder) == (0, newer)
