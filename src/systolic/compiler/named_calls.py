"""Check the call of a named function against its `def`, before any worker starts and without importing anything."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from systolic.compiler.named import NamedFunction, NamedFunctionError, source_of_place
from systolic.compiler.names import UnknownNamesError
from systolic.support.choices import unknown_name
from systolic.support.regular_file import read_regular

# Decorators that keep a function's parameters, by the last part of their name.
_KEEPS_PARAMETERS = frozenset(("cache", "checkpoint", "custom_jvp", "custom_vjp", "jit", "lru_cache", "remat"))
_KINDS = inspect.Parameter


def check_named_call(function: NamedFunction, arguments: int, over: Sequence[str] = ()) -> None:
    """Check that a function takes this many arguments, and its static parameters.

    A function whose `def` does not show its parameters is left to the worker: one that is assigned or imported, or has
    a decorator that may change them.

    Args:
      function: with its static parameters.
      arguments: how many are passed by position.
      over: further static parameters, whose values are tuned.

    Raises:
      NamedFunctionError: an argument is missing, there are too many, or a parameter is unknown.
    """
    signature = _signature(function.text)
    if signature is None:
        return
    keywords = dict.fromkeys([*function.parameters, *over])
    names = [name for name, parameter in signature.parameters.items() if parameter.kind not in _MANY]
    by_keyword = [name for name in names if signature.parameters[name].kind is not _KINDS.POSITIONAL_ONLY]
    takes_any = any(parameter.kind is _KINDS.VAR_KEYWORD for parameter in signature.parameters.values())
    call = f"{function.text}{signature}"
    for name in keywords:
        if name not in by_keyword and not takes_any:
            raise NamedFunctionError(f"{call}: {unknown_name('parameter', name, by_keyword or ['none'])}")
    by_position = [name for name in names if signature.parameters[name].kind is not _KINDS.KEYWORD_ONLY]
    takes_more = any(parameter.kind is _KINDS.VAR_POSITIONAL for parameter in signature.parameters.values())
    if arguments > len(by_position) and not takes_more:
        raise NamedFunctionError(
            f"{call} takes at most {len(by_position)} arguments, and {arguments} are given: leave out the others; "
            f"static keyword arguments go into --param NAME=VALUE"
        )
    passed = by_position[:arguments]
    if twice := [name for name in passed if name in keywords]:
        raise NamedFunctionError(
            f"{call}: {twice[0]} is given twice, as argument {passed.index(twice[0]) + 1} and by name: leave out one"
        )
    missing = [
        name
        for name in names
        if signature.parameters[name].default is _KINDS.empty and name not in passed and name not in keywords
    ]
    if missing:
        raise NamedFunctionError(f"{call}: {' and '.join(missing)} {_fix(signature, missing)}")


_MANY = (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD)


def _fix(signature: inspect.Signature, missing: Sequence[str]) -> str:
    static = [name for name in missing if signature.parameters[name].kind is _KINDS.KEYWORD_ONLY]
    texts = ['--arg "f32[8,128]" for an array'] if len(static) < len(missing) else []
    texts.append(f"--param {(static or missing)[0]}=VALUE if it is static")
    return f"{'is' if len(missing) == 1 else 'are'} missing: add {', or '.join(texts)}"


@contextmanager
def explained_call(function: NamedFunction, loaded: Callable[..., Any], args: Sequence[Any]) -> Iterator[None]:
    """Turn a `TypeError` into a `NamedFunctionError` if the function does not take these arguments."""
    try:
        yield
    except TypeError as error:
        try:
            inspect.signature(loaded).bind(*args)
        except TypeError as mismatch:
            raise NamedFunctionError(f"{function.text}, called with {len(args)} arguments: {mismatch}") from error
        except ValueError:  # a function without a signature
            pass
        raise


def _signature(text: str) -> inspect.Signature | None:
    """Return the parameters of `FILE.py:FUNCTION` as its source has them; None if the source does not show them."""
    place, _, name = text.rpartition(":")
    try:
        tree = ast.parse(read_regular(source_of_place(place)))
    except (OSError, SyntaxError, ValueError, RecursionError, UnknownNamesError, ModuleNotFoundError):
        return None
    bindings = [statement for statement in tree.body if name in _names(statement)]
    definition = bindings[0] if len(bindings) == 1 else None
    if not isinstance(definition, ast.FunctionDef) or not all(map(_keeps, definition.decorator_list)):
        return None
    return inspect.Signature(list(_parameters(definition.args)))


def _names(statement: ast.stmt) -> set[str]:
    """Return every name that a statement may bind, at any depth."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    return {
        getattr(node, "name", None) or getattr(node, "asname", None) or getattr(node, "id", "")
        for node in ast.walk(statement)
    }


def _keeps(decorator: ast.expr) -> bool:
    if isinstance(decorator, ast.Call):
        called = _last_name(decorator.func)
        decorator = decorator.args[0] if called == "partial" and len(decorator.args) == 1 else decorator.func
    return _last_name(decorator) in _KEEPS_PARAMETERS


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _Source(str):
    """The text of a default value, which `inspect.Signature` writes by `repr`."""

    __slots__ = ()
    __repr__ = str.__str__


def _parameters(arguments: ast.arguments) -> Iterator[inspect.Parameter]:
    def parameter(argument: ast.arg, kind: Any, default: ast.expr | None = None) -> inspect.Parameter:
        value = _KINDS.empty if default is None else _Source(ast.unparse(default))
        return inspect.Parameter(argument.arg, kind, default=value)

    by_position = [
        *((argument, _KINDS.POSITIONAL_ONLY) for argument in arguments.posonlyargs),
        *((argument, _KINDS.POSITIONAL_OR_KEYWORD) for argument in arguments.args),
    ]
    defaults = [*[None] * (len(by_position) - len(arguments.defaults)), *arguments.defaults]
    for (argument, kind), default in zip(by_position, defaults, strict=True):
        yield parameter(argument, kind, default)
    if arguments.vararg is not None:
        yield parameter(arguments.vararg, _KINDS.VAR_POSITIONAL)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield parameter(argument, _KINDS.KEYWORD_ONLY, default)
    if arguments.kwarg is not None:
        yield parameter(arguments.kwarg, _KINDS.VAR_KEYWORD)
