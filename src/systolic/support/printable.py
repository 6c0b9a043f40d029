"""Text from elsewhere that may go to a terminal."""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    """A text that no terminal takes for a command: `\\x1b` in place of what cannot be printed.

    Args:
      keep: characters that stay all the same; by default the text becomes one line.
    """
    return "".join(
        character if character.isprintable() or character in keep else ascii(character)[1:-1] for character in text
    )
