"""Compiler flags of recorded operations whose times show another program than today's compiler makes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

from systolic.support.untrusted import read_json, structured


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFlags:
    """Flags with which operations of a chip are compiled as they were when their times were recorded."""

    chip: str
    ops: tuple[str, ...]
    flags: dict[str, str]
    reason: str


@functools.cache
def _all_flags() -> tuple[RecordedFlags, ...]:
    text = (resources.files(str(__package__)) / "recorded_flags.json").read_text(encoding="utf-8")
    return structured(read_json(text), tuple[RecordedFlags, ...])


def recorded_flags(chip: str, op: str) -> dict[str, str]:
    """Return the flags of a chip's operation, by name; none: it is compiled as it is today."""
    return {
        name: value
        for entry in _all_flags()
        if entry.chip == chip and op in entry.ops
        for name, value in entry.flags.items()
    }
