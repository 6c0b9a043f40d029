"""Times that others measured on real TPUs, as a CSV file holds them.

A row is one product: where it was published, the chip, the program (`op`), sizes, dtypes, tiles, the time, and how it
was taken. `wall_clock` is the mean of repeated calls as Python saw them, with what the host needs to send one off;
`device` is the device's own time. The file is read with suspicion: a row that is not understood here would be a wrong
error there.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from systolic.untrusted import printable, shown

COLUMNS = ("source", "chip", "op", "m", "k", "n", "dtype_lhs", "dtype_rhs", "dtype_out")
COLUMNS += ("tile_m", "tile_k", "tile_n", "time_us", "timing")
_LONGEST_LINE = 100_000  # characters
_LARGEST_SIZE = 2**31  # a TPU counts with 32 bits


class PublishedFileError(ValueError):
    """A file of published times that cannot be read; the message names line and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One published time. Tiles are None where the file has none: the program has none, or nobody said."""

    line: int  # of the file, the header being 1
    source: str
    chip: str
    op: str
    m: int
    k: int
    n: int
    dtype_lhs: str
    dtype_rhs: str
    dtype_out: str
    tile_m: int | None
    tile_k: int | None
    tile_n: int | None
    published_us: float
    timing: str
    notes: str = ""


def read_published(path: Path) -> tuple[PublishedRow, ...]:
    """The rows of a CSV file with a header of at least `COLUMNS`; `notes` may follow, and others, which nobody reads.

    Raises:
      PublishedFileError: the file cannot be read, a column is missing, a line has more or fewer values than the header,
        or a line is no text, or a value is not the number that it should be.
    """
    name = printable(path.name)
    try:
        # What is no UTF-8 is read as halves of surrogate pairs, so that its line can be named.
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            return tuple(_rows(_lines(file, name), name))
    except OSError as error:
        raise PublishedFileError(f"cannot read {printable(str(path))}: {error.strerror}") from error


def _lines(file: TextIO, name: str) -> Iterator[str]:
    """The lines of a file, of which each is text and none without an end."""
    for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), ""), 1):
        if len(line) == _LONGEST_LINE:
            raise PublishedFileError(f"{name}, line {number} has {_LONGEST_LINE:,} characters or more")
        if not line.isascii() and any("\ud800" <= each <= "\udfff" for each in line):
            raise PublishedFileError(f"{name}, line {number} is no UTF-8 text")
        if not line.strip().replace("\t", "").isprintable():
            raise PublishedFileError(f"{name}, line {number} has a control character: {shown(line.strip())}")
        yield line


def _rows(file: Iterable[str], name: str) -> Iterator[PublishedRow]:
    reader = csv.reader(file, strict=True)
    try:
        header = [column.strip() for column in next(reader, [])]
        if missing := [column for column in COLUMNS if column not in header]:
            raise PublishedFileError(
                f"{name}, line 1: no column {', '.join(missing)}; there have to be {', '.join(COLUMNS)}"
            )
        for values in reader:
            where = f"{name}, line {reader.line_num}"
            if values and len(values) != len(header):
                raise PublishedFileError(f"{where} has {len(values)} values; the header has {len(header)}")
            if values:  # an empty line has none
                yield _row(dict(zip(header, map(str.strip, values), strict=True)), reader.line_num, where)
    except csv.Error as error:
        raise PublishedFileError(f"{name}, line {reader.line_num}: {error}") from error


def _row(values: Mapping[str, str], line: int, where: str) -> PublishedRow:
    def whole(column: str) -> int:
        text = values[column]
        digits = text.isascii() and text.isdecimal() and len(text) <= len(str(_LARGEST_SIZE))
        if not digits or not 1 <= int(text) < _LARGEST_SIZE:
            raise PublishedFileError(f"{where}: {column}={shown(text)} is no whole number of at least 1, below 2^31")
        return int(text)

    def tile(column: str) -> int | None:
        return whole(column) if values[column] else None

    return PublishedRow(
        line=line,
        source=values["source"],
        chip=values["chip"],
        op=values["op"],
        m=whole("m"),
        k=whole("k"),
        n=whole("n"),
        dtype_lhs=values["dtype_lhs"],
        dtype_rhs=values["dtype_rhs"],
        dtype_out=values["dtype_out"],
        tile_m=tile("tile_m"),
        tile_k=tile("tile_k"),
        tile_n=tile("tile_n"),
        published_us=_time_us(values["time_us"], where),
        timing=values["timing"],
        notes=values.get("notes", ""),
    )


def _time_us(text: str, where: str) -> float:
    try:
        time_us = float(text)
    except ValueError:
        time_us = math.nan
    if not (math.isfinite(time_us) and time_us > 0):
        raise PublishedFileError(f"{where}: time_us={shown(text)} is no time above 0")
    return time_us
