"""Find the globals that a function reads, in its module and the user's other modules, by the names in its code.

The walk follows functions, classes, modules and what wraps them. It takes a name for read wherever code mentions it, so
that it may list too much; it misses what is looked up by a text that is made at run time. Modules of installed packages
and of systolic are left out: users are not expected to change their contents.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from systolic.support.bugs import is_users_file

_MAX_OBJECTS = 20_000  # the limit of visited objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a global."""

    module: str  # its name
    owner: str  # the class in it whose attribute it is, "Outer.Inner"; "": it is the module's
    name: str  # of the global, or of the attribute

    def __str__(self) -> str:
        return ".".join(filter(None, (self.module, self.owner, self.name)))


@dataclass(slots=True)
class GlobalsUsed:
    """A walk from functions to the globals that they read."""

    values: dict[Place, Any] = field(default_factory=dict)  # the value at each place
    _seen: dict[int, Any] = field(default_factory=dict)  # holds the objects, so that no id is used again
    _waiting: list[Any] = field(default_factory=list)

    def add(self, roots: Iterable[Any]) -> None:
        """Follow functions, and whatever else holds code."""
        self._waiting += roots
        while self._waiting and len(self._seen) < _MAX_OBJECTS:
            value = self._waiting.pop()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self._follow(value)

    def _follow(self, value: Any) -> None:
        match value:
            case FunctionType():
                if is_users_file(value.__code__.co_filename):
                    self._follow_function(value)
            case functools.partial():
                self._waiting += [value.func, *value.args, *value.keywords.values()]
            case MethodType():
                self._waiting += [value.__func__, value.__self__]
            case staticmethod() | classmethod():
                self._waiting.append(value.__func__)
            case property():
                self._waiting += [value.fget, value.fset]
            case type():
                self._follow_class(value)
            case dict():
                self._waiting += itertools.islice(value.values(), _MAX_OBJECTS)
            case list() | tuple() | set() | frozenset():
                self._waiting += itertools.islice(value, _MAX_OBJECTS)
            case ModuleType() | str() | bytes() | int() | float() | None:
                pass
            case _:
                self._follow_object(value)

    def _follow_function(self, function: FunctionType) -> None:
        names = set(_names(function.__code__))
        bound = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *_cells(function)]
        home = users_module(str(function.__globals__.get("__name__", "")))
        if home is None or vars(home) is not function.__globals__:  # it is sent by value, and its globals with it
            bound += [function.__globals__[name] for name in names if name in function.__globals__]
            home = None
        # Modules that it has by other names, and modules of `import helper` inside of it.
        modules = [home, *(value for value in bound if isinstance(value, ModuleType)), *map(users_module, names)]
        self._waiting += bound
        self._read(names, [module for module in modules if module is not None])

    def _read(self, names: set[str], modules: list[ModuleType]) -> None:
        """Take down what code with these names may read of modules, and of modules that these import."""
        looked_at: set[str] = set()
        while modules:
            module = modules.pop()
            module_name = getattr(module, "__name__", "")
            if module_name in looked_at or users_module(module_name) is not module:
                continue
            looked_at.add(module_name)
            content = vars(module)
            for name in names & content.keys():
                value = content[name]
                if isinstance(value, ModuleType):
                    modules.append(value)
                if not _is_special(name):
                    self.values[Place(module=module_name, owner="", name=name)] = value
                    self._waiting.append(value)

    def _follow_class(self, kind: type) -> None:
        module = users_module(kind.__module__)
        if module is None or resolved(kind.__module__, kind.__qualname__) is not kind:
            return
        for name, value in vars(kind).items():
            self._waiting.append(value)
            if not _is_special(name):
                self.values[Place(module=kind.__module__, owner=kind.__qualname__, name=name)] = value
        self._waiting += kind.__bases__

    def _follow_object(self, value: Any) -> None:
        inner = _attribute(value, "__wrapped__")
        if inner is not None:
            self._waiting.append(inner)
        if users_module(type(value).__module__) is not None:
            self._waiting += [type(value), *_attributes(value).values()]


def users_module(name: str) -> ModuleType | None:
    """Return the module of this name if it is the user's own and a worker can import it; None: it is not."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) if name != "__main__" else None
    return module if isinstance(module, ModuleType) and isinstance(file, str) and is_users_file(file) else None


def resolved(module: str, qualname: str) -> Any:
    """Return what a module has under a name with dots; None: nothing. Imports nothing."""
    value: Any = sys.modules.get(module)
    for part in qualname.split("."):
        value = _attribute(value, part)
    return value


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is not filled yet
            yield cell.cell_contents


def _names(code: CodeType) -> Iterator[str]:
    for name in code.co_names:
        yield name
        yield from name.split(".")  # `import package.module` is one name
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_special(name: str) -> bool:
    return name.startswith("__") or not name.isidentifier()


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute; None if it does not exist, or if a user's `__getattr__` fails."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 -- whatever it raises, such as an import that fails
        return None


def _attributes(value: Any) -> dict[str, Any]:
    try:
        return dict(vars(value))
    except TypeError:  # slots
        return {}
