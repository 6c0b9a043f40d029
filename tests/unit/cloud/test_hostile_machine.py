"""A machine, or a gcloud, with a broken or hostile answer: one line, and nothing outside the folder of its job."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_cloud import FakeCloud, fake_cloud

import systolic
from systolic.cli import main
from systolic.cloud import GcloudError, ResultsError, gcloud, jobs, results
from systolic.cloud.machine import Machine, QueuedRequest
from systolic.untrusted import UntrustedError

Run = Callable[..., tuple[int, str, str]]
JOB = "20260501-101112-beef"
DEEP = "[" * 2000  # above Python's limit of recursion
OUTCOME = {"job": JOB, "command": ["chips"], "commit": "", "stage": "command", "exit_code": 0}


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCloud:
    """A machine on which a command has run."""
    made = fake_cloud(tmp_path / "cloud", monkeypatch)
    made.add("my-tpu")
    folder = made.home / "systolic-run"
    (folder / "jobs" / JOB).mkdir(parents=True)
    (folder / "remote.py").write_bytes(Path(results.__file__).with_name("remote.py").read_bytes())
    (folder / "current.json").write_text(json.dumps({"job": JOB}))
    for name in ("job.json", "log.txt", "done"):
        (folder / "jobs" / JOB / name).touch()
    return made


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that a hostile machine would like to write to."""
    folder = tmp_path / "work"
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    (folder / "conftest.py").write_text("mine = 1\n")
    (folder / "my-tpu").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(systolic, "__file__", str(tmp_path / "site-packages" / "systolic" / "__init__.py"))
    return folder


@pytest.fixture
def resumed(capfd: pytest.CaptureFixture[str], cloud: FakeCloud) -> Run:
    """`run --resume` of a machine that answers with these files."""

    def call(**files: Any) -> tuple[int, str, str]:
        content = files.pop("content", None)
        answer = cloud.home / "systolic-run" / "latest.tar.gz"
        answer.write_bytes(packed(files.pop("members", {}), **files) if content is None else content)
        code = main(("tpu", "run", "my-tpu", "--resume", "--results", "."))
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def packed(members: dict[str, bytes | tarfile.TarInfo], outcome: Any = OUTCOME) -> bytes:
    """An archive; where a member's content is an entry, it is taken as it is."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        text = json.dumps(outcome).encode() if not isinstance(outcome, bytes) else outcome
        for name, content in {"run.json": text, **members}.items():
            entry = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            entry.name = name
            if isinstance(content, bytes):
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            else:
                archive.addfile(entry)
    return held.getvalue()


def everything(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".gitignore"
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *[
            ({"job": job}, "job=")
            for job in ("..", ".", "", "../..", "/tmp/x", ".git", "conftest.py", f"{JOB}/..", f"{JOB}\n", "\x1b[2J")
        ],
        *[({"job": job}, "job: ") for job in (5, None, [JOB], {}, True, "\ud800")],
        *[({"exit_code": code}, "exit_code") for code in ("0", None, True, 10**400, 1.0, 256)],
        ({"stage": "[/bold]"}, "stage: '"),
        ({"stage": 5}, "stage: 5"),
        ({"command": "chips"}, "command: "),
        ({"more": 1}, "'more' is not known"),
    ],
)
def test_an_outcome_that_is_none_is_one_line(resumed: Run, work: Path, change: dict[str, Any], said: str) -> None:
    before = everything(work)
    hooks = {".git/hooks/pre-commit": b"evil", "conftest.py": b"evil", "files/.git/hooks/pre-commit": b"evil"}
    code, out, err = resumed(outcome={**OUTCOME, **change}, members=hooks)
    assert (code, out) == (1, "")
    (line,) = (line for line in err.splitlines() if line.startswith("systolic: "))
    assert said in line
    assert "nothing of them was placed" in line
    assert line.isprintable()
    assert everything(work) == before


@pytest.mark.parametrize(
    "text",
    [b"", b"5", b"null", DEEP.encode(), b"{}", b"\xff", b'{"job": "x", "job": "y"}', json.dumps([OUTCOME]).encode()],
)
def test_a_broken_outcome_is_one_line(resumed: Run, work: Path, text: bytes) -> None:
    before = everything(work)
    code, out, err = resumed(outcome=text)
    assert (code, out) == (1, "")
    assert sum("run.json" in line for line in err.splitlines()) == 1
    assert everything(work) == before


def entry(**fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


HOSTILE: dict[str, bytes | tarfile.TarInfo] = {
    "../outside": b"evil",
    "../../conftest.py": b"evil",
    "/tmp/systolic-outside": b"evil",
    "files/../../conftest.py": b"evil",
    "conftest.py": b"evil",
    ".git/hooks/pre-commit": b"evil",
    "files/.git/hooks/pre-commit": b"evil",
    "files/sub/.GIT/config": b"evil",
    "files": b"evil",
    "files//two": b"evil",
    "./stdout.txt": b"evil",
    "run.json/x": b"evil",
    f"files/{'n' * 300}": b"evil",
    "files/link": entry(type=tarfile.SYMTYPE, linkname="/etc"),
    "files/link/passwd": b"harmless",
    "files/hard": entry(type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "files/device": entry(type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    "files/pipe": entry(type=tarfile.FIFOTYPE),
    "files/folder": entry(type=tarfile.DIRTYPE, mode=0o777),
}


def test_only_results_are_taken_and_only_into_the_jobs_folder(resumed: Run, work: Path) -> None:
    before = everything(work)
    code, out, err = resumed(
        members={
            **HOSTILE,
            "files/in side.txt": b"ok",
            "files/clear \x1b[2J\nscreen.txt": b"ok",
            "files/\udcff.txt": b"ok",
            "stdout.txt": b"said\n",
            "files/run": entry(mode=0o6777),
        }
    )
    assert (code, out) == (0, "said\n")
    after = everything(work)
    assert {name: after[name] for name in before} == before
    job = work / "my-tpu" / JOB
    new = {os.fsencode(name) for name in set(after) - set(before)}
    assert new == {
        os.fsencode(f"my-tpu/{JOB}/{name}")
        for name in (
            "run.json",
            "stdout.txt",
            "files/in side.txt",
            "files/clear \x1b[2J\nscreen.txt",
            "files/\udcff.txt",
            "files/link/passwd",
            "files/run",
        )
    }
    assert not any(path.is_symlink() for path in job.rglob("*"))
    assert not (job / "files" / "run").stat().st_mode & 0o6111
    # Names are shown without what a terminal would take for a command, and what was left out is said.
    assert all(line.isprintable() for line in err.splitlines())
    assert "clear \\x1b[2J\\nscreen.txt" in err
    assert "not taken from the machine: '../outside': is no name of a result" in err
    assert f"not taken from the machine: {len(HOSTILE) - 1 - 5} more" in err
    assert not Path("/tmp/systolic-outside").exists()


def left_out(tmp_path: Path, content: bytes) -> tuple[str, ...]:
    (tmp_path / "a.tar.gz").write_bytes(content)
    (tmp_path / "there").mkdir()
    return results.unpack(tmp_path / "a.tar.gz", tmp_path / "there")


def test_each_reason_to_leave_something_out(tmp_path: Path) -> None:
    found = dict(line.rsplit(": ", 1) for line in left_out(tmp_path, packed(HOSTILE)))
    assert len(found) == len(HOSTILE) - 1
    assert found["'files/.git/hooks/pre-commit'"] == "git would take it for its own"
    assert found["'files/device'"] == found["'files/hard'"] == "is no plain file"
    assert found["'run.json/x'"] == found["'files//two'"] == "is no name of a result"


@pytest.mark.parametrize("size", [-512, -1, 2**33, 2**62])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE])
def test_sizes_that_cannot_be_end_at_once(resumed: Run, work: Path, size: int, kind: bytes) -> None:
    """A header of gigabytes would fill the memory, a size below 0 has sent `tarfile` round in circles."""
    before = everything(work)
    header = entry(name="files/x", type=kind, size=0).tobuf(tarfile.GNU_FORMAT)
    field = (size if size >= 0 else 256**12 + size).to_bytes(12, "big")
    field = bytes([field[0] | 0x80]) + field[1:]
    header = header[:124] + field + b" " * 8 + header[156:]
    header = header[:148] + f"{sum(header):06o}\0 ".encode() + header[156:]
    code, _, err = resumed(content=gzip.compress(header + b"\0" * 10_240))
    assert code == 1
    assert "systolic: the results that the machine sent" in err
    assert everything(work) == before


def test_a_bomb_is_not_unpacked(resumed: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_MOST_BYTES", 2**20)
    code, _, err = resumed(members={f"files/{number}": b"\0" * 2**19 for number in range(4)})
    assert code == 1
    assert "more than 1,048,576 bytes" in err
    assert not list((work / "my-tpu").iterdir())
    monkeypatch.setattr(results, "_MOST_FILES", 3)
    assert "more than 3 files" in resumed(members={f"files/{number}": b"" for number in range(4)})[2]


def test_broken_archives_are_one_line(tmp_path: Path) -> None:
    sound = packed({"files/x.json": b"{}" * 500, "stdout.txt": b"said", "files/\udcff": b"y"})
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
        try:
            left_out(folder, gzip.compress(held) if number % 2 else bytes(held))
            results.read_outcome(folder / "there", JOB)
        except ResultsError as error:
            said = str(error)
            assert said.isprintable(), said
        assert sorted(path.name for path in folder.iterdir()) == ["a.tar.gz", "there"]
        assert {path.name for path in (folder / "there").iterdir()} <= {"run.json", "stdout.txt", "log.txt", "files"}


def test_results_are_not_placed_behind_a_link(resumed: Run, work: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (work / "my-tpu" / JOB).symlink_to(tmp_path / "elsewhere")
    assert "is a link" in resumed(members={"files/x": b"x"})[2]
    (work / "my-tpu" / JOB).unlink()
    (work / "my-tpu" / JOB).mkdir()
    (work / "my-tpu" / JOB / "files").symlink_to(tmp_path / "elsewhere")
    assert "behind a link" in resumed(members={"files/x": b"x"})[2]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_results_of_another_job_than_asked_for(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(OUTCOME))
    assert results.read_outcome(tmp_path, JOB) == results.read_outcome(tmp_path, "")
    with pytest.raises(ResultsError, match="is not 20260501-101112-dead"):
        results.read_outcome(tmp_path, "20260501-101112-dead")
    assert results._JOB.fullmatch(jobs.new_job())


@pytest.mark.parametrize(
    "text",
    [
        *("5", "null", "[]", '"x"', "{", DEEP, '{"state": 5}', '{"state": "\\u001b[2J"}', '{"name": ["x"]}'),
        *('{"networkEndpoints": 5}', '{"queuedResource": "a/--force"}', '{"schedulingConfig": [1]}', "[5]", "NaN"),
        '{"acceleratorType": "\\ud800"}',
    ],
)
def test_an_answer_of_gcloud_that_is_no_machine_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    monkeypatch.setattr(gcloud, "call", lambda arguments, name="", **_: f"[{text}]" if "list" in arguments else text)
    for ask in (lambda: gcloud.machine(jobs.Address(name="x")), lambda: gcloud.machines("", "")):
        with pytest.raises(GcloudError, match="something else than asked for") as caught:
            ask()
        assert str(caught.value).isprintable()
    assert main(["tpu", "list"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "record",
    [5, [], {"tpu": 5}, {"tpu": {"nodeSpec": 5}}, {"tpu": {"nodeSpec": [5]}}, {"state": "READY"}, {"name": None}],
)
def test_a_record_that_is_no_request(record: Any) -> None:
    with pytest.raises(UntrustedError):
        QueuedRequest.of(record)
    with pytest.raises(UntrustedError):
        Machine.of({"queuedResource": "x/-rf", "name": record})
