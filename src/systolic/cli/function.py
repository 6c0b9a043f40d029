"""The function that a command is about: its name, its arguments, and what is static about it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, TypeVar

import click

from systolic.compiler import NamedFunction, check_function_name

_F = TypeVar("_F", bound=Callable[..., Any])


class StaticParameter(click.ParamType):
    """NAME=VALUE, the value as in Python; what is no Python literal is text."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Text to a pair."""
        if not isinstance(value, str):
            return value
        name, equals, text = value.partition("=")
        if not equals or not name.strip().isidentifier():
            self.fail(f"{value!r} is no parameter: write NAME=VALUE, such as tile_m=512", param, ctx)
        try:
            return name.strip(), ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            return name.strip(), text.strip()


class StaticChoices(click.ParamType):
    """NAME=VALUE,VALUE,… or NAME.FIELD=…, the values as in Python; where one is no Python literal, all are text."""

    name = "NAME=VALUES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Text to a name and its values."""
        if not isinstance(value, str):
            return value
        name, equals, text = value.partition("=")
        parts = name.strip().split(".")
        if not equals or len(parts) > 2 or not all(part.isidentifier() for part in parts) or not text.strip():
            example = "block_q=128,256, or block_sizes.block_q=128,256 of a record"
            self.fail(f"{value!r} are no values: write NAME=VALUE,VALUE, such as {example}", param, ctx)
        try:
            return name.strip(), tuple(ast.literal_eval(f"[{text}]"))
        except (ValueError, SyntaxError):
            return name.strip(), tuple(word.strip() for word in text.split(","))


def function_options(command: _F) -> _F:
    """FUNCTION, `--arg` and `--param`."""
    return click.argument("function", metavar="FILE.py:FUNCTION")(argument_options(command))


def argument_options(command: _F) -> _F:
    """`--arg` and `--param`."""
    command = click.option(
        "--param",
        "parameters",
        type=StaticParameter(),
        multiple=True,
        help="A static keyword argument: tile_m=512, block_shape=(512,1024), causal=True.",
    )(command)
    return click.option(
        "--arg",
        "arguments",
        multiple=True,
        metavar="TEXT",
        help="One for each argument: bf16[4096,4096] is a shape, s32[3]=1,5,2 an array, FILE.npy an array from a file. "
        "With --mesh, @ and the axis that each dimension is cut along: bf16[8192,8192]@data,-.",
    )(command)


def named(function: str, parameters: tuple[tuple[str, Any], ...]) -> NamedFunction:
    """The function by its name, with what is static about it. Imports nothing.

    Raises:
      NamedFunctionError: the text names no function; see `check_function_name`.
    """
    check_function_name(function)
    return NamedFunction(function, dict(parameters))
