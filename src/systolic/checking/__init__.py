"""Check that a kernel is legal, right, free of races and accepted by the compiler.

    systolic.check(fn, lhs, rhs, chip="v5e").raise_on_error()

`rules` judge the Pallas calls that `systolic.analysis` finds in a traced function, `verdict` is the compiler's answer,
`running` executes the function in TPU interpret mode. Other rooms import from here only.
"""

from systolic.checking.check import PendingCheck, check, submit_check
from systolic.checking.finding import GRADES, Finding, Grade
from systolic.checking.report import CheckFailedError, CheckReport, CheckReportError, KernelUse, OperandUse
from systolic.checking.running import RunOutcome, run_in_worker
from systolic.checking.static import static_findings
from systolic.checking.virtual_devices import MeshError, traced_as_on

__all__ = [
    "GRADES",
    "CheckFailedError",
    "CheckReport",
    "CheckReportError",
    "Finding",
    "Grade",
    "KernelUse",
    "MeshError",
    "OperandUse",
    "PendingCheck",
    "RunOutcome",
    "check",
    "run_in_worker",
    "static_findings",
    "submit_check",
    "traced_as_on",
]
