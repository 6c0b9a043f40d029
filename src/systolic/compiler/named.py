"""Functions and arguments that are given as text: `FILE.py:FUNCTION` and `bf16[4096,4096]`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from systolic.compiler.names import UnknownNamesError, names_in, source_of_module
from systolic.compiler.stage import at_stage
from systolic.compiler.written_values import ArgumentValueError, checked_array, exact_values, held_dtype, read_npy
from systolic.spec import LARGEST_SIZE
from systolic.support.bugs import runs_user_code
from systolic.support.call_errors import WrongCallError
from systolic.support.choices import did_you_mean
from systolic.support.printable import printable
from systolic.support.regular_file import open_regular
from systolic.support.untrusted import shown

_PACKAGE = "__init__.py"
_MAX_NAMES = 12  # in a message
_MAX_VALUES = 2**28
_MAX_EXAMPLE_VALUES = 8  # values that an example of an argument writes out
_MAX_SHOWN_CHARACTERS = 200  # characters of a path in a message

_ARGUMENT = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[0-9, ]*)\](?:=(?P<values>.+))?", re.DOTALL)
_WIDTH = re.compile(r"(bf|f|s|i|u)(\d+)(\w*)")
_KINDS = {"bf": "bfloat", "f": "float", "s": "int", "i": "int", "u": "uint"}


class NamedFunctionError(WrongCallError, ValueError):
    """The text names no function, or no argument."""


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """A function by its name, which only the worker looks up: the user's code is not imported anywhere else."""

    text: str  # its name
    parameters: Mapping[str, Any] = field(default_factory=dict)  # static keyword arguments to bind

    @property
    def __name__(self) -> str:  # type: ignore[override]
        """The function's name, for messages."""
        return self.text

    def load(self) -> Callable[..., Any]:
        """Return the function, with its parameters bound; see `named_function`."""
        with at_stage("importing"):
            function = named_function(self.text)
        return functools.partial(function, **self.parameters) if self.parameters else function


def loaded_function(fn: Callable[..., Any] | NamedFunction) -> Callable[..., Any]:
    """Return the function itself, which is imported if `fn` is its name."""
    return fn.load() if isinstance(fn, NamedFunction) else fn


def function_name(fn: Any) -> str:
    """Return a function's name for messages, or the name of the function whose arguments it binds."""
    inner = fn.func if isinstance(fn, functools.partial) else fn
    return str(getattr(inner, "__name__", type(inner).__name__))


def check_function_name(text: str) -> None:
    """Check that `text` can name a function, without importing anything, and before any worker starts.

    Raises:
        NamedFunctionError: it does not have the form, there is no such file or module, it is not Python, or it has no
            such name. Only an import shows whether the name is a function's.
    """
    place, _, name = text.rpartition(":")
    if not place or not all(part.isidentifier() for part in name.split(".")):
        raise NamedFunctionError(
            f"{shown(text)} names no function: write FILE.py:FUNCTION, FOLDER:FUNCTION or package.module:FUNCTION"
        )
    try:
        names = names_in(source_of_place(place))
    except FileNotFoundError as error:
        raise NamedFunctionError(f"there is no file {_short(place)}") from error
    except ModuleNotFoundError as error:
        raise NamedFunctionError(f"there is no module {_short(place)}: {_short(str(error))}") from error
    except SyntaxError as error:
        raise NamedFunctionError(f"{_short(place)}:{error.lineno or 1} is not Python: {_short(error.msg)}") from error
    except (OSError, ValueError) as error:
        raise NamedFunctionError(f"{_short(place)} cannot be read: {_short(str(error))}") from error
    except UnknownNamesError:
        return
    if name.split(".")[0] not in names.all:
        raise NamedFunctionError(_no_function(place, name, names.all, names.functions or names.all))


def named_function(text: str) -> Callable[..., Any]:
    """Return the function that `FILE.py:FUNCTION` names. This imports the user's code, so call it in a worker.

    Raises:
        NamedFunctionError: there is none of that name.
        Exception: whatever the import raises.
    """
    check_function_name(text)
    place, _, name = text.rpartition(":")
    function: Any = _module(place)
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        names = [name_in_module for name_in_module, value in vars(_module(place)).items() if callable(value)]
        raise NamedFunctionError(_no_function(place, name, names, names))
    return function


def _no_function(place: str, name: str, callables: Sequence[str], listed: Sequence[str]) -> str:
    public = [name_in_file for name_in_file in listed if not name_in_file.startswith("_")]
    rest = f" and {len(public) - _MAX_NAMES} more" if len(public) > _MAX_NAMES else ""
    names = ", ".join(public[:_MAX_NAMES]) or "none"
    return f"{_short(place)} has no function {shown(name)}; {did_you_mean(name, callables)}it has {names}{rest}"


def source_of_place(place: str) -> Path:
    """Return the file of a module, which is named by its file, by its package's folder, or by its module name."""
    if place.endswith(".py"):
        return Path(place)
    return Path(place) / _PACKAGE if _is_folder(place) else source_of_module(place)


def _is_folder(place: str) -> bool:
    return (Path(place) / _PACKAGE).is_file()


@functools.cache
@runs_user_code
def _module(place: str) -> Any:
    if not place.endswith(".py") and not _is_folder(place):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise NamedFunctionError(f"there is no module {place}: {error}") from error
    path = Path(place).resolve()
    # As `python FILE.py` would: its neighbours can be imported.
    sys.path.insert(0, str(path.parent))
    inside = [str(path)] if path.is_dir() else None
    source = path if inside is None else path / _PACKAGE
    spec = importlib.util.spec_from_file_location(
        f"_systolic_named_{path.stem}", source, submodule_search_locations=inside
    )
    if spec is None or spec.loader is None:
        raise NamedFunctionError(f"{place} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def named_argument(text: str) -> Any:
    """Return the argument that a text describes: `bf16[4096,4096]` a shape, `s32[3]=1,5,2` an array, `FILE.npy` a file.

    Types go by HLO's names (bf16, f32, s8, u32, pred, f8e4m3fn) or NumPy's (bfloat16, int8). One value fills an array.

    Raises:
        NamedFunctionError: it is none of these.
    """
    if text.endswith(".npy"):
        return _array_of_file(Path(text))
    match = _ARGUMENT.fullmatch(text.strip())
    if match is None:
        raise NamedFunctionError(
            f"{shown(text)} is not an argument: write bf16[4096,4096] for a shape, s32[3]=1,5,2 for values, or a .npy "
            "file"
        )
    import jax

    dtype = _dtype(match["dtype"])
    sizes = [size.strip() for size in match["shape"].split(",") if size.strip()]
    # Longer numbers Python refuses to read.
    if any(len(size) > 10 or int(size) > LARGEST_SIZE for size in sizes):
        raise NamedFunctionError(f"{shown(text)}: a dimension has at most {LARGEST_SIZE} elements")
    shape = tuple(map(int, sizes))
    if match["values"] is None:
        return jax.ShapeDtypeStruct(shape, dtype)
    if math.prod(shape) > _MAX_VALUES:
        raise NamedFunctionError(f"{shown(text)}: an array with values has at most {_MAX_VALUES} elements here")
    try:
        values = exact_values(match["values"].split(","), dtype)
        return np.broadcast_to(values.reshape(() if values.size == 1 else shape), shape)
    except ValueError as error:
        hint = "" if isinstance(error, ArgumentValueError) else "; give one value, or as many as the shape holds"
        raise NamedFunctionError(f"{shown(text)}: {error}{hint}") from error


def argument_example(shape: Sequence[int], dtype: np.dtype) -> str:
    """Return an example of text for `named_argument` that gives an array its values: `s32[3]=0,1,2`, or a file."""
    count = math.prod(shape)
    if count > _MAX_EXAMPLE_VALUES:
        return "FILE.npy"
    first = 1 if count == 1 else 0
    values = ",".join(str(number % 2 if dtype == np.bool_ else number) for number in range(first, first + count))
    return f"{argument_type(shape, dtype)}={values}"


def argument_type(shape: Sequence[int], dtype: np.dtype) -> str:
    """Return a shape as `named_argument` takes it: `bf16[4096,4096]`."""
    name = dtype.name
    for kind, long in _KINDS.items():
        if (match := re.fullmatch(rf"{long}(\d+)_?(\w*)", name)) is not None:
            name = f"{kind}{match[1]}{match[2]}"
            break
    return f"{'pred' if name == 'bool' else name}[{','.join(map(str, shape))}]"


def _array_of_file(path: Path) -> np.ndarray:
    try:
        with open_regular(path) as file:
            return checked_array(read_npy(file))
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else error
        raise NamedFunctionError(f"{_short(str(path))} cannot be read as an array: {words}") from error


def _short(text: str) -> str:
    return printable(text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[: _MAX_SHOWN_CHARACTERS - 1]}…")


def _dtype(name: str) -> np.dtype:
    import jax.numpy as jnp

    if name in ("pred", "bool"):
        return np.dtype(bool)
    short = _WIDTH.fullmatch(name)
    try:
        if short is None:
            dtype = np.dtype(jnp.dtype(name))
        else:
            kind, bits, rest = short.groups()
            # JAX has the small float types by longer names: float8_e4m3fn.
            dtype = np.dtype(jnp.dtype(f"{_KINDS[kind]}{bits}{'_' + rest if rest else ''}"))
        held_dtype(dtype)
    except TypeError as error:
        raise NamedFunctionError(
            f"{shown(name)} is not an element type; say bf16, f32, s8, s32, f8e4m3fn or pred"
        ) from error
    return dtype
