"""The bases of the two kinds of errors that answer a call: it was wrong, or this machine lacks what it takes."""

from __future__ import annotations


class WrongCallError(Exception):
    """A call was wrong: the text says with which value, and what to do. The command line shows it with exit code 2."""


class LackingError(Exception):
    """This machine, or an account, lacks what the call takes. The command line shows the text with exit code 1."""
