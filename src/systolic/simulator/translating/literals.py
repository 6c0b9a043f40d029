"""All that generated code takes from a listing: variables, whole numbers and quoted texts.

A listing is text from outside, and the code that is made of it is executed. So nothing of a listing gets into the code
but through these functions: a test compares the code with what they let through.
"""

from __future__ import annotations

import re

from systolic.simulator.errors import SimulationError

# Physical scalar and predicate registers, virtual vector registers, names of instructions, what a division left,
# registers spilled to memory, and what nothing reads. None is a name of the generated function's own.
_VARIABLE = re.compile(r"[spwxd]\d+|m_\w+|_", re.ASCII)
_MOST = 1 << 62


def variable(name: str) -> str:
    """Passes the name of a variable on.

    Raises:
      SimulationError: the name is none that a register may have.
    """
    if not _VARIABLE.fullmatch(name):
        raise SimulationError(f"{name[:200]!r} is no register")
    return name


def number(value: int) -> str:
    """Writes a whole number.

    Raises:
      SimulationError: it is one that no address, size or word can be.
    """
    if type(value) is not int or not -_MOST < value < _MOST:
        raise SimulationError("a number out of range")
    return str(value)


def quoted(text: str) -> str:
    """Writes a text as a literal."""
    return repr(str(text))
