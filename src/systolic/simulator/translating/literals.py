"""Write variables, whole numbers and quoted texts of a listing: all that generated code takes from one.

A listing is text from outside, and the code made of it is executed. So nothing of a listing gets into the code
except by these functions: a test compares the code with their results.
"""

from __future__ import annotations

import re

from systolic.simulator.errors import SimulationError

# Physical scalar and predicate registers, virtual vector registers, names of instructions, what a division left,
# registers spilled to memory, and what nothing reads. None is a name of the generated function's own.
_VARIABLE = re.compile(r"[spwxd]\d+|m_\w+|_", re.ASCII)
_MOST = 1 << 62


def variable(name: str) -> str:
    """Return the name of a register's variable; raise `SimulationError` for a name that no register may have."""
    if not _VARIABLE.fullmatch(name):
        raise SimulationError(f"{name[:200]!r} is not a register")
    return name


def number(value: int) -> str:
    """Write a whole number; raise `SimulationError` for one that no address, size or word can be."""
    if type(value) is not int or not -_MOST < value < _MOST:
        raise SimulationError("a number out of range")
    return str(value)


def quoted(text: str) -> str:
    return repr(str(text))
