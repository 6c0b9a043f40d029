"""Make text from elsewhere safe for a terminal."""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    """Escape everything that a terminal would obey, such as `\x1b`.

    Args:
      keep: characters to keep; by default the text becomes one line.
    """
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)
