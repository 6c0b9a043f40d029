"""TPU machines that answer with garbage: hostile results, and a `gcloud` that fails, prints nonsense or is stopped."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import random
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_cases import CaseError, Section, Setting, damaged, mutated_json

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from fake_cloud import fake_cloud, interrupts

import systolic
from systolic.cli import main
from systolic.cloud import jobs
from systolic.cloud.errors import MachineError

_NAMES = (
    *("../outside", "/tmp/outside", "files/../../outside", "files//x", ".git/hooks/pre-commit", "conftest.py", "files"),
    *(
        "files/.git/config",
        "files/\x1b[2J",
        "files/\udcff",
        "files/" + "n" * 300,
        "exit_code/x",
        "files/a",
        "files/a/b",
    ),
)
_KINDS = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
_FAILURES: tuple[str, ...] = (
    "",
    "",
    "garbled",
    "lost",
    "forbidden",
    "signed_out",
    "quota",
    "taken",
    "twice",
    "interrupt",
)


def _archive(choose: random.Random) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", errors="surrogateescape") as members:
        for name in ("exit_code", "files/x", *choose.sample(_NAMES, choose.choice((0, 0, 1, 5)))):
            content = mutated_json(3, choose) if choose.random() < 0.3 else b"3\n"
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = choose.choice((0o644, 0o6777, 0))
            if name in _NAMES:
                member.type = choose.choice(_KINDS)
                member.linkname = choose.choice(("/etc/passwd", "../../outside", "exit_code"))
            members.addfile(member, io.BytesIO(content))
    archive = packed.getvalue()
    if choose.random() < 0.5:
        archive = damaged(archive, choose)
    original = gzip.compress(archive)
    return damaged(original, choose) if choose.random() < 0.2 else original


def _results(choose: random.Random, folder: Path, _setting: Setting) -> None:
    archive, results = folder / "results.tar.gz", folder / "results"
    archive.write_bytes(_archive(choose))
    results.mkdir()
    try:
        jobs.unpack(archive, results)
    except MachineError as error:
        if not str(error).isprintable():
            raise CaseError(f"a message is not printable: {str(error)!r}") from error
    if {path.name for path in folder.iterdir()} - {"results.tar.gz", "results"}:
        raise CaseError("something was written outside of the folder of results")
    if unknown := {path.name for path in results.iterdir()} - {"exit_code", "trials.sqlite", "files"}:
        raise CaseError(f"other names than results have were taken: {sorted(unknown)}")
    if links := [path for path in results.rglob("*") if path.is_symlink()]:
        raise CaseError(f"a link was made: {links[0]}")


def _runs(choose: random.Random, folder: Path, _setting: Setting) -> None:
    """Run a command on a machine whose gcloud fails at random, with results in the user's folder or a new one."""
    work = folder / "work"
    (work / "mine").mkdir(parents=True)
    (work / "mine" / "notes.txt").write_text("mine")
    package = folder / "systolic" / "__init__.py"
    package.parent.mkdir()
    package.touch()
    creates, deletes = choose.random() < 0.5, choose.random() < 0.5
    results = choose.choice((".", "mine", "new", "new/er"))
    options = [*(("--create",) if creates else ()), *(("--delete-after",) if deletes else ())]
    plan = {verb: choose.choices(_FAILURES, k=2) for verb in choose.sample(("describe", "create", "scp", "ssh"), 2)}
    plan["delete"] = choose.choices(("", "", "forbidden", "signed_out", "interrupt"))
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, interrupts(), contextlib.redirect_stderr(output), _silent_children():
        cloud = fake_cloud(folder / "cloud", patch)
        patch.setattr(systolic, "__file__", str(package))
        patch.chdir(work)
        if not creates:
            cloud.add("my-tpu")
        cloud.fail(**plan)
        code = main(["tpu", "run", "my-tpu", *options, "--results", results, "--", "chips", "--json", "x.json"])
    words = output.getvalue()
    case = f"{plan} {options} ended with {code}: {words!r}"
    if code not in (0, 1, 130) or "Traceback" in words:
        raise CaseError(case)
    if cloud.machines and not re.search(r"costs money until it is deleted: systolic tpu remove|COULD NOT BE", words):
        raise CaseError(f"a machine is left without a word: {case}")
    if ignored := [place.name for place in (work, work / "mine") if (place / ".gitignore").exists()]:
        raise CaseError(f"a .gitignore was written into {ignored[0]}, a folder of the user's: {case}")
    files = [path for path in (work / results / "my-tpu").rglob("*") if path.is_file() and path.name != ".gitignore"]
    if {path.name for path in files} not in (set(), {"x.json", "trials.sqlite"}) or (code == 0 and not files):
        raise CaseError(f"results are broken or missing: {case}")


@contextlib.contextmanager
def _silent_children() -> Iterator[None]:
    """Discard the terminal output of child processes."""
    saved_streams = [os.dup(stream) for stream in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        yield
    finally:
        for stream, copy in zip((1, 2), saved_streams, strict=True):
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nowhere)


SECTIONS = (
    Section(name="machines", tries="hostile results of a TPU machine", share=3, attempt=_results),
    Section(name="machine-runs", tries="runs on a TPU machine whose gcloud fails", share=1, attempt=_runs),
)
