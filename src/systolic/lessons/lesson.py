"""What a lesson hands over to be shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """The facts of one lesson, computed when its `lesson()` was called.

    `ok` says whether everything that the lines claim came out so.
    """

    name: str
    title: str
    lines: tuple[str, ...]
    rows: tuple[Mapping[str, object], ...]  # one record a line of the table, snake_case keys with units
    ok: bool
