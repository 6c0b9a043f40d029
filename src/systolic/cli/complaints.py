"""Write messages to standard error, and handle a standard output that can no longer be written."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

import click

from systolic.support.printable import printable

_LOST = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def shown_text(text: str) -> str:
    """Escape everything that a terminal would obey, except newlines and tabs."""
    return printable(text, keep="\n\t")


def complain(text: str) -> None:
    """Print a message on standard error; a terminal gets lines that fit it."""
    if sys.stderr.isatty():
        from rich.console import Console  # a slow import, not needed for --help

        out = Console(stderr=True, markup=False, highlight=False, emoji=False, no_color=True)
        out.print(shown_text(text))
    else:
        click.echo(shown_text(text), err=True)


def note(text: str, *, quiet: bool) -> None:
    if not quiet:
        complain(text)


def lost_output(error: OSError) -> bool:
    """True if standard output can no longer be written; print a message unless its reader has just left.

    Output that is still buffered is then thrown away: Python would fail on it once more at exit.
    """
    if error.filename is not None or error.errno not in _LOST:
        return False
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    if error.errno != errno.EPIPE:
        complain(f"systolic: cannot write standard output: {error.strerror}")
    return True
