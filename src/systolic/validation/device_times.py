"""Read device times of recorded operations from JSON lines, and draw samples of them.

A line is an object {op, chip, arguments, config, time_us, spread, samples}: an operation with its bound arguments and
tiles, and the median of `samples` device times. `spread` is their deviation over the median.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from systolic.support.printable import printable
from systolic.support.ranges import Amount, PositiveCount, Time
from systolic.support.regular_file import open_regular
from systolic.support.untrusted import UntrustedError, read_json, structured
from systolic.validation.published import PublishedFileError, PublishedRow
from systolic.validation.recorded_flags import recorded_flags

SUFFIX = ".jsonl"
SOURCE = "tokamax tuning tables"
_LONGEST_LINE = 1_000_000  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    op: str
    chip: str
    arguments: dict[str, Any]
    config: dict[str, Any]
    time_us: Time
    spread: Amount
    samples: PositiveCount


def read_device_times(path: Path) -> tuple[PublishedRow, ...]:
    """Return the rows of a file.

    Raises:
      PublishedFileError: the file cannot be read, or a line is not such a record.
    """
    name = printable(path.name)
    rows = []
    try:
        with open_regular(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
                if len(line) == _LONGEST_LINE:
                    raise PublishedFileError(f"{name}, line {number} has {_LONGEST_LINE:,} bytes or more")
                if line.strip():
                    rows.append(_row(line, number, f"{name}, line {number}"))
    except OSError as error:
        raise PublishedFileError(f"cannot read {printable(str(path))}: {error.strerror}") from error
    return tuple(rows)


def sampled(rows: Iterable[PublishedRow], count: int, seed: int) -> tuple[PublishedRow, ...]:
    """Return `count` rows of each chip and kind, in their order. A larger sample of a seed holds its smaller ones."""
    groups: dict[tuple[str, str], list[PublishedRow]] = {}
    for row in rows:
        groups.setdefault((row.chip, row.kind), []).append(row)
    chosen = [
        row
        for group in groups.values()
        for row in sorted(group, key=lambda row: _digest(f"sample {seed}", _identity(row)))[:count]
    ]
    return tuple(sorted(chosen, key=lambda row: row.line))


def only_kinds(rows: Sequence[PublishedRow], kinds: Collection[str]) -> tuple[PublishedRow, ...]:
    """Return the rows of these kinds; all rows if none is named."""
    return tuple(row for row in rows if not kinds or row.kind in kinds)


def for_fitting(row: PublishedRow) -> bool:
    """True for the half of the recorded operations that constants may be fitted to, by a hash of op and arguments.

    An operation is in the same half on every chip and with any tiles.
    """
    return int(_digest("view", [row.op, row.arguments])[:2], 16) % 2 == 0


def _identity(row: PublishedRow) -> list[Any]:
    """Return a row's identity within its chip and kind, so that another order of lines draws the same sample."""
    return [row.arguments, row.config] if row.arguments else [row.source, row.line]


def _digest(salt: str, value: Any) -> str:
    return hashlib.sha256(f"{salt} {json.dumps(value, sort_keys=True)}".encode()).hexdigest()


def _row(line: bytes, number: int, where: str) -> PublishedRow:
    try:
        record = structured(read_json(line), _Record)
    except UntrustedError as error:
        raise PublishedFileError(f"{where}: {error}") from error
    return PublishedRow(
        line=number,
        source=SOURCE,
        chip=record.chip,
        op=record.op,
        published_us=record.time_us,
        timing="device",
        kind=record.op,
        arguments=record.arguments,
        config=record.config,
        flags=recorded_flags(record.chip, record.op),
    )
