"""The command line, called as a function; and `systolic tpu` with a gcloud that is not there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_cloud import FakeCloud, fake_cloud, interrupts

import systolic
from systolic.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Gives a command's exit code, its output and its errors."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def tpu(run: Run) -> Iterator[Run]:
    """Run `systolic tpu` in the same way."""
    with interrupts():
        yield lambda *arguments: run("tpu", *arguments)


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCloud:
    return fake_cloud(tmp_path / "cloud", monkeypatch)


@pytest.fixture
def tpu_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's project; and a small package in place of systolic's."""
    folder = tmp_path / "work"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "mine.py").write_text("x = 1\n")
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    monkeypatch.chdir(folder)
    package = tmp_path / "site-packages" / "systolic" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.touch()
    monkeypatch.setattr(systolic, "__file__", str(package))
    return folder
