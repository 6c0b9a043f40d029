"""The status of an attempt to compile and time a function: one vocabulary for tables, results and stored trials."""

from __future__ import annotations

from typing import Literal

Status = Literal[
    "ok",
    "unsupported",  # the chip lacks what it takes, such as a dtype or a SparseCore
    "illegal",  # a rule forbids it, so that the compiler was not asked
    "refused",  # by the compiler
    "crashed",  # the compiler's process died
    "timed out",
    "out of memory",
    "unknown",  # it compiled, and its time depends on values that are not known
    "not simulated",  # it compiled, and the simulator does not understand the program
    "failed",  # anything else, such as an error of the function while it was traced
    "wrong",  # its result is not the right one
]
