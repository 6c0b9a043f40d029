"""What it means that a worker came to an end before it had answered: whose doing it was, and what to change."""

from __future__ import annotations

from systolic.checking.finding import Finding, Grade
from systolic.compiler import CompilerTimeout, FunctionExit, WorkerEnded

_LIMITS = {
    "trace": "there is nothing to check: what Python does while a function is traced has to come to an end by itself",
    "run": "nothing could be said of what it visits, or of its results",
}


def unanswered(error: WorkerEnded | FunctionExit, chip: str) -> Finding:
    """The finding about a job that never answered.

    Args:
      error: how the worker ended.
      chip: that the job was for; "" for a run.
    """
    if isinstance(error, FunctionExit):
        return Finding(
            rule="trace",
            grade="error",
            value=f"the function asks for the end of the program: {error.how}",
            limit=_LIMITS["trace"],
            fix="return, or raise an error that says what is wrong",
            chip=chip,
            where=error.where,
        )
    rule, grade = _rule(error)
    return Finding(
        rule=rule,
        grade=grade,
        value=f"{'its process' if error.how.startswith('ended') else 'it was'} {error.how}",
        limit=_LIMITS.get(rule, "the compiler came to no answer"),
        fix=error.fix,
        chip=chip,
        where=error.where,
    )


def _rule(error: WorkerEnded) -> tuple[str, Grade]:
    if error.stage in ("reading", "interpreting"):
        return "run", "error"
    if error.by_function:
        return "trace", "error"
    return ("compiler-timeout", "warning") if isinstance(error, CompilerTimeout) else ("compiler-crash", "error")
