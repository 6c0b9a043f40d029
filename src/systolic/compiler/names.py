"""Read the names of a module from its source: no code is run to learn that a function is missing."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from systolic.support.regular_file import read_regular


class UnknownNamesError(Exception):
    """The names of a module are not known before it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNames:
    """Yield the names that a module's statements bind, in their order, reached or not."""

    all: tuple[str, ...]  # every name
    functions: tuple[str, ...]  # names of its own functions and classes


def source_of_module(module: str) -> Path:
    """Return the source file of `package.module`, found without an import.

    Raises:
        ModuleNotFoundError: there is no such module.
        UnknownNamesError: it has no source, or only an import finds it.
    """
    top, *rest = module.split(".")
    if not all(part.isidentifier() for part in (top, *rest)):
        raise ModuleNotFoundError(f"No module can be named {module!r}", name=module)
    spec = importlib.util.find_spec(top)
    name = top
    for part in rest:
        if spec is None:
            break
        if spec.submodule_search_locations is None:
            raise UnknownNamesError(name)  # a module that makes others as it runs, as os makes os.path
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise UnknownNamesError(name)
    return Path(spec.origin)


def names_in(source: Path) -> ModuleNames:
    """Return the names of a module.

    Raises:
        UnknownNamesError: it imports everything from elsewhere, or makes names as it runs.
        SyntaxError: it is not Python.
        OSError, UnicodeDecodeError: it cannot be read.
    """
    try:
        tree = ast.parse(read_regular(source), filename=str(source))
    except (ValueError, RecursionError) as error:  # a null byte; brackets nested too deep
        raise SyntaxError(str(error)) from error
    names = list(_bound(tree.body))
    return ModuleNames(
        all=tuple(dict.fromkeys(name for name, _ in names)),
        functions=tuple(dict.fromkeys(name for name, is_function in names if is_function)),
    )


def _bound(statements: Sequence[ast.stmt]) -> Iterator[tuple[str, bool]]:
    for statement in statements:
        match statement:
            case ast.FunctionDef(name="__getattr__"):
                raise UnknownNamesError("__getattr__")
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield statement.name, True
            case ast.Import() | ast.ImportFrom():
                for alias in statement.names:
                    if alias.name == "*":
                        raise UnknownNamesError("*")
                    yield alias.asname or alias.name.split(".")[0], False
            case _:
                yield from _bound_within(statement)


def _bound_within(statement: ast.stmt) -> Iterator[tuple[str, bool]]:
    """Yield the names bound by assignments, and in the branches of an `if`, a loop, a `with` or a `try`."""
    blocks: list[ast.AST] = [statement]
    while blocks:
        node = blocks.pop(0)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from _bound([child])
            elif isinstance(child, ast.Name):
                if isinstance(child.ctx, ast.Store):
                    yield child.id, False
                elif child.id in ("globals", "exec", "setattr", "vars"):
                    raise UnknownNamesError(child.id)
            else:
                blocks.append(child)
