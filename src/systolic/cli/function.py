"""The function that a command is about: its name, its arguments, and what is static about it."""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from systolic.cli.options import TextType
from systolic.compiler import NamedFunction, check_function_name, check_named_call
from systolic.support.untrusted import shown

_F = TypeVar("_F", bound=Callable[..., Any])

_LONGEST_LITERAL = 10_000  # characters; a deeper nest than these can hold would end Python's parser
_MAX_DIGITS = 4300  # that Python reads


class LiteralError(ValueError):
    """The text begins like a Python value, but is not one."""


class _NoLiteralError(Exception):
    """A text that is not a Python literal."""


def literal(text: str, kind: type[ast.expr] = ast.expr) -> Any:
    """Return the value of a Python literal.

    Args:
      text: the literal and nothing else: if a list is expected, "[1], [2]" is not one.
      kind: the kind of literal that it has to be.

    Raises:
      LiteralError: Python cannot make the value: an unhashable key, brackets nested too deep, too many digits.
      _NoLiteralError: it is not a literal.
    """
    if len(text) > _LONGEST_LITERAL:
        raise LiteralError(f"a value has at most {_LONGEST_LITERAL:,} characters; give a shorter one")
    digits = re.sub(r"\W|_", "", text, flags=re.ASCII)
    if digits.isdecimal() and len(digits) > _MAX_DIGITS:
        raise LiteralError(f"a number has at most {_MAX_DIGITS:,} digits, and this has {len(digits):,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a backslash in a text that is not Python's
            node = ast.parse(text, mode="eval").body
        if not isinstance(node, kind) or (kind is not ast.expr and ast.get_source_segment(text, node) != text):
            raise _NoLiteralError
        return ast.literal_eval(node)
    except (ValueError, SyntaxError) as error:
        raise _NoLiteralError from error
    except TypeError as error:  # {[]: 1}, {{}}
        raise LiteralError(f"Python cannot make this value: {error}; quote it if it is text") from error
    except (MemoryError, RecursionError) as error:
        raise LiteralError("it is nested too deep; give a simpler value, or quote it if it is text") from error


class StaticParameter(TextType):
    """NAME=VALUE, the value as in Python; what is not a Python literal is text."""

    name = "NAME=VALUE"

    def read(self, value: str) -> tuple[str, Any]:
        name, equals, text = value.partition("=")
        if not equals or not name.strip().isidentifier():
            raise click.BadParameter(f"{shown(value)} is not a parameter: write NAME=VALUE, such as tile_m=512")
        try:
            return name.strip(), literal(text.strip())
        except _NoLiteralError:
            return name.strip(), text.strip()
        except LiteralError as error:
            raise click.BadParameter(f"{name.strip()}={shown(text)}: {error}") from error


class StaticChoices(TextType):
    """NAME=VALUE,VALUE,… or NAME.FIELD=…, the values as in Python; where one is not a Python literal, all are text."""

    name = "NAME=VALUES"

    def read(self, value: str) -> tuple[str, Any]:
        name, equals, text = value.partition("=")
        parts = name.strip().split(".")
        if not equals or len(parts) > 2 or not all(part.isidentifier() for part in parts) or not text.strip():
            example = "block_q=128,256, or block_sizes.block_q=128,256 of a record"
            raise click.BadParameter(f"{shown(value)} are not values: write NAME=VALUE,VALUE, such as {example}")
        try:
            return name.strip(), tuple(literal(f"[{text}]", kind=ast.List))
        except _NoLiteralError:
            return name.strip(), tuple(word.strip() for word in text.split(","))
        except LiteralError as error:
            raise click.BadParameter(f"{name.strip()}={shown(text)}: {error}") from error


def each_once(
    context: click.Context, parameter: click.Parameter, pairs: tuple[tuple[str, Any], ...]
) -> tuple[tuple[str, Any], ...]:
    """Return the pairs of an option that may be given again, but not with the same name.

    Raises:
      click.BadParameter: a name is given twice.
    """
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise click.BadParameter(f"{twice[0]} is given twice; give it once", context, parameter)
    return pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFunction:
    """The function that a command is about, as the command line gives it."""

    text: str  # FILE.py:FUNCTION
    arguments: tuple[str, ...]
    parameters: tuple[tuple[str, Any], ...]

    def named(self) -> NamedFunction:
        """Return the function by its name, see `named`."""
        return named(self.text, self.parameters, len(self.arguments))

    def other(self, text: str | None) -> NamedFunction | None:
        """Return another function of the same arguments by its name; None if there is none."""
        return None if text is None else named(text, (), len(self.arguments))


def function_options(command: _F) -> _F:
    """Add FUNCTION, `--arg` and `--param`, which the command takes as `requested`."""

    @functools.wraps(command)
    def packed(
        *args: Any, function: str, arguments: tuple[str, ...], parameters: tuple[tuple[str, Any], ...], **rest: Any
    ) -> Any:
        requested = AskedFunction(text=function, arguments=arguments, parameters=parameters)
        return command(*args, requested=requested, **rest)

    made: Any = argument_options(packed)
    return click.argument("function", metavar="FILE.py:FUNCTION")(made)


def argument_options(command: _F) -> _F:
    """Add `--arg` and `--param` to a command."""
    command = click.option(
        "--param",
        "parameters",
        type=StaticParameter(),
        multiple=True,
        callback=each_once,
        help="A static keyword argument, such as tile_m=512, block_shape=(512,1024) or causal=True.",
    )(command)
    return click.option(
        "--arg",
        "arguments",
        multiple=True,
        metavar="TEXT",
        help="The next argument of the function: a shape such as bf16[4096,4096], an array such as s32[3]=1,5,2, or "
        "FILE.npy. With --mesh, add @ and the mesh axis that cuts each dimension: bf16[8192,8192]@data,-.",
    )(command)


def named(
    function: str, parameters: Sequence[tuple[str, Any]], arguments: int, over: Sequence[str] = ()
) -> NamedFunction:
    """Return the function by its name, with its static parameters. Imports nothing.

    Args:
      arguments: how many arguments it is called with.
      over: further static parameters, whose values are tuned.

    Raises:
      NamedFunctionError: there is no such function, or it does not take this call.
    """
    check_function_name(function)
    named_function = NamedFunction(function, dict(parameters))
    check_named_call(named_function, arguments, over)
    return named_function
