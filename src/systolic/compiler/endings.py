"""Endings of a worker before its answer: it died, it was stopped, or the user's function ended it."""

from __future__ import annotations

import re
from typing import Literal

from systolic.compiler.errors import CompilerError
from systolic.compiler.limits import WALL_TIMES
from systolic.compiler.stage import DOING, OF_THE_FUNCTION, Stage

_FATAL = (
    re.compile(r"Check failed:.*"),
    # How Google's libraries log: F for fatal, the date, time, thread, place, then the message.
    re.compile(r"^F\d{4} [\d:.]+ +\d+ (?P<words>.*)", re.MULTILINE),
    re.compile(
        r"^.*(?:LLVM ERROR|Assertion .* failed|terminate called|what\(\):|Fatal Python error|^ERROR:|^FATAL:).*",
        re.MULTILINE,
    ),
)
# Lines around the last message that tell nothing.
_NOISE = re.compile(r"^(?:    @ |PC: @|\*\*\*|https://symbolize|[EWI]\d{4} |Failed to find host bounds|\s*$)")


class WorkerEnded(CompilerError):  # noqa: N818 -- said the way the user thinks of it
    """A worker ended before it answered. Base of the three ways in which it can.

    Attributes:
        label: the name of the job.
        how: the event, as the end of "the job was …".
        stage: the activity of the worker then; None if it is not known.
        where: the user's line that was being executed, "file.py:12 in name", or "".
        fix: the suggested remedy.
    """

    def __init__(self, message: str, *, label: str, how: str, stage: Stage | None, where: str, fix: str) -> None:
        self.label = label
        self.how = how
        self.stage: Stage | None = stage
        self.where = where
        self.fix = fix
        super().__init__(message)

    @property
    def by_function(self) -> bool:
        """True if the user's Python code was running, not the compiler."""
        return self.stage in OF_THE_FUNCTION


class CompilerCrash(WorkerEnded):
    """The worker process died.

    Attributes:
        exit_code: its exit status; None if a signal killed it.
        signal_name: such as "SIGABRT"; None if it exited.
        stderr_tail: the end of its standard error during this job.
    """

    def __init__(
        self,
        *,
        label: str,
        exit_code: int | None,
        signal_name: str | None,
        stderr_tail: str,
        stage: Stage | None = None,
    ) -> None:
        self.exit_code = exit_code
        self.signal_name = signal_name
        self.stderr_tail = stderr_tail
        words = last_words(stderr_tail)
        if not words and signal_name == "SIGKILL":
            words = "systolic did not send that signal; the system does if memory runs out"
        ending = f"by {signal_name}" if signal_name else f"with exit code {exit_code}"
        during = f" during {label or 'a task'}"
        rest = _while(stage) + (f": {words}" if words else "")
        fix = "reduce the kernel until the compiler survives it, or try another version of libtpu"
        if stage in OF_THE_FUNCTION:
            fix = "run the function in plain JAX: it, or a library that it calls, ends the process"
        super().__init__(
            f"the worker process ended {ending}{during}{rest}",
            label=label,
            how=f"ended {ending}{rest}",
            stage=stage,
            where="",
            fix=fix,
        )


class CompilerTimeout(WorkerEnded):
    """The worker was killed because the job took too long.

    Attributes:
        limit_s: the limit that it reached, seconds.
        counted: "cpu", the CPU time of the job, or "wall", its time by the clock.
        used_cpu_s: CPU time of the job in seconds; None if the system does not tell.
    """

    def __init__(
        self,
        *,
        label: str,
        limit_s: float,
        counted: Literal["cpu", "wall"] = "cpu",
        used_cpu_s: float | None = None,
        stage: Stage | None = None,
        where: str = "",
    ) -> None:
        self.limit_s = limit_s
        self.counted: Literal["cpu", "wall"] = counted
        self.used_cpu_s = used_cpu_s
        waited = counted == "wall" and used_cpu_s is not None
        if waited:
            how = f"stopped after {limit_s:g} s, of which it computed for {used_cpu_s:.1f} s and waited for the rest"
        else:
            how = f"stopped after its time limit of {limit_s:g} s" + (" of CPU time" if counted == "cpu" else "")
        how += _while(stage)
        super().__init__(
            _stopped(label, how, where, fix := _time_fix(stage, where, waited=waited)),
            label=label,
            how=how,
            stage=stage,
            where=where,
            fix=fix,
        )


class CompilerOutOfMemory(WorkerEnded):
    """The worker was killed because the job took too much memory.

    Attributes:
        limit_bytes: the limit.
        used_bytes: resident memory of the worker and its children.
    """

    def __init__(
        self, *, label: str, limit_bytes: int, used_bytes: int, stage: Stage | None = None, where: str = ""
    ) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = used_bytes
        how = (
            f"stopped with {used_bytes / 2**30:.2f} GiB of memory in use, over its limit of "
            f"{limit_bytes / 2**30:.2f} GiB{_while(stage)}"
        )
        fix = (
            "take a smaller problem, or raise --memory-limit (in Python: memory_limit_bytes); fewer --workers leave "
            "more for each"
        )
        super().__init__(_stopped(label, how, where, fix), label=label, how=how, stage=stage, where=where, fix=fix)


class FunctionExit(ValueError):  # noqa: N818 -- said the way the user thinks of it
    """The user's code exited the program, and the caller would not have learned why.

    Attributes:
        how: the way in which it exited, such as "SystemExit(7)".
        where: the line, "file.py:12 in name", or "".
    """

    def __init__(self, how: str, where: str) -> None:
        self.how = how
        self.where = where
        super().__init__(how, where)

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        return f"{self.how}{at} would end the program: a function has to return, or raise an error that says why not"


def last_words(text: str) -> str:
    """Return the line of a dead process's standard error that says what went wrong; "" if there is none.

    libtpu writes a stack trace and the report of its crash handler after that line.
    """
    for pattern in _FATAL:
        if match := pattern.search(text):
            return match[match.lastgroup or 0].strip()
    lines = [line.strip() for line in text.splitlines() if not _NOISE.match(line)]
    return lines[-1] if lines else ""


def _stopped(label: str, how: str, where: str, fix: str) -> str:
    return f"{label or 'a task'} was {how}{f' at {where}' if where else ''}; {fix}"


def _time_fix(stage: Stage | None, where: str, *, waited: bool) -> str:
    longer = "raise --time-limit (in Python: time_limit_s)"
    if waited:
        return f"find out what it waits for, or {longer}; the limit by the clock is {WALL_TIMES} times as long"
    if stage in ("importing", "tracing"):
        return f"make sure that {'this line' if where else 'it'} ends, or {longer}"
    if stage in ("reading", "interpreting", "simulating"):
        loops = "the loops of its index maps" if stage == "reading" else "the kernel's loops"
        return f"make sure that {loops} end, take a smaller problem, or {longer}"
    return f"take smaller tiles, or {longer}"


def _while(stage: Stage | None) -> str:
    return f", while {DOING[stage]}" if stage is not None else ""
