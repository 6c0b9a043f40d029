"""Save a prepared program as one file. A file may be damaged or hostile: it is checked, and never executed.

A file is a line with the format's number, a checksum of the rest, a line of JSON (chip, constants, owners of the
words), the compiler's output as the program cache keeps it, and the words, compressed.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from systolic.chips import (
    Chip,
    FlagError,
    Links,
    MachineModel,
    SliceError,
    SliceShape,
    SparseCoreModel,
    UnknownChipError,
    checked_flags,
)
from systolic.chips import chip as chip_named
from systolic.chips.constants import ConstantsError, check_constants, check_links, check_sparse_core
from systolic.compiler import CompiledProgram
from systolic.compiler.cache_entry import MAX_ENTRY_BYTES, EntryError, decode, encode
from systolic.simulator import Unknown, Words
from systolic.support.regular_file import open_regular
from systolic.support.untrusted import UntrustedError, read_json, structured
from systolic.support.whole_file import whole_file
from systolic.timing.contents import OperandKey, ProgramContents

FORMAT = 7  # another layout, or another meaning of a part, gets another number

_FIRST_LINE = re.compile(rb"systolic program, format (\d{1,9})\n")
_DIGEST_BYTES = hashlib.sha256().digest_size
_MAX_FILE_BYTES = 2 * MAX_ENTRY_BYTES
_MAX_WORDS = MAX_ENTRY_BYTES // 4
_MIN_HOST_BYTES_PER_S = 1e6
_KEPT = (
    "machine",
    "sparse_core",
    "compiler_flags",
    "host_bytes_per_s",
)  # fields of a chip that a run reads, in addition to its identity


class ProgramFileError(ValueError):
    """The file holds no prepared program that can be read here, or the program is too large for a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedProgram:
    name: str
    chip: Chip
    compiled: CompiledProgram
    contents: tuple[ProgramContents, ...]  # of each partition
    topology: str | None = None  # of the slice; None: it runs on one device


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The owner of some of the words, or the reason why there are none."""

    partitions: tuple[int, ...]  # partitions that have these words
    operation: str  # "": an argument of the program
    call: int
    index: int  # of the operand, or the argument's number
    words: int  # number of words
    unknown: str  # why there are none; "": there are
    computed: bool  # see `Unknown`


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    name: str
    chip: str
    cores_per_device: int
    machine: MachineModel
    sparse_core: SparseCoreModel | None
    links: Links | None
    topology: str | None
    compiler_flags: Mapping[str, str]
    host_bytes_per_s: float
    key: str  # of the compiler's output
    entry_bytes: int
    contents: tuple[_Content, ...]


def write_program(path: Path, saved: SavedProgram) -> None:
    """Write a file, which appears whole or not at all.

    Raises:
      ProgramFileError: the program is too large.
      OSError: the file cannot be written.
    """
    shared = _shared(saved.contents)
    words = [words_of for _, words_of, _ in shared if not isinstance(words_of, Unknown)]
    if sum(map(len, words)) > _MAX_WORDS:
        raise ProgramFileError(
            f"the arguments hold more than the {MAX_ENTRY_BYTES:,} bytes that a file of a program takes"
        )
    try:
        entry = encode(saved.compiled.key, saved.compiled)
    except EntryError as error:
        raise ProgramFileError(f"the program has {error}") from error
    head = _Head(
        name=saved.name,
        chip=saved.chip.name,
        cores_per_device=saved.chip.cores_per_device,
        **{name: getattr(saved.chip, name) for name in _KEPT},
        links=saved.chip.links,
        topology=saved.topology,
        key=saved.compiled.key,
        entry_bytes=len(entry),
        contents=tuple(_content(*entry) for entry in shared),
    )
    packed = zlib.compress(np.concatenate([np.zeros(0, "<u4"), *(np.asarray(word, "<u4") for word in words)]).tobytes())
    rest = json.dumps(asdict(head), allow_nan=False).encode() + b"\n" + entry + packed
    with whole_file(path) as partial:
        partial.write_bytes(b"systolic program, format %d\n" % FORMAT + hashlib.sha256(rest).digest() + rest)


def _shared(contents: Sequence[ProgramContents]) -> list[tuple[OperandKey, Words | Unknown, tuple[int, ...]]]:
    """Return the known contents of arguments and operands, each once, with the partitions that have it."""
    result: dict[OperandKey, dict[object, tuple[Words | Unknown, list[int]]]] = {}
    for partition, partition_words in enumerate(contents):
        parameters = ((("", 0, number), words) for number, words in enumerate(partition_words.parameters))
        for key, words in (*parameters, *partition_words.operands.items()):
            same = (words.why, words.computed) if isinstance(words, Unknown) else id(words)
            result.setdefault(key, {}).setdefault(same, (words, []))[1].append(partition)
    return [(key, words, tuple(partitions)) for key, values in result.items() for words, partitions in values.values()]


def _content(key: OperandKey, words: Words | Unknown, partitions: tuple[int, ...]) -> _Content:
    operation, call, index = key
    unknown = words if isinstance(words, Unknown) else None
    return _Content(
        partitions=partitions,
        operation=operation,
        call=call,
        index=index,
        words=0 if isinstance(words, Unknown) else len(words),
        unknown=unknown.why if unknown is not None else "",
        computed=unknown is not None and unknown.computed,
    )


def read_program(path: Path, chip: Chip | None) -> SavedProgram:
    """Read a file of `write_program`.

    Args:
      path: the file.
      chip: replaces the saved one, constants included; None: the saved one.

    Raises:
      ProgramFileError: there is no such file, or it is not what was written.
    """
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ProgramFileError(f"cannot read {path}: {error.strerror}") from error
    try:
        return _decoded(data, chip)
    except (UntrustedError, EntryError, ConstantsError, FlagError, SliceError, zlib.error) as error:
        raise ProgramFileError(f"{path} is not a program that can be read here: {error}") from error


def _decoded(data: bytes, chip: Chip | None) -> SavedProgram:
    first = _FIRST_LINE.match(data)
    if first is None:
        raise UntrustedError("it does not begin as `Program.save` writes")
    if int(first.group(1)) != FORMAT:
        raise UntrustedError(f"it has format {int(first.group(1))}, and this is format {FORMAT}; prepare it anew")
    digest, rest = data[first.end() :][:_DIGEST_BYTES], data[first.end() + _DIGEST_BYTES :]
    if len(data) > _MAX_FILE_BYTES or digest != hashlib.sha256(rest).digest():
        raise UntrustedError("it is damaged: its checksum is wrong")
    line, _, binary = rest.partition(b"\n")
    head = structured(read_json(line), _Head)
    if not 0 <= head.entry_bytes <= len(binary):
        raise UntrustedError("its parts have other lengths")
    compiled = decode(head.key, binary[: head.entry_bytes])
    if not isinstance(compiled, CompiledProgram):
        raise UntrustedError("it holds no program")
    described_chip = _chip(head, chip)
    count = len(compiled.assignment) or 1
    devices = (
        1
        if head.topology is None
        else SliceShape.parse(described_chip, head.topology).chips * described_chip.devices_per_chip
    )
    if count != devices:
        raise UntrustedError(f"it is for {count} devices, where {head.topology or 'no slice'} has {devices}")
    contents = _contents(head.contents, _unpacked(binary[head.entry_bytes :]), count)
    return SavedProgram(
        name=head.name, chip=described_chip, compiled=compiled, contents=contents, topology=head.topology
    )


def _chip(head: _Head, chosen: Chip | None) -> Chip:
    try:
        named_chip = chosen if chosen is not None else chip_named(head.chip)
    except UnknownChipError as error:
        raise UntrustedError(f"{error}; pass `chip=` for one of your own") from error
    if named_chip.name != head.chip or named_chip.cores_per_device != head.cores_per_device:
        raise UntrustedError(
            f"it is of {head.chip} with {head.cores_per_device} cores a device, not of {named_chip.name} with "
            f"{named_chip.cores_per_device}"
        )
    check_constants(named_chip.machine, head.machine)
    check_constants(head.machine, head.machine)
    check_sparse_core(head.sparse_core, named_chip.sparse_core)
    check_links(head.links, named_chip.links)
    if not _MIN_HOST_BYTES_PER_S <= head.host_bytes_per_s <= named_chip.machine.hbm_bytes_per_s:
        raise UntrustedError(f"its link to the host has {head.host_bytes_per_s} bytes a second, which no hardware has")
    changes = {name: getattr(head, name) for name in (*_KEPT, "links")}
    if checked_flags(head.compiler_flags) != head.compiler_flags:
        raise UntrustedError("its compiler flags are none")
    if chosen is not None:
        chosen_too = ("machine", "sparse_core", "links", "host_bytes_per_s")
        changes |= {name: getattr(named_chip, name) for name in chosen_too}
    return replace(named_chip, **changes)


def _contents(described: tuple[_Content, ...], words: np.ndarray, count: int) -> tuple[ProgramContents, ...]:
    parameters: list[list[Words | Unknown]] = [[] for _ in range(count)]
    operands: list[dict[OperandKey, Words | Unknown]] = [{} for _ in range(count)]
    at = 0
    for item in described:
        if not 0 <= item.words <= len(words) - at:
            raise UntrustedError("its contents have other lengths")
        here = words[at : at + item.words].tolist()
        at += item.words
        value = Unknown(item.unknown, computed=item.computed) if item.unknown else here
        for partition in item.partitions:
            if not 0 <= partition < count:
                raise UntrustedError(f"it has contents for more than {count} devices")
            if item.operation:
                operands[partition][item.operation, item.call, item.index] = value
            elif item.index == len(parameters[partition]):
                parameters[partition].append(value)
            else:
                raise UntrustedError("its arguments are not in order")
    if at != len(words):
        raise UntrustedError("its contents have other lengths")
    return tuple(
        ProgramContents(parameters=tuple(mine), operands=words)
        for mine, words in zip(parameters, operands, strict=True)
    )


def _unpacked(packed: bytes) -> np.ndarray:
    unpacking = zlib.decompressobj()
    raw = unpacking.decompress(packed, MAX_ENTRY_BYTES)
    if not unpacking.eof or unpacking.unused_data or len(raw) % 4:
        raise UntrustedError("its contents do not end where they should")
    return np.frombuffer(raw, "<u4")
