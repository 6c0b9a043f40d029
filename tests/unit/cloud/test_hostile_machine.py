"""A machine that sends broken or hostile results: one line, and nothing outside the folder that they go to."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from systolic.cloud import jobs
from systolic.cloud.errors import MachineError

Members = dict[str, bytes | tarfile.TarInfo]


def packed(members: Members) -> bytes:
    """Pack an archive; a member whose content is an entry is taken as it is."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members.items():
            member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.name = name
            if isinstance(content, bytes):
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return held.getvalue()


def entry(**fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def unpack(tmp_path: Path, content: bytes) -> tuple[int, Path]:
    (tmp_path / "a.tar.gz").write_bytes(content)
    (tmp_path / "results").mkdir(exist_ok=True)
    return jobs.unpack(tmp_path / "a.tar.gz", tmp_path / "results"), tmp_path / "results"


def refused(tmp_path: Path, content: bytes) -> str:
    with pytest.raises(MachineError, match="none of them is kept") as caught:
        unpack(tmp_path, content)
    assert str(caught.value).isprintable()
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar.gz", "results"}
    return str(caught.value)


def test_results_are_unpacked(tmp_path: Path) -> None:
    names = ("files/in side.txt", "files/clear \x1b[2J\nscreen.txt", "files/\udcff.txt", "files/a/b", "trials.sqlite")
    members: Members = dict.fromkeys(names, b"ok")
    code, folder = unpack(tmp_path, packed({**members, "files/run": entry(mode=0o6777), "exit_code": b"3\n"}))
    assert code == 3
    names_there = {os.fsencode(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names_there == {*map(os.fsencode, names), b"files/run"}
    assert not (folder / "files" / "run").stat().st_mode & 0o6022


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("../outside", b"evil"),
        ("/tmp/systolic-outside", b"evil"),
        ("files/../../conftest.py", b"evil"),
        ("conftest.py", b"evil"),
        (".git/hooks/pre-commit", b"evil"),
        ("files/sub/.GIT/config", b"evil"),
        ("files", b"evil"),
        ("exit_code/x", b"evil"),
        (f"files/{'n' * 300}", b"evil"),
        ("files/\x1b[2J", entry(type=tarfile.SYMTYPE, linkname="/etc")),
        ("files/hard", entry(type=tarfile.LNKTYPE, linkname="/etc/passwd")),
        ("files/device", entry(type=tarfile.CHRTYPE, devmajor=1, devminor=3)),
        ("files/pipe", entry(type=tarfile.FIFOTYPE)),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, name: str, content: bytes | tarfile.TarInfo) -> None:
    refused(tmp_path, packed({"exit_code": b"0\n", "files/x": b"ok", name: content}))
    assert not Path("/tmp/systolic-outside").exists()


@pytest.mark.parametrize("code", [None, b"", b"no", b"256", b"-1", b"9" * 5000, b"\xff"])
def test_an_exit_code_that_is_none_is_refused(tmp_path: Path, code: bytes | None) -> None:
    refused(tmp_path, packed({"files/x": b"ok"} if code is None else {"exit_code": code}))


@pytest.mark.parametrize(
    "content", [b"", b"Updates are available\n", gzip.compress(b"Updates are available\n", mtime=0)]
)
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    refused(tmp_path, content)


@pytest.mark.parametrize("size", [-512, -1, 2**33, 2**62])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE])
def test_sizes_that_cannot_be_end_at_once(tmp_path: Path, size: int, kind: bytes) -> None:
    """A size below 0 has sent `tarfile` round in circles."""
    header = entry(name="files/x", type=kind, size=0).tobuf(tarfile.GNU_FORMAT)
    field = (size if size >= 0 else 256**12 + size).to_bytes(12, "big")
    header = header[:124] + bytes([field[0] | 0x80]) + field[1:] + b" " * 8 + header[156:]
    header = header[:148] + f"{sum(header):06o}\0 ".encode() + header[156:]
    refused(tmp_path, gzip.compress(header + b"\0" * 10_240))


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_MAX_BYTES", 2**20)
    said = refused(tmp_path, packed({f"files/{number}": b"\0" * 2**19 for number in range(4)}))
    assert "more than 1,048,576 bytes" in said


def test_broken_archives_are_one_line(tmp_path: Path) -> None:
    sound = packed({"files/x.json": b"{}" * 500, "exit_code": b"0", "files/\udcff": b"y"})
    choose = random.Random(15)
    plain = gzip.decompress(sound)
    for number in range(300):
        held = bytearray(plain if number % 2 else sound)
        for _ in range(choose.choice((1, 3, 30))):
            held[choose.randrange(len(held))] = choose.randrange(256)
        if number % 5 == 0:
            del held[choose.randrange(len(held)) :]
        folder = tmp_path / str(number)
        folder.mkdir()
        with contextlib.suppress(MachineError):
            unpack(folder, gzip.compress(held) if number % 2 else bytes(held))
        assert {path.name for path in folder.iterdir()} == {"a.tar.gz", "results"}
        assert {path.name for path in (folder / "results").iterdir()} <= {"exit_code", "trials.sqlite", "files"}
