"""Which line of the user's source an exception from the compiler is about."""

from __future__ import annotations

import importlib.util
import re
import sysconfig
import traceback
from functools import cache
from pathlib import Path
from typing import Any

_LOCATION = re.compile(r'"(?P<name>[^"]*)"\("(?P<file>[^"]+)":(?P<line>\d+):\d+')


def source_line(error: BaseException) -> str | None:
    """The innermost line in `error`'s tracebacks that is the user's: "file.py:12 in name", or None.

    JAX hangs the place where a refused operation was written on the exception, as its traceback or as its cause's, or
    leaves it in the text, as a location of MLIR's.
    """
    each: BaseException | None = error
    while each is not None:
        for frame in reversed(traceback.extract_tb(each.__traceback__)):
            # A frame that Pallas made up of the compiler's location may have part of that location for a name.
            made_up = '"' in frame.name
            if not made_up and Path(frame.filename).is_file() and not _is_foreign(frame.filename):
                return f"{frame.filename}:{frame.lineno} in {frame.name}"
        each = each.__cause__
    for found in _LOCATION.finditer(str(error)):
        if Path(found["file"]).is_file() and not _is_foreign(found["file"]):
            return f"{found['file']}:{found['line']} in {found['name']}"
    return None


def written_at(equation: Any) -> str:
    """The innermost line of the user's source that an equation of a jaxpr comes from, "file.py:12 in name", or "".

    A kernel that comes with JAX counts as the user's where nothing else does: its line says more than none.
    """
    traceback_of = getattr(equation.source_info, "traceback", None)
    frames = traceback_of.frames if traceback_of is not None else ()
    named = [frame for frame in frames if Path(frame.file_name).is_file()]
    own = [frame for frame in named if not _is_foreign(frame.file_name)]
    kernels = [frame for frame in named if "/pallas/ops/" in frame.file_name]
    for frame in (*kernels, *own):
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


def _is_foreign(file: str) -> bool:
    # Without a virtual environment site-packages lies inside the standard library's folder.
    in_stdlib = file.startswith(f"{sysconfig.get_path('stdlib')}/") and "-packages/" not in file
    return in_stdlib or file.startswith(_foreign_packages())


@cache
def _foreign_packages() -> tuple[str, ...]:
    roots = [str(Path(__file__).parent)]
    for package in ("jax", "jaxlib"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            roots.extend(spec.submodule_search_locations)
    return tuple(f"{root}/" for root in roots)
