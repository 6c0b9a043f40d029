"""Errors of reading and executing a compiled program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Exceptions of Python for a misread text: an operand too few, a number of too many digits.
_MALFORMED = (ArithmeticError, LookupError, RecursionError, SyntaxError, ValueError)


class SimulationError(RuntimeError):
    """The program holds something that the simulator does not understand; the message quotes the line."""

    located = False  # whether the message says already where it was


class DeadlockError(SimulationError):
    """The program waits for something that no pending event will bring about."""


class TooManyCopiesError(SimulationError):
    """Devices of a slice that differ send each other more copies than are simulated."""


class UnknownValueError(SimulationError):
    """Control flow depends on an unknown value; the message says where it comes from."""

    program = ""  # that needed it
    why = ""  # whose value it is
    computed = False  # by the program; else it belongs to an argument
    argument: int | None = None  # the number of that argument, if it is known


class UnknownWordsError(SimulationError):
    """A program reads words of scalar memory whose contents are not known; the message names them."""


class UnknownTimeError(UnknownValueError):
    """The program's time depends on values that are not known; the message says in which operation."""


@contextmanager
def reading(what: str | Callable[[], str]) -> Iterator[None]:
    """Turn errors of reading a damaged text into SimulationError, which names the text as `what`, or as it returns."""
    try:
        yield
    except _MALFORMED as error:
        name = what if isinstance(what, str) else what()
        raise SimulationError(f"{name} is not understood: {type(error).__name__}: {str(error)[:200]}") from error


def check_most(count: int, limit: int, what: str) -> None:
    """Raise SimulationError for a count far above what programs need, so that damaged ones take no memory."""
    if count > limit:
        raise SimulationError(f"{count:,} {what}, where {limit:,} are the most that a program can be meant to have")
