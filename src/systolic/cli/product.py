"""The options by which commands take one product or a suite of products."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from systolic.bench.cases import Case, fused_spec, sizes
from systolic.bench.sharded import SUITE as SHARDED
from systolic.bench.suites import SUITES, suite
from systolic.cli.options import TextType, count_option, whole_number
from systolic.ops.op import op_of, read_spec
from systolic.spec import LARGEST_SIZE, MatmulSpec, PrecisionName, Spec
from systolic.support.choices import unknown_name
from systolic.support.regular_file import read_regular
from systolic.support.untrusted import UntrustedError, mapping, read_json

DTYPES = ("float32", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2")


class ProductSizes(TextType):
    """Three whole numbers M,K,N."""

    name = "M,K,N"

    def read(self, value: str) -> tuple[int, int, int]:
        parts = [size for part in value.split(",") if (size := whole_number(part))]
        if len(parts) != 3 or value.count(",") != 2:
            raise click.BadParameter(
                f"{value!r}: give three whole numbers M,K,N from 1 to {LARGEST_SIZE}, such as 2048,4096,14336"
            )
        m, k, n = parts
        return m, k, n


class ProductOrFunction(ProductSizes):
    """Three whole numbers M,K,N, or FILE.py:FUNCTION."""

    name = "M,K,N|FILE.py:FUNCTION"

    def read(self, value: str) -> Any:
        return value if ":" in value else super().read(value)


class SpecFile(TextType):
    """A file with the spec of any op, as a row of `plan --json` or `tune --json` has it."""

    name = "FILE"

    def read(self, value: str) -> Any:
        try:
            record = mapping(read_json(read_regular(Path(value))), "it")
            return read_spec(record.get("op"), record.get("spec"))
        except OSError as error:
            raise click.BadParameter(f"cannot read {value}: {error.strerror}") from error
        except UntrustedError as error:
            raise click.BadParameter(f'{value} is not {{"op": …, "spec": {{…}}}}: {error}') from error


spec_option = click.option(
    "--spec",
    type=SpecFile(),
    help='A file with the spec of any op, in place of M,K,N: JSON with "op" and "spec", as in a row of plan --json.',
)


class SuiteNames(TextType):
    """One suite or several, separated by commas."""

    name = "suites"

    def read(self, value: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
        for name in names:
            if name not in SUITES:
                raise click.BadParameter(unknown_name("suite", name, SUITES))
        return names


class Rows(TextType):
    """One number of rows or several, separated by commas."""

    name = "M,…"

    def read(self, value: str) -> tuple[int, ...]:
        result = [whole_number(part) for part in value.split(",")]
        if not all(result):
            raise click.BadParameter(f"{value!r}: give whole numbers from 1 to {LARGEST_SIZE}, with commas")
        return tuple(size for size in result if size)


def dtype_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add `--dtype` and `--precision` to a command.

    Raises, when the command runs:
      click.UsageError: a precision is given for another dtype than float32.
    """

    @click.option(
        "--dtype", type=click.Choice(DTYPES), default="bfloat16", show_default=True, help="The dtype of both operands."
    )
    @click.option(
        "--precision",
        type=click.Choice(get_args(PrecisionName)),
        default="default",
        show_default=True,
        help="How float32 is multiplied: by one, three or six bfloat16 passes.",
    )
    @functools.wraps(command)
    def wrapped(*, dtype: str, precision: PrecisionName, **rest: Any) -> int:
        if precision != "default" and dtype != "float32":
            raise click.UsageError(f"--precision {precision} is for float32 only: leave it out for {dtype}")
        return command(dtype=dtype, precision=precision, **rest)

    return wrapped


def stack_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of fused functions, as `stack`, which makes a product's spec, and `batch`."""

    @click.option(
        "--out",
        "dtype_out",
        type=click.Choice((*DTYPES, "int32")),
        metavar="DTYPE",
        help=f"Dtype of the result, if not the default: {', '.join((*DTYPES, 'int32'))}.",
    )
    @click.option("--transpose-lhs", is_flag=True, help="lhs is stored as [k, m].")
    @click.option("--transpose-rhs", is_flag=True, help="rhs is stored as [n, k].")
    @click.option("--bias", is_flag=True, help="A bias [n] is added.")
    @click.option("--activation", metavar="NAME", default="", help="Activation: relu, gelu, silu, ….")
    @click.option("--residual", is_flag=True, help="An array [m, n] is added.")
    @count_option("--batch", 1, "Number of products of these sizes, each with its own operands.")
    @functools.wraps(command)
    def wrapped(
        *,
        dtype_out: str | None,
        transpose_lhs: bool,
        transpose_rhs: bool,
        bias: bool,
        activation: str,
        residual: bool,
        **rest: Any,
    ) -> int:
        stack = functools.partial(
            fused_spec,
            bias=bias,
            activation=activation,
            residual=residual,
            transpose_lhs=transpose_lhs,
            transpose_rhs=transpose_rhs,
            dtype_out=dtype_out or "",
        )
        return command(stack=stack, **rest)

    return wrapped


def described(
    product: tuple[int, int, int], dtype: str, precision: PrecisionName, stack: Callable[..., MatmulSpec], batch: int
) -> Case:
    """Return the product as a case of no suite."""
    spec = dataclasses.replace(stack(*product, dtype, precision), batch=batch, batch_lhs=batch, batch_rhs=batch)
    return Case(suite="", group="", name=sizes(*product), spec=spec)


def cases_of(
    suites: Sequence[str], dtype: str, precision: PrecisionName, only: str, rows: Sequence[int] | None = None
) -> list[Case]:
    """Return cases of the suites whose name or group contains one of some texts, and whose m is in `rows`.

    Raises:
      click.UsageError: no case has one of the texts, or so many rows.
    """
    cases = [case for name in suites for case in suite(name, dtype, precision)]
    if not cases:
        raise click.UsageError(f"--dtype {dtype}: no case of {', '.join(suites)} is of it")
    texts = [text.strip() for text in only.split(",")]

    def is_named(case: Case, text: str) -> bool:
        return text.lower() in f"{case.group} {case.name}".lower()

    if unknown := [text for text in texts if not any(is_named(case, text) for case in cases)]:
        raise click.UsageError(
            f"--only {unknown[0]}: no case of {', '.join(suites)} is called so, such as {cases[0].name}"
        )
    named = [case for case in cases if any(is_named(case, text) for text in texts)]
    chosen = [case for case in named if not rows or case.spec.m in rows]
    if not chosen:
        row_counts = ", ".join(map(str, sorted({case.spec.m for case in named})))
        raise click.UsageError(f"--rows {','.join(map(str, rows or ()))}: there are cases of {row_counts} rows")
    return chosen


def spec_of(case: Case) -> Spec:
    """Return what the planner takes for a case.

    Raises:
      SpecError: no such activation.
      click.UsageError: the case is many products.
    """
    if case.suite == SHARDED:
        raise click.UsageError(f"{case.name} is cut over a slice: give the product of one device, as M,K,N")
    spec = case.contest.planned(case.spec)
    if spec is None:
        raise click.UsageError(f"{case.name} is many products, each with tiles of its own: give one of them")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # counts an activation's operations by tracing it
    return op_of(spec).counted(spec)
