"""What a worker is doing, written where its parent still finds it when the worker has died or has to be killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

FOLDER_VARIABLE = "SYSTOLIC_WORKER_FOLDER"
STAGE_FILE = "stage.txt"

Stage = Literal["importing", "tracing", "lowering", "compiling", "simulating", "reading", "interpreting"]

# As the end of "it was stopped while …".
DOING: dict[Stage, str] = {
    "importing": "its module was being imported",
    "tracing": "the function was being traced",
    "lowering": "the function was being lowered",
    "compiling": "the TPU compiler was at work",
    "simulating": "the compiled program was being simulated",
    "reading": "the kernel's steps and index maps were being followed",
    "interpreting": "the kernel was being interpreted on the CPU",
}
# Stages in which Python code of the user's runs, and may not end or may end the process.
OF_THE_FUNCTION = ("importing", "tracing", "reading", "interpreting")


@contextmanager
def at_stage(stage: Stage) -> Iterator[None]:
    """Note that this worker is at `stage` while the block runs. Outside of a worker nothing happens."""
    before = _noted
    _note(stage)
    try:
        yield
    finally:
        _note(before)


def stage_in(folder: Path) -> Stage | None:
    """The stage that the worker of `folder` is at, or was at when it died."""
    try:
        text = (folder / STAGE_FILE).read_text()
    except OSError:
        return None
    return next((stage for stage in get_args(Stage) if stage == text), None)


_noted: Stage | None = None


def _note(stage: Stage | None) -> None:
    global _noted
    _noted = stage
    if FOLDER_VARIABLE not in os.environ:
        return
    with suppress(OSError):  # a full disk, say: then the parent does not learn it
        (Path(os.environ[FOLDER_VARIABLE]) / STAGE_FILE).write_text(stage or "")
