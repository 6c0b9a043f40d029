"""Finds the line of the user's source that an exception from the compiler is about."""

from __future__ import annotations

import importlib.util
import re
import sysconfig
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

# Rooms of this package whose functions no user asks about: they run the user's. Kernels and lessons are read as users'
# code is.
_MACHINERY = (
    *("analysis", "bench", "checking", "cli", "cloud", "compat", "compiler", "experiments", "explaining"),
    *("ops/replacing", "report", "simulator", "store", "timing", "tuning", "validation"),
)
_STACK_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_RECORDED = "_systolic_where"

_LOCATION = re.compile(r'"(?P<name>[^"]*)"\("(?P<file>[^"]+)":(?P<line>\d+):\d+')


def source_line(error: BaseException) -> str | None:
    """The innermost line in `error`'s tracebacks that is the user's: "file.py:12 in name", or None.

    JAX hangs the place where a refused operation was written on the exception, as its traceback or as its cause's, or
    leaves it in the text, as a location of MLIR's. An exception that comes from a worker has its line recorded.
    """
    cause: BaseException | None = error
    while cause is not None:
        if recorded := getattr(cause, _RECORDED, ""):
            return recorded
        if line := _innermost(traceback.extract_tb(cause.__traceback__)):
            return line
        cause = cause.__cause__
    for line in _LOCATION.finditer(str(error)):
        if Path(line["file"]).is_file() and not _is_foreign(line["file"]):
            return f"{line['file']}:{line['line']} in {line['name']}"
    return None


def record_line(error: BaseException, where: str) -> None:
    """Keep what `source_line` shall say of an exception that comes from another process: tracebacks do not travel."""
    with suppress(Exception):  # an exception may have slots
        setattr(error, _RECORDED, where)


def current_line() -> str:
    """The innermost line of the user's that is being executed in this thread: "file.py:12 in name", or ""."""
    return _innermost(traceback.extract_stack()) or ""


def line_in_stacks(text: str) -> str:
    """The innermost line of the user's in what `faulthandler` writes of all threads, or "".

    It writes the main thread last, and of each thread the innermost frame first.
    """
    threads: list[list[str]] = [[]]
    for line in text.splitlines():
        if frame := _STACK_FRAME.match(line):
            if _is_users(frame["file"]):
                threads[-1].append(f"{frame['file']}:{frame['line']} in {frame['name']}")
        elif threads[-1]:
            threads.append([])
    return next((frames[0] for frames in reversed(threads) if frames), "")


def _innermost(frames: Sequence[traceback.FrameSummary]) -> str | None:
    for frame in reversed(frames):
        # A frame that Pallas made up of the compiler's location may have part of that location for a name.
        if '"' not in frame.name and _is_users(frame.filename):
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return None


def written_at(equation: Any) -> str:
    """The innermost line of the user's source that an equation of a jaxpr comes from, "file.py:12 in name", or "".

    A kernel that comes with JAX counts as the user's where nothing else does: its line says more than none.
    """
    traceback_of = getattr(equation.source_info, "traceback", None)
    frames = traceback_of.frames if traceback_of is not None else ()
    named = [frame for frame in frames if Path(frame.file_name).is_file()]
    user_frames = [frame for frame in named if not _is_foreign(frame.file_name)]
    kernels = [frame for frame in named if "/pallas/ops/" in frame.file_name]
    for frame in (*kernels, *user_frames):
        function = frame.function_name.replace(".<locals>", "")
        return f"{frame.file_name}:{frame.line_num} in {function}"
    return ""


def short_place(where: str) -> str:
    """A place in a file as a person would say it: from the current folder, or from the package that it is in."""
    file, colon, rest = where.partition(":")
    path = Path(file)
    if path.is_relative_to(Path.cwd()) and "site-packages" not in path.parts:
        return f"{path.relative_to(Path.cwd())}{colon}{rest}"
    if "site-packages" in path.parts:
        at = len(path.parts) - path.parts[::-1].index("site-packages")
        return f"{Path(*path.parts[at:])}{colon}{rest}"
    return f"{Path(*path.parts[-2:])}{colon}{rest}" if path.is_absolute() else where


@cache
def is_kernel_code(file: str) -> bool:
    """True if a file is the user's, or one of the kernels that come with JAX."""
    return _is_users(file) or "/pallas/ops/" in file


def _is_users(file: str) -> bool:
    return Path(file).is_file() and not _is_foreign(file)


def _is_foreign(file: str) -> bool:
    # Without a virtual environment site-packages lies inside the standard library's folder.
    in_stdlib = file.startswith(f"{sysconfig.get_path('stdlib')}/") and "-packages/" not in file
    return in_stdlib or file.startswith(_foreign_code())


@cache
def _foreign_code() -> tuple[str, ...]:
    """Return the beginnings of paths of code that is not the user's."""
    own_folder = Path(__file__).parents[1]
    folders = []
    for package in ("jax", "jaxlib", "numpy"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            folders.extend(spec.submodule_search_locations)
    rooms = (f"{own_folder / name}/" for name in _MACHINERY)
    return (*rooms, *(f"{folder}/" for folder in folders))
