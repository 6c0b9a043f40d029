"""Decide whether an exception is a bug of systolic or a mistake of its caller."""

from __future__ import annotations

import functools
import importlib.util
import os
import pickle
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal, ParamSpec, TypeVar

from systolic.support.versions import versions

_P = ParamSpec("_P")
_R = TypeVar("_R")

_OWN_FOLDER = f"{Path(__file__).parents[1]}{os.sep}"
_HANDS_OVER: set[CodeType] = set()


class SystolicBug(RuntimeError):  # noqa: N818 -- said the way the user thinks of it
    """Systolic's own code raised an unexpected exception; the caller's input is not to blame.

    `__cause__` is that exception. If a worker process raised it, its traceback is missing.

    Attributes:
      summary: the exception's type, text and place in one line.
      details: its traceback as text.
    """

    def __init__(self, summary: str, details: str) -> None:
        self.summary = summary
        self.details = details
        installed = ", ".join(f"{name} {version}" for name, version in versions().items() if version is not None)
        super().__init__(
            f"this is a bug of systolic, not of your code: {summary}\n"
            f"Versions: {installed}.\n"
            "Please report it to the maintainers of systolic, with this text, its traceback, what you called, and what "
            "`systolic doctor` prints."
        )

    @classmethod
    def of(cls, error: BaseException) -> SystolicBug:
        """Return the bug of an exception; a bug returns itself."""
        if isinstance(error, SystolicBug):
            return error
        text = " ".join(str(error).split())
        place = _innermost_own(error)
        summary = type(error).__name__ + (f": {text}" if text else "") + (f" at {place}" if place else "")
        bug = cls(summary, "".join(traceback.format_exception(error)))
        bug.__cause__ = error
        return bug

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling an exception drops its cause.
        cause = self.__cause__
        try:
            pickle.loads(pickle.dumps(cause))
        except Exception:  # noqa: BLE001 -- any error of pickling its class: the text is kept
            cause = None
        return _rebuilt, (self.summary, self.details, cause)


def _rebuilt(summary: str, details: str, cause: BaseException | None) -> SystolicBug:
    bug = SystolicBug(summary, details)
    bug.__cause__ = cause
    return bug


def runs_user_code(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Mark a function that only runs the user's code: all that it raises is the user's.

    JAX raises some errors without any frame of the user's, such as that a function returns no array. Without the mark
    they would be blamed on the function of systolic that called JAX.
    """
    waiting = [function.__code__]
    while waiting:  # and lambdas and comprehensions in it
        code = waiting.pop()
        _HANDS_OVER.add(code)
        waiting += (const for const in code.co_consts if isinstance(const, CodeType))
    return function


def is_own(error: BaseException) -> bool:
    """True if an exception is a bug of systolic.

    The innermost frame of the user's or of systolic decides; frames of JAX, of the standard library and of other
    packages do not count. Errors that systolic names are answers. A full disk is not a bug.

    Args:
      error: with its traceback, which does not travel between processes: to be asked where it was raised.
    """
    chain = list(_chain(error))
    if any(isinstance(link, SystolicBug) for link in chain):
        return True
    if any(isinstance(link, OSError | MemoryError) or _is_named(link) for link in chain):
        return False
    for link in reversed(chain):
        for frame, _ in reversed(list(traceback.walk_tb(link.__traceback__))):
            whose = _whose(frame)
            if whose is not None:
                return whose == "systolic"
    return False


def raise_own(error: BaseException) -> None:
    """Raise a `SystolicBug` if an exception is one, see `is_own`; else return.

    For code that treats any exception of a user's function as an answer.
    """
    if is_own(error):
        raise SystolicBug.of(error)


def reports_bugs(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a library function raise `SystolicBug` if its own code fails; see `is_own`."""

    @functools.wraps(function)
    def reporting(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise_own(error)
            raise

    # The call itself raises only where it is called with arguments that the function does not take.
    return runs_user_code(reporting)


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn at the line of the user's that called systolic, however deep below it this is.

    Without such a line, as in a command, warn at the outermost line.
    """
    frame = sys._getframe()
    user_frame = frame
    while frame is not None:
        user_frame = frame
        if _whose(frame) == "user" and not frame.f_code.co_filename.startswith(_OWN_FOLDER):
            break
        frame = frame.f_back
    module = user_frame.f_globals.get("__name__", "<unknown>")
    registry = user_frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, category, user_frame.f_code.co_filename, user_frame.f_lineno, module, registry)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, the first cause last."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def _is_named(error: BaseException) -> bool:
    return any(base.__module__.partition(".")[0] == "systolic" for base in type(error).__mro__)


def _whose(frame: FrameType) -> Literal["systolic", "user"] | None:
    """Return the owner of a frame; None: it does not count."""
    code = frame.f_code
    if code in _HANDS_OVER:
        return "user"
    file = code.co_filename
    if file.startswith("<"):  # no file: what was typed in, or text that some package made
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        return "systolic" if module == "systolic" else "user" if module == "__main__" else None
    if file.startswith(_OWN_FOLDER):
        return "systolic"
    return None if _is_library(file) else "user"


def is_users_file(file: str) -> bool:
    """True if code of this file is the user's: neither systolic's, nor the standard library's, nor a package's.

    Text that was typed in, whose file is "<stdin>", is the user's.
    """
    return not file.startswith(_OWN_FOLDER) and not _is_library(file)


@functools.cache
def _is_library(file: str) -> bool:
    return file.startswith(_libraries()) or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Folders of the standard library and of JAX, which may lie anywhere."""
    roots = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    for name in ("jax", "jaxlib"):
        spec = importlib.util.find_spec(name)
        roots += (spec.submodule_search_locations or ()) if spec is not None else ()
    return tuple(f"{root}{os.sep}" for root in roots)


def _innermost_own(error: BaseException) -> str:
    """Return the innermost line of systolic in the traceback: "systolic/a.py:12 in f", or ""."""
    for link in reversed(list(_chain(error))):
        for frame, line in reversed(list(traceback.walk_tb(link.__traceback__))):
            if _whose(frame) == "systolic" and frame.f_code.co_filename.startswith(_OWN_FOLDER):
                file = Path(frame.f_code.co_filename).relative_to(Path(_OWN_FOLDER).parent)
                return f"{file.as_posix()}:{line} in {frame.f_code.co_name}"
    return ""
