"""What is said on standard error, and what to do when nobody takes standard output any more."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

import click

from systolic.support.printable import printable

_LOST = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def shown_text(text: str) -> str:
    """Lines and tabs as they are; what else a terminal would obey is escaped."""
    return printable(text, keep="\n\t")


def complain(text: str) -> None:
    """What is wrong, on standard error."""
    click.echo(shown_text(text), err=True)


def note(text: str, *, quiet: bool) -> None:
    """One line on standard error."""
    if not quiet:
        complain(text)


def lost_output(error: OSError) -> bool:
    """Whether an error is that nobody takes standard output any more; says so, unless its reader has just left.

    What is still to be written is then thrown away: Python would fail on it once more as it ends.
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
