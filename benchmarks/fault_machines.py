"""Results that a hostile or broken machine sends: known names alone are taken, into the job's folder alone."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path

from fault_cases import CaseError, Section, Setting, damaged, mutated_json

from systolic.cloud import ResultsError, results

_JOB = "20260501-101112-0a1b"
_OUTCOME = {"job": _JOB, "command": ["chips"], "commit": "0" * 40, "stage": "command", "exit_code": 0}
_NAMES = (
    *("../outside", "/tmp/outside", "files/../../outside", "files//x", ".git/hooks/pre-commit", "conftest.py", "files"),
    *("files/.git/config", "files/\x1b[2J", "files/\udcff", "files/" + "n" * 300, "run.json/x", "files/a", "files/a/b"),
)
_KINDS = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
_TAKEN = {"run.json", "stdout.txt", "log.txt", "files"}


def _archive(choose: random.Random) -> bytes:
    packed = io.BytesIO()
    run = mutated_json(_OUTCOME, choose) if choose.random() < 0.5 else json.dumps(_OUTCOME).encode()
    with tarfile.open(fileobj=packed, mode="w", errors="surrogateescape") as members:
        for name in ("run.json", "stdout.txt", *choose.sample(_NAMES, choose.randrange(6))):
            content = run if name == "run.json" else b"said\n"
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = choose.choice((0o644, 0o6777, 0))
            if name in _NAMES:
                member.type = choose.choice(_KINDS)
                member.linkname = choose.choice(("/etc/passwd", "../../outside", "run.json"))
            members.addfile(member, io.BytesIO(content))
    held = packed.getvalue()
    if choose.random() < 0.5:
        held = damaged(held, choose)
    whole = gzip.compress(held)
    return damaged(whole, choose) if choose.random() < 0.2 else whole


def _results(choose: random.Random, folder: Path, _setting: Setting) -> None:
    archive, unpacked, target = folder / "results.tar.gz", folder / "unpacked", folder / "job"
    archive.write_bytes(_archive(choose))
    unpacked.mkdir()
    try:
        left_out = results.unpack(archive, unpacked)
        results.read_outcome(unpacked, _JOB)
        results.place(unpacked, target)
    except ResultsError as error:
        left_out = (str(error),)
    if unprintable := [line for line in left_out if not line.isprintable()]:
        raise CaseError(f"a message is not printable: {unprintable[0]!r}")
    if {each.name for each in folder.iterdir()} - {"results.tar.gz", "unpacked", "job"}:
        raise CaseError("something was written outside of the job's folder")
    for place in (unpacked, target):
        found = {each.name for each in place.iterdir()} if place.exists() else set()
        if found - _TAKEN:
            raise CaseError(f"other names than results have were taken: {sorted(found - _TAKEN)}")
        if links := [each for each in place.rglob("*") if each.is_symlink()]:
            raise CaseError(f"a link was made: {links[0]}")


SECTIONS = (Section(name="machines", tries="hostile results of a TPU machine", share=3, attempt=_results),)
