"""The constants of a compiled program are cut out of its binary, whatever holds the message that has them."""

from __future__ import annotations

import numpy as np
import pytest

from systolic.compiler.constants import program_constants


def varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def segment(kind: int, begin: int, size: int) -> bytes:
    extent = (number(1, begin) if begin else b"") + number(2, size)
    return message(2, number(1, kind) + number(2, 1) + message(3, extent))


def image(constants: bytes, code: bytes, *, claimed: int | None = None) -> bytes:
    """The message as libtpu writes it; `claimed`: how long it says that the constants are."""
    size = len(constants) if claimed is None else claimed
    scratch = message(2, number(1, 3) + number(2, 1) + number(4, 98304))
    parts = segment(1, size, len(code)) + segment(2, 0, size) + scratch + message(3, constants + code)
    return number(1, 1) + parts + message(4, bytes(32))


def noise(size: int) -> bytes:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()


def in_blocks(content: bytes) -> bytes:
    """A Riegeli file that holds the content, all of it in one chunk."""
    found, at = b"", 0
    first = bytes.fromhex("83af70d10d884a3f") + bytes(8) + (64).to_bytes(8, "little")
    while not found or at < len(content):
        header = noise(24) if found else first
        found += header + content[at : at + (1 << 16) - 24]
        at += (1 << 16) - 24
    return found


CONSTANTS = np.arange(40_000, dtype="<u4").tobytes()


@pytest.mark.parametrize("ahead", [0, 1, 337])
def test_the_segment_is_found_wherever_its_message_is(ahead: int) -> None:
    held = noise(ahead) + message(8, image(CONSTANTS, noise(5000))) + noise(999)
    assert program_constants(held) == CONSTANTS
    assert program_constants(b"prefix" + in_blocks(held)) == CONSTANTS


def test_the_segment_of_hundreds_of_devices_is_found() -> None:
    many = CONSTANTS * 220  # 35 MB
    assert program_constants(image(many, noise(5000))) == many


def test_what_does_not_account_for_all_of_the_image_is_not_taken() -> None:
    code = noise(5000)
    assert program_constants(image(b"", code)) == b""
    assert program_constants(image(CONSTANTS, code, claimed=len(CONSTANTS) + 512)) == b""
    assert program_constants(image(CONSTANTS, code)[:-4000]) == b""
    assert program_constants(noise(100_000)) == b""


def test_of_two_images_that_differ_none_is_taken() -> None:
    one, other = image(CONSTANTS, noise(5000)), image(CONSTANTS[4:], noise(5000))
    assert program_constants(one + one) == CONSTANTS
    assert program_constants(one + other) == b""
