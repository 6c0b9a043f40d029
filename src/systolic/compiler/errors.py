"""Exceptions between a function and its compiled program; they survive a process boundary."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Any, Literal

from systolic.support.call_errors import LackingError, WrongCallError
from systolic.support.extras import install_command

RefusalKind = Literal["vmem", "unsupported", "other"]

_UNIT_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"(\d+(?:\.\d+)?)([KMGT]?)B?"
# The compiler words one fact in several ways. Each pattern gives the bytes asked for, then the bytes there are.
_REQUESTED_AND_AVAILABLE = (
    re.compile(rf"Scoped allocation with size {_SIZE} and limit {_SIZE}"),
    re.compile(rf"Used {_SIZE} of {_SIZE}\s+\w+"),
    re.compile(rf"Allocation \(size={_SIZE}\) would exceed memory \(size={_SIZE}\)"),
    re.compile(rf"\({_SIZE}\) exceeds available \w+ \({_SIZE}\)"),
)
_VMEM = re.compile(r"ScopedVmemOom|in memory space vmem|\bspace=vmem\b")
_UNSUPPORTED = re.compile(
    r"\bE200[12]\b|[Uu]nsupported|[Uu]nimplemented|UNIMPLEMENTED|[Nn]ot implemented|Bad (?:lhs|rhs|acc) type|"
    r"internal verification error|Invalid vector type|MLIR translation rule|Invalid type:"
)
_NOISE = re.compile(
    r"^(?:[A-Z_]{4,}: )?(?:XLA:TPU compile permanent error\. |Mosaic failed to compile TPU kernel(?: with [^:]*)?: )?"
)


def _rebuild(cls: type[CompilerError], args: tuple[Any, ...], state: Mapping[str, Any]) -> CompilerError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class CompilerError(RuntimeError):
    """The compiler, or the worker it runs in, gave no program. Base of everything raised by `systolic.compiler`."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with `args` alone, which keyword-only parameters refuse.
        return _rebuild, (type(self), self.args, self.__dict__)


class CompilerMissing(LackingError, CompilerError):  # noqa: N818 -- said the way the user thinks of it
    """libtpu, which holds the TPU compiler, cannot be imported here."""

    def __init__(self) -> None:
        super().__init__(f"the TPU compiler, libtpu, is not installed: {install_command('tpu')}")


class CompilerRefusal(CompilerError):  # noqa: N818 -- said the way the user thinks of it
    """The compiler refused the program.

    Attributes:
        message: the compiler's text, verbatim.
        summary: one line of it.
        kind: "vmem" (does not fit VMEM), "unsupported" (an operation or type that this chip or compiler lacks),
            "other".
        requested_bytes: memory asked for, where the text says so. The text is rounded to two decimals of a unit.
        available_bytes: memory there is, where the text says so.
        where: "file.py:12 in name", the line of the user's source that was refused, where the compiler says so.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: RefusalKind,
        requested_bytes: int | None = None,
        available_bytes: int | None = None,
        where: str | None = None,
    ) -> None:
        self.message = message
        self.summary = _one_line(message)
        self.kind: RefusalKind = kind
        self.requested_bytes = requested_bytes
        self.available_bytes = available_bytes
        self.where = where
        super().__init__(self.summary if where is None else f"{self.summary} (at {where})")

    @classmethod
    def from_text(cls, message: str, *, default: RefusalKind = "other", where: str | None = None) -> CompilerRefusal:
        """Read kind and bytes out of the compiler's `message`; `default` is the kind of a text that does not tell."""
        requested, available = _bytes_in(message)
        kind = default
        if _VMEM.search(message) and requested is not None:
            kind = "vmem"
        elif _UNSUPPORTED.search(message):
            kind = "unsupported"
        return cls(message, kind=kind, requested_bytes=requested, available_bytes=available, where=where)


class CompilerFlagError(WrongCallError, CompilerError):
    """The compiler does not know a flag that a program is to be compiled with, or its value, by its own message."""

    @classmethod
    def raise_if_about(cls, message: str, flags: Mapping[str, str]) -> None:
        """Raise where the compiler's `message` is about one of these flags."""
        for name, value in flags.items():
            words = name if name != "xla_tpu_dvfs_p_state" else f"{name}|P-state"
            if re.match(rf"INVALID_ARGUMENT: .*\b({words})\b", message):
                answer = _one_line(message).removeprefix("INVALID_ARGUMENT: ").rstrip(": ")
                advice = " (one that libtpu takes only when it is loaded goes into LIBTPU_INIT_ARGS)"
                raise cls(f"compiler flag {name}={value}: {answer}{advice if answer.startswith('No such') else ''}")


class TaskError(CompilerError):
    """A task raised, or returned, something that cannot travel between processes.

    Attributes:
        remote_traceback: the traceback as the worker saw it.
    """

    def __init__(self, message: str, *, remote_traceback: str) -> None:
        self.remote_traceback = remote_traceback
        super().__init__(f"{message}\n{remote_traceback}".rstrip())


def compiler_is_there() -> bool:
    """True if libtpu can be imported. Starts no process and loads no compiler."""
    return importlib.util.find_spec("libtpu") is not None


def check_available() -> None:
    """Raise `CompilerMissing` unless libtpu can be imported. Starts no process and loads no compiler."""
    if not compiler_is_there():
        raise CompilerMissing


def _bytes_in(message: str) -> tuple[int | None, int | None]:
    for pattern in _REQUESTED_AND_AVAILABLE:
        if match := pattern.search(message):
            size, unit, limit, limit_unit = match.groups()
            return round(float(size) * _UNIT_BYTES[unit]), round(float(limit) * _UNIT_BYTES[limit_unit])
    return None, None


def _one_line(message: str) -> str:
    for pattern in _REQUESTED_AND_AVAILABLE:
        if match := pattern.search(message):
            # The sentence with the sizes says more than the first line, which names an error code.
            start = max(message.rfind(". ", 0, match.start()) + 2, message.rfind("\n", 0, match.start()) + 1)
            ends = [end for mark in (". ", ".\n", "\n") if (end := message.find(mark, match.end())) >= 0]
            return _NOISE.sub("", message[start : min(ends, default=len(message))].strip())
    lines = [line for line in message.strip().splitlines() if line.strip()] or ["no reason given"]
    return _NOISE.sub("", lines[0].strip()) or lines[0].strip()
