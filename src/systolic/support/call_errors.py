"""The bases of the two kinds of errors that answer a call: it was wrong, or this machine lacks what it takes."""

from __future__ import annotations


class WrongCallError(Exception):
    """A wrong call: the text names the value and a fix. The command line shows it with exit code 2."""


class LackingError(Exception):
    """This machine, or an account, lacks something. The command line shows the text with exit code 1."""
