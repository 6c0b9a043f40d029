"""Charts as PNG files."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any

from systolic.whole_file import whole_file

_SIGNATURE_BYTES = 8


def save_png(chart: Any, path: Path) -> Path:
    """Writes an Altair chart as a PNG to `path`, whole or not at all; its folder is made. Returns `path`.

    Raises:
      OSError: the file cannot be written.
    """
    image = BytesIO()
    chart.save(image, format="png", scale_factor=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        partial.write_bytes(packed(image.getvalue()))
    return path


def packed(image: bytes) -> bytes:
    """The same PNG in fewer bytes: what draws it compresses in a hurry, to up to five times as much."""
    chunks, at = list[tuple[bytes, bytes]](), _SIGNATURE_BYTES
    while at < len(image):
        (size,) = struct.unpack_from(">I", image, at)
        chunks.append((image[at + 4 : at + 8], image[at + 8 : at + 8 + size]))
        at += 12 + size  # size, name, data, checksum
    made = image[:_SIGNATURE_BYTES]
    for is_pixels, those in groupby(chunks, key=lambda chunk: chunk[0] == b"IDAT"):
        found = list(those)
        if is_pixels:  # one stream, however many chunks it is cut into
            found = [(b"IDAT", zlib.compress(zlib.decompress(b"".join(data for _, data in found)), 9))]
        for name, data in found:
            made += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return made
