"""Find the line of the user's source that caused an exception of the compiler."""

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

# Rooms of this package whose functions are not blamed, because they run the user's functions. Kernels and lessons count
# as a user's code.
_MACHINERY = (
    *("analysis", "bench", "checking", "cli", "cloud", "compat", "compiler", "experiments", "explaining"),
    *("ops/replacing", "report", "simulator", "store", "timing", "tuning", "validation"),
)
_STACK_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_RECORDED = "_systolic_where"

_LOCATION = re.compile(r'"(?P<name>[^"]*)"\("(?P<file>[^"]+)":(?P<line>\d+):\d+')


def source_line(error: BaseException) -> str | None:
    """Return the innermost line of the user's code in the tracebacks of `error`: "file.py:12 in name", or None.

    JAX attaches the place of a refused operation to the exception as its traceback or its cause's, or writes it into
    the text as a location of MLIR. An exception that comes from a worker has its line recorded.
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
    """Record the line that `source_line` returns for an exception from another process, which has no traceback."""
    with suppress(Exception):  # an exception may have slots
        setattr(error, _RECORDED, where)


def current_line() -> str:
    """Return the innermost line of the user's code that this thread executes: "file.py:12 in name", or ""."""
    return _innermost(traceback.extract_stack()) or ""


def line_in_stacks(text: str) -> str:
    """Return the innermost line of the user's code in the stacks that `faulthandler` wrote, or "".

    `faulthandler` writes the main thread last, and the innermost frame of each thread first.
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
        # Pallas makes frames from locations of the compiler. Their names may contain part of the location.
        if '"' not in frame.name and _is_users(frame.filename):
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return None


def written_at(equation: Any) -> str:
    """Return the innermost line of the user's code that made an equation of a jaxpr: "file.py:12 in name", or "".

    If only a kernel that comes with JAX made the equation, its line is returned, which is better than none.
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
    """Shorten a place in a file: relative to the current folder, or to the folder of its package."""
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


@cache
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
