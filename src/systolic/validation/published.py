"""Read published times of real TPUs from a CSV file.

A row is one program: its source, the chip, what ran (`op`), sizes, dtypes, tiles, the time, and how it was measured.
`wall_clock` is the mean of repeated calls in Python, with the host's dispatch; `device` is the device's own time, as is
`bandwidth-derived`, which comes from a published rate. The file is checked strictly: a misread row would give a wrong
error.

Three forms of file are known by their columns: products with three columns of tiles; operations of several kinds; and
rows of tokamax' tuning cache of ragged products, whose group sizes may be in a file NAME_groups.json next to NAME.csv.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from systolic.chips import FlagError, checked_flags
from systolic.support.call_errors import WrongCallError
from systolic.support.printable import printable
from systolic.support.regular_file import open_regular
from systolic.support.untrusted import shown
from systolic.validation.group_sizes import GroupSizes, GroupSizesError
from systolic.validation.stated_flags import stated_flags

COLUMNS = ("source", "chip", "op", "m", "k", "n", "dtype_lhs", "dtype_rhs", "dtype_out")
COLUMNS += ("tile_m", "tile_k", "tile_n", "time_us", "timing")
_OF_SEVERAL_KINDS = ("kind", *(name for name in COLUMNS if not name.startswith("tile_")))
_RAGGED = ("chip", "kind", "m", "k", "n", "groups", "group_sizes", "tile_m", "tile_k", "tile_n")
_RAGGED += ("input_buffer_count", "time_us", "date")
COLLECTIVE = "collective"
_DEVICE_BYTES = re.compile(r"\b(\d{1,15}) bytes\b", re.ASCII)
_DEVICE_ARRAY = re.compile(r"\b(f32|bf16)\[(\d{1,10}(?:,\d{1,10}){0,5})\]", re.ASCII)
_LONGEST_LINE = 100_000  # characters
_LARGEST_SIZE = 2**31  # a TPU counts with 32 bits
_LARGEST_COPY = 2**40  # elements
_SHOWN_ARRAYS = 3  # arrays of a recorded operation in a message

RAGGED_SOURCE = "openxla/tokamax tuning cache, ragged_dot"


class PublishedFileError(WrongCallError, ValueError):
    """A file of published times cannot be read; the message names line and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One published time. None and "" are missing values: the program has none, or the source does not state it."""

    line: int  # in the file; the header is line 1
    source: str
    chip: str
    op: str
    m: int | None = None
    k: int | None = None
    n: int | None = None  # columns; the elements of a copy
    dtype_lhs: str = ""
    dtype_rhs: str = ""
    dtype_out: str = ""
    tile_m: int | None = None
    tile_k: int | None = None
    tile_n: int | None = None
    published_us: float
    timing: str
    notes: str = ""
    # "xla product", "pallas product", "ragged fwd", "copy", "attention", "collective": programs with similar errors.
    kind: str = "pallas product"
    flags: Mapping[str, str] = field(default_factory=dict)  # compiler flags that the row or its source states
    batch: str = ""  # repetitions, in the source's words
    stated_tiles: str = ""  # in the source's words, where they are not three numbers
    # Number of groups of a ragged or grouped product, and the name of their sizes in its file.
    grouping: str = ""
    group_sizes: tuple[int, ...] = ()  # rows of each group
    input_buffer_count: int | None = None  # a ragged kernel's
    date: str = ""  # date of the compiler, if the form of a program depends on it
    topology: str = ""  # the slice, or the machine, in the source's words
    shape_note: str = ""  # the arrays, in the source's words
    arguments: Mapping[str, Any] = field(default_factory=dict)  # a recorded operation's, by name; see `device_times`
    config: Mapping[str, Any] = field(default_factory=dict)  # a recorded operation's tiles

    @property
    def sizes(self) -> str:
        """m/k/n, or the known ones; for a collective, each device's sizes; for a recorded operation, its arrays."""
        if self.arguments:
            arrays = [value for value in self.arguments.values() if isinstance(value, str) and value.endswith("]")]
            return " ".join(arrays[:_SHOWN_ARRAYS])
        if self.device_bytes is not None:
            return f"{self.device_bytes:,} B"
        return "/".join(str(size) for size in (self.m, self.k, self.n) if size is not None)

    @property
    def device_bytes(self) -> int | None:
        """Bytes of each device's part of a collective's operand, if the note on arrays states them."""
        if self.kind != COLLECTIVE:
            return None
        if match := _DEVICE_BYTES.search(self.shape_note):
            return int(match[1])
        if match := _DEVICE_ARRAY.search(self.shape_note):
            return math.prod(map(int, match[2].split(","))) * {"f32": 4, "bf16": 2}[match[1]]
        return None


def read_published(path: Path) -> tuple[PublishedRow, ...]:
    """Return the rows of a CSV file in one of the three forms; other columns are ignored.

    `notes` and `software` are searched for compiler flags if there is no column `flags`.

    Raises:
      PublishedFileError: the file cannot be read, a column is missing, a line has more or fewer values than the header,
        or a line is not text, or a value is not what it should be.
    """
    name = printable(path.name)
    groups = GroupSizes(path.with_name(f"{path.stem}_groups.json"))
    try:
        # Bytes that are not UTF-8 are read as halves of surrogate pairs, so that their line can be named.
        with TextIOWrapper(open_regular(path), newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            return tuple(_rows(_lines(file, name), name, groups))
    except OSError as error:
        raise PublishedFileError(f"cannot read {printable(str(path))}: {error.strerror}") from error


def _lines(file: TextIO, name: str) -> Iterator[str]:
    """Yield the lines of a file; raise if one is too long or not text."""
    for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), ""), 1):
        if len(line) == _LONGEST_LINE:
            raise PublishedFileError(f"{name}, line {number} has {_LONGEST_LINE:,} characters or more")
        if not line.isascii() and any("\ud800" <= letter <= "\udfff" for letter in line):
            raise PublishedFileError(f"{name}, line {number} is not UTF-8 text")
        if not line.strip().replace("\t", "").isprintable():
            raise PublishedFileError(f"{name}, line {number} has a control character: {shown(line.strip())}")
        yield line


def _rows(file: Iterable[str], name: str, groups: GroupSizes) -> Iterator[PublishedRow]:
    reader = csv.reader(file, strict=True)
    try:
        header = [column.strip() for column in next(reader, [])]
        columns, read = _form(header)
        if missing := [column for column in columns if column not in header]:
            raise PublishedFileError(
                f"{name}, line 1: no column {', '.join(missing)}; there have to be {', '.join(columns)}"
            )
        for values in reader:
            where = f"{name}, line {reader.line_num}"
            if values and len(values) != len(header):
                raise PublishedFileError(f"{where} has {len(values)} values; the header has {len(header)}")
            if values:  # an empty line has none
                cells = _Cells(dict(zip(header, map(str.strip, values), strict=True)), reader.line_num, where)
                yield read(cells, groups)
    except csv.Error as error:
        raise PublishedFileError(f"{name}, line {reader.line_num}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Cells:
    values: Mapping[str, str]
    line: int
    where: str

    def text(self, column: str) -> str:
        return self.values.get(column, "")

    def whole(self, column: str, below: int = _LARGEST_SIZE) -> int:
        text = self.text(column)
        digits = text.isascii() and text.isdecimal() and len(text) <= len(str(below))
        if not digits or not 1 <= int(text) < below:
            raise PublishedFileError(
                f"{self.where}: {column}={shown(text)} is not an integer of at least 1, below "
                f"2^{below.bit_length() - 1}"
            )
        return int(text)

    def whole_or_none(self, column: str, below: int = _LARGEST_SIZE) -> int | None:
        return self.whole(column, below) if self.text(column) else None

    def time_us(self) -> float:
        try:
            time_us = float(self.values["time_us"])
        except ValueError:
            time_us = math.nan
        if not (math.isfinite(time_us) and time_us > 0):
            raise PublishedFileError(f"{self.where}: time_us={shown(self.values['time_us'])} is not a time above 0")
        return time_us

    def flags(self) -> dict[str, str]:
        """Return the flags of the column `flags`, else of `software` and `notes`; NAME=VALUE with spaces between."""
        pairs = [word.partition("=") for word in self.text("flags").split()]
        try:
            flags = checked_flags({name: value for name, _, value in pairs})
        except FlagError as error:
            raise PublishedFileError(f"{self.where}: flags={shown(self.text('flags'))}: {error}") from error
        return flags or stated_flags(f"{self.text('software')}\n{self.text('notes')}")


def _form(header: Iterable[str]) -> tuple[tuple[str, ...], Callable[[_Cells, GroupSizes], PublishedRow]]:
    """Return the required columns of a file, and the reader of its lines."""
    if "input_buffer_count" in header:
        return _RAGGED, _ragged_row
    return (_OF_SEVERAL_KINDS if "kind" in header else COLUMNS), _row


def _row(cells: _Cells, groups: GroupSizes) -> PublishedRow:
    kind = cells.text("kind")
    if kind in ("", "matmul"):
        kind = "xla product" if cells.text("op").startswith(("xla", "dot_general")) else "pallas product"
    product, copies = kind.endswith("product"), kind == "copy"
    return PublishedRow(
        line=cells.line,
        source=cells.text("source"),
        chip=cells.text("chip"),
        op=cells.text("op"),
        m=cells.whole("m") if product else cells.whole_or_none("m"),
        k=cells.whole("k") if product else cells.whole_or_none("k"),
        n=cells.whole("n") if product else cells.whole_or_none("n", _LARGEST_COPY if copies else _LARGEST_SIZE),
        dtype_lhs=cells.text("dtype_lhs"),
        dtype_rhs=cells.text("dtype_rhs"),
        dtype_out=cells.text("dtype_out"),
        tile_m=cells.whole_or_none("tile_m"),
        tile_k=cells.whole_or_none("tile_k"),
        tile_n=cells.whole_or_none("tile_n"),
        published_us=cells.time_us(),
        timing=cells.text("timing"),
        notes=cells.text("notes"),
        kind=kind,
        flags=cells.flags(),
        batch=cells.text("batch"),
        stated_tiles=cells.text("tiles"),
        grouping=_grouping(cells),
        group_sizes=_group_sizes(cells, groups) if cells.text("group_sizes") else (),
        topology=cells.text("topology"),
        shape_note=cells.text("shape_note"),
    )


def _ragged_row(cells: _Cells, groups: GroupSizes) -> PublishedRow:
    return PublishedRow(
        line=cells.line,
        source=RAGGED_SOURCE,
        chip=cells.text("chip"),
        op=f"ragged_dot {cells.text('kind')}",
        m=cells.whole("m"),
        k=cells.whole("k"),
        n=cells.whole("n"),
        dtype_lhs="bfloat16",
        dtype_rhs="bfloat16",
        dtype_out="bfloat16",
        tile_m=cells.whole("tile_m"),
        tile_k=cells.whole("tile_k"),
        tile_n=cells.whole("tile_n"),
        published_us=cells.time_us(),
        timing="device",
        notes=cells.text("notes"),
        kind=f"ragged {cells.text('kind')}",
        flags=cells.flags(),
        grouping=_grouping(cells),
        group_sizes=_group_sizes(cells, groups),
        input_buffer_count=cells.whole("input_buffer_count"),
        date=cells.text("date"),
    )


def _grouping(cells: _Cells) -> str:
    return f"{cells.text('groups')} groups {cells.text('group_sizes')}" if cells.text("group_sizes") else ""


def _group_sizes(cells: _Cells, groups: GroupSizes) -> tuple[int, ...]:
    try:
        return groups.named(cells.text("group_sizes"), groups=cells.whole("groups"), rows=cells.whole("m"))
    except GroupSizesError as error:
        raise PublishedFileError(f"{cells.where}: {error}") from error
