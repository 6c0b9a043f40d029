"""Whether a kernel is legal, right, free of races and accepted by the compiler.

    systolic.check(fn, lhs, rhs, chip="v5e").raise_on_error()

`calls` reads the Pallas calls out of a traced function, `rules` judges them, `verdict` is the compiler's word, and
`running` executes the function in TPU interpret mode.
"""

from systolic.checking.check import PendingCheck, check, submit_check
from systolic.checking.finding import GRADES, Finding, Grade
from systolic.checking.report import CheckFailedError, CheckReport, CheckReportError

__all__ = [
    "GRADES",
    "CheckFailedError",
    "CheckReport",
    "CheckReportError",
    "Finding",
    "Grade",
    "PendingCheck",
    "check",
    "submit_check",
]
