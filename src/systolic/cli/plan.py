"""`systolic plan`: which kernel and tiles `systolic.matmul` takes for a product, why, and how long by arithmetic."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, get_args

import click

from systolic.bench.cases import Case, Stack, sizes
from systolic.chips import Chip
from systolic.cli.bench import DTYPES
from systolic.cli.options import TileSizes, chip_option, output_options
from systolic.cli.output import check_target, versions, write_json
from systolic.ops import Plan
from systolic.ops import plan as planned
from systolic.problem import MatmulProblem, PrecisionName
from systolic.tiling import MIB, Tiles, blocked_buffers, total_bytes


class ProductSizes(click.ParamType):
    """Three whole numbers M,K,N."""

    name = "M,K,N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int, int]:
        """Text to sizes."""
        if not isinstance(value, str):
            return value
        parts = value.split(",")
        if len(parts) != 3 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
            self.fail(f"{value!r}: give three whole numbers M,K,N of at least 1, such as 2048,4096,14336", param, ctx)
        m, k, n = map(int, parts)
        return m, k, n


@click.command()
@click.argument("product", metavar="M,K,N", type=ProductSizes())
@chip_option()
@click.option("--dtype", type=click.Choice(DTYPES), default="bfloat16", show_default=True, help="Of both operands.")
@click.option(
    "--precision",
    type=click.Choice(get_args(PrecisionName)),
    default="default",
    show_default=True,
    help="Of float32: one, three or six bfloat16 passes.",
)
@click.option("--out", "dtype_out", type=click.Choice((*DTYPES, "int32")), help="Of the result, if not the usual.")
@click.option("--transpose-lhs", is_flag=True, help="lhs is stored as [k, m].")
@click.option("--transpose-rhs", is_flag=True, help="rhs is stored as [n, k].")
@click.option("--bias", is_flag=True, help="A bias [n] is added.")
@click.option("--activation", metavar="NAME", default="", help="relu, gelu, silu, … of the sum.")
@click.option("--residual", is_flag=True, help="An array [m, n] is added.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="So many different products.")
@click.option("--tiles", type=TileSizes(), help="Of the kernel, in place of the planner's.")
@output_options
def plan(
    product: tuple[int, int, int],
    chips: tuple[Chip, ...],
    dtype: str,
    precision: PrecisionName,
    dtype_out: str | None,
    transpose_lhs: bool,
    transpose_rhs: bool,
    bias: bool,
    activation: str,
    residual: bool,
    batch: int,
    tiles: Tiles | None,
    json_file: str | None,
    quiet: bool,
) -> int:
    """Say how systolic.matmul would compute lhs[M,K] @ rhs[K,N] on a chip. Nothing is compiled: times are `modelled`.

    Exit code 2: the chip does not multiply this dtype, or --tiles break rules, of which each is named.

    \b
    Examples:
      systolic plan 4096,4096,4096 --chip v5e,v6e,v7x
      systolic plan 16,4096,14336 --chip v6e --bias --activation gelu --transpose-rhs
      systolic plan 8192,8192,8192 --chip v5e --tiles 1024,1024,1024
    """
    check_target(json_file)
    if precision != "default" and dtype != "float32":
        raise click.UsageError(f"--precision {precision} is of float32; {dtype} is multiplied as it is")
    m, k, n = product
    stack = Stack(
        bias=bias,
        activation=activation,
        residual=residual,
        transpose_lhs=transpose_lhs,
        transpose_rhs=transpose_rhs,
        dtype_out=dtype_out or "",
    )
    case = Case(suite="", group="", name=sizes(m, k, n), m=m, k=k, n=n, dtype=dtype, precision=precision, stack=stack)
    problem = _problem(case, batch)
    plans = [planned(problem, chip, tiles=tiles) for chip in chips]
    if json_file is not None:
        write_json(json_file, "plan", [_record(each) for each in plans], {"provenance": "modelled"})
    if json_file != "-":
        _show(plans)
    return 0


def _problem(case: Case, batch: int) -> MatmulProblem:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # counts an activation's operations by tracing it
    from systolic.bench.programs import problem_of
    from systolic.ops.epilogue import activation_of

    activation_of(case.stack.activation or None)
    return dataclasses.replace(problem_of(case), batch=batch, batch_lhs=batch, batch_rhs=batch)


def _vmem_bytes(made: Plan) -> int:
    return total_bytes(blocked_buffers(made.computed, made.blocking))


def _record(made: Plan) -> dict[str, Any]:
    return {
        "chip": made.chip,
        "problem": dataclasses.asdict(made.problem),
        "kernel": made.kernel,
        "blocking": dataclasses.asdict(made.blocking),
        "grid": made.grid,
        "reason": made.reason,
        "considered": made.considered,
        "provenance": "modelled",
        "time_us": made.time_us,
        "mxu_us": made.mxu_us,
        "hbm_us": made.hbm_us,
        "hbm_bytes": made.hbm_bytes,
        "least_hbm_bytes": made.problem.least_hbm_bytes,
        "vmem_bytes": _vmem_bytes(made),
        "vmem_limit_bytes": made.vmem_limit_bytes,
    }


def _show(plans: Sequence[Plan]) -> None:
    for number, made in enumerate(plans):
        if number:
            click.echo("")
        batch, grid_m, grid_n, grid_k = made.grid
        click.echo(str(made))
        click.echo(f"grid     {f'{batch} × ' if batch > 1 else ''}{grid_m} × {grid_n} × {grid_k} (m n k)")
        click.echo(
            f"VMEM     {_vmem_bytes(made) / MIB:.1f} MiB of buffers, under a limit of "
            f"{made.vmem_limit_bytes / MIB:.0f} MiB"
        )
        least = made.hbm_bytes / made.problem.least_hbm_bytes
        click.echo(f"HBM      {made.hbm_bytes / 1e6:,.1f} MB, {least:.2f} × the least")
    click.echo(f"\nall times are modelled: arithmetic, nothing was compiled (jax {versions()['jax']})")
