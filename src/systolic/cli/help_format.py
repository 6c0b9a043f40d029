"""Help texts in lines that fit the terminal and break no word."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import click

_NARROW = 70  # columns, below which the names of options get less of them
_NARROW_NAMES = 14  # columns that they get
_UNWRAPPED = "\b"  # click's mark of a paragraph whose lines stay as they are


class HelpFormatter(click.HelpFormatter):
    """A formatter that continues long examples on the next line, as a shell does."""

    def write_text(self, text: str) -> None:
        """Write paragraphs; lines of examples that are too long are continued after a backslash."""
        super().write_text("\n".join(_continued(text, self.width - self.current_indent)))

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write a list of options or commands; a narrow terminal leaves most columns to the sentences."""
        super().write_dl(rows, min(col_max, _NARROW_NAMES) if self.width < _NARROW else col_max, col_spacing)


class HelpContext(click.Context):
    """A context with this formatter."""

    formatter_class = HelpFormatter


def _continued(text: str, width: int) -> Iterator[str]:
    stays = False
    for line in text.splitlines():
        stays = line.strip() == _UNWRAPPED or (stays and bool(line))
        if not stays or len(line) <= width:
            yield line
            continue
        indent = " " * (len(line) - len(line.lstrip()))
        lines = textwrap.wrap(
            line.strip(),
            width - 2,  # a space and the backslash
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        yield from (f"{part} \\" for part in lines[:-1])
        yield lines[-1]
