"""Constants of a compiled program, as they lie in HBM next to its code: cut out of the program's binary.

No listing shows what XLA's collectives and permutations look up there. The binary holds an image of all that the
runtime loads into HBM, as a protocol buffer message: field 2 lists the segments, each with its kind (1: code,
2: constants), where it begins and how long it is, and field 3 is the image. What holds that message differs between
versions of JAX. So it is looked for, and taken only if it accounts for every byte of the image.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_VARINT, _BYTES = 0, 2
_CODE, _CONSTANTS = 1, 2
_MESSAGE = re.compile(rb"\x08\x01\x12", re.DOTALL)  # field 1 is 1, and the first segment

# JAX 0.12 writes a Riegeli file: blocks, each with a header of its hash and of how far the chunk reaches back and on.
_RIEGELI = bytes.fromhex("83af70d10d884a3f") + bytes(8) + (64).to_bytes(8, "little")
_BLOCK_BYTES = 1 << 16
_HEADER_BYTES = 24

# Larger segments are weights. The constants of a step on 512 devices with SparseCores were seen to take 28 MB.
_MAX_CONSTANT_BYTES = 1 << 27


def program_constants(executable: bytes) -> bytes:
    """Return the segment of constants of a binary that JAX serialized; empty if none is certain."""
    binary = _without_block_headers(executable)
    constants_found = {
        constants for message in _MESSAGE.finditer(binary) for constants in _constants(binary, message.start())
    }
    return constants_found.pop() if len(constants_found) == 1 else b""


def _constants(binary: bytes, at: int) -> Iterator[bytes]:
    """Yield the constants of the image that begins there, if one does."""
    segments: dict[int, tuple[int, int]] = {}
    try:
        for field, value in _fields(binary, at):
            if field == 2 and isinstance(value, bytes):
                segment = dict(_fields(value))
                if isinstance(part := segment.get(3), bytes) and isinstance(kind := segment.get(1), int):
                    extent = dict(_fields(part))
                    segments[kind] = int(extent.get(1, 0)), int(extent.get(2, 0))
            elif field == 3 and isinstance(value, bytes):
                begin, size = segments.get(_CONSTANTS, (0, 0))
                code, code_size = segments.get(_CODE, (0, 0))
                is_whole = (begin, size, code + code_size) == (0, code, len(value))
                if code_size and is_whole and 0 < size <= _MAX_CONSTANT_BYTES:
                    yield value[:size]
                return
            elif field > 3:
                return
    except (IndexError, ValueError, TypeError):
        return


def _fields(message: bytes, at: int = 0) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message, by number; raise an error if the message does not end where it says.

    Raises:
        IndexError: it ends within a field.
        ValueError: there is a field of another type than numbers and bytes.
    """
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == _BYTES:
            if at + value > len(message):
                raise IndexError(at)
            yield key >> 3, message[at : at + value]
            at += value
        elif key & 7 == _VARINT:
            yield key >> 3, value
        else:
            raise ValueError(key)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError(at)


def _without_block_headers(binary: bytes) -> bytes:
    begin = binary.find(_RIEGELI)
    if begin < 0:
        return binary
    blocks = range(begin, len(binary), _BLOCK_BYTES)
    return b"".join(binary[block + _HEADER_BYTES : block + _BLOCK_BYTES] for block in blocks)
