"""Record a worker's stage where its parent can read it after the worker has died or was killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

FOLDER_VARIABLE = "SYSTOLIC_WORKER_FOLDER"
STAGE_FILE = "stage.txt"

Stage = Literal[
    "importing", "tracing", "lowering", "compiling", "compiling again", "simulating", "reading", "interpreting"
]

# As the end of "it was stopped while …".
DOING: dict[Stage, str] = {
    "importing": "its module was being imported",
    "tracing": "the function was being traced",
    "lowering": "the function was being lowered",
    "compiling": "the TPU compiler was at work",
    "compiling again": "the TPU compiler was at work again, with a listing of each operation",
    "simulating": "the compiled program was being simulated",
    "reading": "the kernel's steps and index maps were being followed",
    "interpreting": "the kernel was being interpreted on the CPU",
}
# Stages in which code of the user's runs, and may not end or may end the process.
OF_THE_FUNCTION = ("importing", "tracing", "reading", "interpreting")


@contextmanager
def at_stage(stage: Stage, where: str = "") -> Iterator[None]:
    """Note that this worker is at `stage` while the block runs. Outside of a worker nothing happens.

    Args:
        stage: what it does.
        where: the user's line that it does this for, "file.py:12 in name", where no Python stack will show it.
    """
    global _noted
    before = _noted
    _noted = stage, where
    _write()
    try:
        yield
    finally:
        _noted = before
        _write()


def stage_in(folder: Path) -> tuple[Stage | None, str]:
    """Return the stage that the worker of `folder` is at, or was at when it died, and the source line noted with it."""
    try:
        text, _, where = (folder / STAGE_FILE).read_text().partition("\n")
    except OSError:
        return None, ""
    return next((stage for stage in get_args(Stage) if stage == text), None), where


def progress_in(folder: Path) -> str:
    """Return the stage of the worker of `folder`, and of a compilation the number of operations that have a listing."""
    stage, _ = stage_in(folder)
    if stage not in ("compiling", "compiling again"):
        return stage or "starting"
    with suppress(OSError):
        listings = sum(1 for _ in (folder / "dump").glob("*-??-final_bundles.txt"))
        return f"{stage}, {listings} operations so far"
    return stage


_noted: tuple[Stage, str] | None = None


def _write() -> None:
    if FOLDER_VARIABLE not in os.environ:
        return
    with suppress(OSError):  # a full disk, say: then the parent does not learn it
        text = "" if _noted is None else "\n".join(_noted)
        (Path(os.environ[FOLDER_VARIABLE]) / STAGE_FILE).write_text(text)
