"""One entry of the program cache as bytes. What is read may be damaged or hostile: it is checked, and never executed.

An entry is a checksum and a compressed payload: a line of JSON with the small fields and the lengths of the long texts,
then those texts and the program's constants. Keeping them out of the JSON bounds what a hostile entry can make of a few
bytes.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import fields
from types import NoneType
from typing import Any, get_args

from systolic.compiler.errors import CompilerRefusal, RefusalKind
from systolic.compiler.program import CompiledProgram

# The largest payload seen had 885 MB, a training step whose attention has blocks of 2,048; its line of JSON three
# thousand bytes.
MAX_ENTRY_BYTES = 1536 * 2**20
_MAX_HEAD_BYTES = 8 * 2**20
# Level 1 packs a listing about eight to one at over 200 MB/s; higher levels gain little and take longer than they save.
_COMPRESSION_LEVEL = 1
_DIGEST_BYTES = hashlib.sha256().digest_size

_TEXTS_BY_NAME = ("listings", "utilization", "sparse_listings")
_TEXTS = ("vmem_report", "top_level_hlo")
_CONSTANTS = "constants"
# The types of a field, by its annotation. True is not a number here, as it is one to Python.
_TYPES = {
    "int": (int,),
    "int | None": (int, NoneType),
    "str": (str,),
    "float": (float, int),
    "float | None": (float, int, NoneType),
    "tuple[int, ...]": (list,),
}
_PROGRAM = {
    field.name: _TYPES[str(field.type)]
    for field in fields(CompiledProgram)
    if field.name not in (*_TEXTS_BY_NAME, *_TEXTS, _CONSTANTS, "from_cache")
}
_REFUSAL = {
    "message": (str,),
    "kind": (str,),
    "requested_bytes": (int, NoneType),
    "available_bytes": (int, NoneType),
}


class EntryError(ValueError):
    """The bytes are not an entry of this key, or the program is too large for one."""


def encode(key: str, outcome: CompiledProgram | CompilerRefusal) -> bytes:
    """Return the entry of `outcome` under `key`; raise EntryError if it is larger than `decode` would read."""
    texts: list[tuple[str, str, bytes]] = []
    if isinstance(outcome, CompiledProgram):
        small: dict[str, Any] = {name: getattr(outcome, name) for name in _PROGRAM}
        for field in _TEXTS_BY_NAME:
            texts += [(field, name, _packed(text)) for name, text in getattr(outcome, field).items()]
        texts += [(field, "", _packed(getattr(outcome, field))) for field in _TEXTS]
        texts.append((_CONSTANTS, "", outcome.constants))
    else:
        small = {name: getattr(outcome, name) for name in _REFUSAL}
    head = {"program" if texts else "refusal": small, "texts": [(*named, len(text)) for *named, text in texts]}
    line = json.dumps(head).encode() + b"\n"
    payload = b"".join((line, *(text for *_, text in texts)))
    if len(payload) > MAX_ENTRY_BYTES or len(line) > _MAX_HEAD_BYTES:
        raise EntryError(f"{len(payload):,} bytes, of which an entry holds {MAX_ENTRY_BYTES:,} at the most")
    packed = zlib.compress(payload, _COMPRESSION_LEVEL)
    return _digest(key, packed) + packed


def decode(key: str, entry: object) -> CompiledProgram | CompilerRefusal:
    """Decode an entry that `encode` made for `key`; a program says that it comes from the cache.

    Raises:
        EntryError: the entry is not what `encode` made, or belongs to another key.
    """
    if not isinstance(entry, bytes) or entry[:_DIGEST_BYTES] != _digest(key, entry[_DIGEST_BYTES:]):
        raise EntryError("its checksum is wrong")
    payload = _unpacked(entry[_DIGEST_BYTES:])
    end = payload.find(b"\n", 0, _MAX_HEAD_BYTES)
    try:
        head = json.loads(payload[: max(end, 0)])
    except (ValueError, RecursionError) as error:
        raise EntryError(f"its head is not JSON: {error}") from error
    match head:
        case {"refusal": dict() as small, "texts": [], **rest} if not rest:
            return _refusal(small)
        case {"program": dict() as small, "texts": list() as lengths, **rest} if not rest:
            return _program(small, _read_texts(lengths, payload, end + 1))
    raise EntryError("it is neither a program nor a refusal")


def _refusal(small: Mapping[str, Any]) -> CompilerRefusal:
    _check_fields(small, _REFUSAL)
    if small["kind"] not in get_args(RefusalKind):
        raise EntryError(f"a refusal of the kind {small['kind']!r}")
    return CompilerRefusal(**small)


def _program(small: Mapping[str, Any], texts: Mapping[str, dict[str, bytes]]) -> CompiledProgram:
    _check_fields(small, _PROGRAM)
    if any(type(number) is not int for number in small["assignment"]):
        raise EntryError("an assignment that is not a list of numbers")
    fields: dict[str, Any] = {**small, "assignment": tuple(small["assignment"]), "from_cache": True}
    for field in _TEXTS_BY_NAME:
        fields[field] = {name: _text(packed) for name, packed in texts[field].items()}
    for field in (*_TEXTS, _CONSTANTS):
        if texts[field].keys() != {""}:
            raise EntryError(f"not one text of {field}")
        fields[field] = texts[field][""] if field == _CONSTANTS else _text(texts[field][""])
    return CompiledProgram(**fields)


def _check_fields(small: Mapping[str, Any], expected: Mapping[str, tuple[type, ...]]) -> None:
    if small.keys() != expected.keys():
        raise EntryError("it has other fields")
    for name, types in expected.items():
        if type(small[name]) not in types:
            raise EntryError(f"{name} is a {type(small[name]).__name__}")


def _read_texts(lengths: list[Any], payload: bytes, at: int) -> dict[str, dict[str, bytes]]:
    texts: dict[str, dict[str, bytes]] = {field: {} for field in (*_TEXTS_BY_NAME, *_TEXTS, _CONSTANTS)}
    for part in lengths:
        match part:
            case [str() as field, str() as name, int() as length] if field in texts and 0 <= length <= len(payload):
                texts[field][name] = payload[at : at + length]
                at += length
            case _:
                raise EntryError("a text without a name and a length")
    if at != len(payload):
        raise EntryError("its texts have other lengths")
    return texts


def _text(packed: bytes) -> str:
    try:
        return packed.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise EntryError(f"a text that is not UTF-8: {error}") from error


def _packed(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _unpacked(packed: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        payload = unpacking.decompress(packed, MAX_ENTRY_BYTES)
    except zlib.error as error:
        raise EntryError(str(error)) from error
    if not unpacking.eof or unpacking.unused_data:
        raise EntryError(f"it does not end, or is larger than {MAX_ENTRY_BYTES:,} bytes")
    return payload


def _digest(key: str, packed: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + packed).digest()
