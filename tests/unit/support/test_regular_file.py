"""Every reader of the user's files refuses paths that are not regular files at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import systolic
from systolic.chips.constants import load_constants
from systolic.cli import main
from systolic.compiler.named import check_function_name, named_argument
from systolic.store import StoreError, TrialStore
from systolic.store.exported import read_trials_file
from systolic.support.regular_file import NoRegularFileError, open_regular, read_regular
from systolic.validation.published import read_published

KINDS = ["pipe", "folder", "socket", "device", "loop"]

LOADERS: dict[str, Callable[[Path], Any]] = {
    "program": systolic.load_program,
    "constants": load_constants,
    "trials": read_trials_file,
    "store": lambda path: TrialStore(path).subjects(),
    "published": read_published,
    "array": lambda path: named_argument(str(path)),
    "function": lambda path: check_function_name(f"{path}:f"),
}


def special(kind: str, folder: Path, name: str) -> Path:
    path = folder / name
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as opened:
                opened.bind(os.path.relpath(path))  # its name has to be short
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            path.symlink_to(path)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_refused_at_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = special(kind, tmp_path, "a")
    with pytest.raises(OSError, match="levels of symbolic links" if kind == "loop" else "not a regular file") as caught:
        read_regular(path)
    assert isinstance(caught.value, NoRegularFileError) == (kind != "loop")


@pytest.mark.parametrize("loader", LOADERS)
def test_a_pipe_is_not_waited_for(loader: str, tmp_path: Path) -> None:
    name = {"array": "a.npy", "function": "a.py"}.get(loader, "a")
    path = special("pipe", tmp_path, name)
    with pytest.raises((ValueError, RuntimeError), match=r"regular file|is not a file"):
        LOADERS[loader](path)


@pytest.mark.parametrize(
    "arguments",
    [["compare", "a", "a"], ["simulate", "--program", "a"], ["table", "diff", "a", "a"], ["plan", "--spec", "a"]],
)
def test_nor_by_a_command(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    special("pipe", tmp_path, "a")
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_nor_a_pipe_beside_a_store(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    assert store.subjects() == []
    for ending in ("-journal", "-wal", ".lock"):
        folder = tmp_path / ending.strip("-.")
        folder.mkdir()
        special("pipe", folder, f"trials.sqlite{ending}")
        with pytest.raises(StoreError, match="regular file"):
            TrialStore(folder / "trials.sqlite").check_writable()


def test_a_regular_file_and_a_link_to_one_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert read_regular(tmp_path / "b") == b"abc"
    with open_regular(tmp_path / "a") as file:
        assert file.read(2) == b"ab"
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")
    with pytest.raises(OSError, match="no file can have this name"):
        read_regular(tmp_path / "a\0b")
