"""Numbers that the functions inside of a function take for arguments, or find in constants of their modules.

Python notifies a debugger when a function is entered. Here the same hook shows, while JAX traces, the arguments with
which the user's functions are entered; a number is changed as a debugger would change it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from systolic.compiler import is_kernel_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A variable that is not an argument of the function itself."""

    module: str  # the name of the module
    # The qualified name of the function whose argument it is; "": it is a constant of the module.
    function: str
    name: str  # of the variable
    # "file.py:12 in name", where the function begins, or one that reads the constant.
    where: str = field(compare=False)


@contextmanager
def values_seen() -> Iterator[dict[Home, Any]]:
    """Collect what functions are entered with, and the constants that they may read: the first value of each.

    What JAX has traced before is not entered again, so its caches are cleared.
    """
    values: dict[Home, Any] = {}

    def entered(frame: Any) -> None:
        for home, value in _variables(frame):
            values.setdefault(home, value)

    with _at_each_call(entered):
        yield values


@contextmanager
def values_changed(changes: Mapping[Home, Callable[[Any], Any]]) -> Iterator[None]:
    """Let functions be entered with other values, and read other constants.

    Args:
      changes: makes the new value of the old one.
    """
    arguments = {(home.module, home.function, home.name): change for home, change in changes.items() if home.function}
    constants = {(home.module, home.name): change for home, change in changes.items() if not home.function}
    before: dict[tuple[str, str], tuple[dict[str, Any], Any]] = {}

    def entered(frame: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        for (where, name), change in constants.items():
            if where == module and (where, name) not in before and name in frame.f_globals:
                before[where, name] = frame.f_globals, frame.f_globals[name]
                frame.f_globals[name] = change(frame.f_globals[name])
        function = frame.f_code.co_qualname
        for name in _argument_names(frame.f_code):
            if change := arguments.get((module, function, name)):
                frame.f_locals[name] = change(frame.f_locals[name])

    try:
        with _at_each_call(entered):
            yield
    finally:
        for (_, name), (variables, value) in before.items():
            variables[name] = value


@contextmanager
def _at_each_call(entered: Callable[[Any], None]) -> Iterator[None]:
    import jax

    modules: dict[int, dict[str, Any]] = {}

    def told(frame: Any, event: str, _: Any) -> None:
        if event == "call" and is_kernel_code(frame.f_code.co_filename):
            if id(frame.f_globals) not in modules:
                modules[id(frame.f_globals)] = frame.f_globals
                _forget(frame.f_globals)
            entered(frame)

    before = sys.gettrace()
    jax.clear_caches()
    sys.settrace(told)
    try:
        yield
    finally:
        sys.settrace(before)
        # What was made with other numbers is not to be found again.
        jax.clear_caches()
        for variables in modules.values():
            _forget(variables)


def _forget(variables: Mapping[str, Any]) -> None:
    """Clear the caches of a module's own functions, except those that must act only once, such as to register."""
    for variable in variables.values():
        if isinstance(variable, functools._lru_cache_wrapper) and not _has_acted(variable):
            variable.cache_clear()


def _has_acted(cached: Any) -> bool:
    """True if a function without arguments was called and returned nothing; it is not called again to find out."""
    code = getattr(cached.__wrapped__, "__code__", None)
    is_known = code is not None and not _argument_names(code) and cached.cache_info().currsize == 1
    return is_known and cached() is None


def _argument_names(code: Any) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _variables(frame: Any) -> Iterator[tuple[Home, Any]]:
    code, module = frame.f_code, frame.f_globals.get("__name__", "")
    where = f"{code.co_filename}:{code.co_firstlineno} in {code.co_qualname.rpartition('.')[2]}"
    values = frame.f_locals
    for name in _argument_names(code):
        yield Home(module=module, function=code.co_qualname, name=name, where=where), values[name]
    for name in code.co_names:
        if name in frame.f_globals:
            yield Home(module=module, function="", name=name, where=where), frame.f_globals[name]
