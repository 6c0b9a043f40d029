"""`systolic plan`: which kernel and tiles `systolic.matmul` takes for a product, why, and how long by arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import click

from systolic.chips import Chip
from systolic.cli.options import TileSizes, chip_option, output_options
from systolic.cli.output import check_target, give, versions
from systolic.cli.product import ProductSizes, described, dtype_options, spec_of, spec_option, stack_options
from systolic.cli.tables import chosen_format, console, say, show_table
from systolic.cost import MadeWith
from systolic.ops.moe.spec import MoeSpec
from systolic.ops.op import op_of, record_of
from systolic.ops.plan import Plan
from systolic.ops.planner import plan as planned
from systolic.ops.planner import planner_in_use
from systolic.report.columns import Column, numeric, textual
from systolic.report.written import us
from systolic.schedule import MIB, Tiles
from systolic.spec import MatmulSpec, PrecisionName, Spec
from systolic.store import StoreError, Subject


@click.command()
@click.argument("product", metavar="[M,K,N]", type=ProductSizes(), required=False)
@spec_option
@chip_option()
@dtype_options
@stack_options
@click.option("--tiles", type=TileSizes(), help="Tiles of the kernel, in place of the planner's.")
@output_options
def plan(
    product: tuple[int, int, int] | None,
    spec: Spec | None,
    chips: tuple[Chip, ...],
    dtype: str,
    precision: PrecisionName,
    stack: Callable[..., MatmulSpec],
    batch: int,
    tiles: Tiles | None,
    json_file: str | None,
    quiet: bool,
) -> int:
    """Say how systolic.matmul would compute lhs[M,K] @ rhs[K,N] on a chip. Nothing is compiled.

    Exit code 2: the chip does not multiply this dtype, or --tiles break rules; each rule is named.

    \b
    Examples:
      systolic plan 4096,4096,4096 --chip v5e,v6e,v7x
      systolic plan 16,4096,14336 --chip v6e --bias --activation gelu --transpose-rhs
      systolic plan 8192,8192,8192 --chip v5e --tiles 1024,1024,1024
    """
    check_target(json_file)
    if (product is None) == (spec is None):
        raise click.UsageError("give either M,K,N, such as 8192,4096,14336, or --spec")
    if isinstance(spec, MoeSpec):
        if tiles is not None:
            raise click.UsageError("--tiles are of one kernel, and a layer of experts has several")
        from systolic.cli.plan_moe import give_moe_plans  # needs JAX

        give_moe_plans(spec, chips, json_file)
        return 0
    if spec is None:
        assert product is not None
        spec = spec_of(described(product, dtype, precision, stack, batch))
    plans = [planned(spec, chip, tiles=tiles) for chip in chips]
    provenance = ", ".join(sorted({plan.provenance for plan in plans}))
    give(json_file, "plan", map(_record, plans), {"provenance": provenance}, lambda: _show(plans))
    return 0


_SHOWN = 4  # differences
_FROM = {
    "measured": "on a device, by systolic tune",
    "simulated": "compiled and executed on the chip's model, by systolic tune",
    "profiled": "arithmetic, from simulated steps of this tile; nothing was compiled now",
    "modelled": "arithmetic; nothing was compiled",
}


def _record(made: Plan) -> dict[str, Any]:
    return {
        "chip": made.chip,
        **record_of(made.spec),
        "kernel": made.config.kernel,
        "config": dataclasses.asdict(made.config),
        "grid": made.grid,
        "reason": made.reason,
        "considered": made.considered,
        "provenance": made.provenance,
        "profiles": None if made.profiles is None else dataclasses.asdict(made.profiles),
        "store_misses_by": _misses(made),
        "time_us": made.time_us,
        "time_error": None if made.time_error is None else dataclasses.asdict(made.time_error),
        "mxu_us": made.mxu_us,
        "hbm_us": made.hbm_us,
        "hbm_bytes": made.hbm_bytes,
        "least_hbm_bytes": made.spec.least_hbm_bytes,
        "vmem_bytes": made.vmem_bytes,
        "vmem_limit_bytes": made.vmem_limit_bytes,
    }


def _others(made_with: MadeWith) -> str:
    """Name the packages whose version here differs; those that are not installed make no programs."""
    here = versions()
    profiled = dataclasses.asdict(made_with)
    return " and ".join(f"{name} {here[name]}" for name in profiled if here[name] not in (None, profiled[name]))


def _misses(made: Plan) -> list[str] | None:
    """Return the differences to the nearest stored product; None: the plan is from the store, or no product is near."""
    if made.provenance in ("measured", "simulated"):
        return None
    store = planner_in_use().store
    if store is None:
        return None
    try:
        nearest = store.nearest(Subject.here(made.computed, made.chip))
    except StoreError:
        return None  # `plan` has warned of this
    return nearest[1] if nearest is not None else None


_COLUMNS: tuple[Column[Plan], ...] = (
    textual("product", lambda made: op_of(made.spec).words(made.spec)[0]),
    textual("dtypes", lambda made: op_of(made.spec).words(made.spec)[1]),
    textual("chip", lambda made: made.chip),
    textual("kernel", lambda made: str(made.config), kind="code"),
    numeric("µs", lambda made: made.time_us, us),
    textual("is", lambda made: made.provenance),
    numeric("µs at peak", lambda made: made.mxu_us, us),
    numeric("µs of least HBM traffic", lambda made: made.hbm_us, us),
    numeric("VMEM MiB", lambda made: made.vmem_bytes / MIB, ".1f"),
    numeric("HBM MB", lambda made: made.hbm_bytes / 1e6, ",.1f"),
)


def _show(plans: Sequence[Plan]) -> None:
    if chosen_format() != "table":
        show_table(console(), _COLUMNS, plans)
        return
    for number, made in enumerate(plans):
        if number:
            say("")
        summary = made.summary()
        say(dataclasses.replace(summary, facts={**summary.facts, **_facts(made)}).text())
    say("")
    for provenance in dict.fromkeys(made.provenance for made in plans):
        say(f"{provenance}: {_FROM[provenance]} (jax {versions()['jax']})")


def _facts(made: Plan) -> dict[str, str]:
    """Return the facts of a plan in addition to its summary; "" is left out."""
    steps = [(axis, size) for axis, size in zip(made.axes, made.grid, strict=True) if (axis, size) != ("batch", 1)]
    misses = _misses(made) or []
    rest = f", and {len(misses) - _SHOWN} more" if len(misses) > _SHOWN else ""
    others = _others(made.profiles) if made.profiles is not None else ""
    return {
        "grid": f"{' × '.join(str(size) for _, size in steps)} ({' '.join(axis for axis, _ in steps)})",
        "VMEM": f"{made.vmem_bytes / MIB:.1f} MiB of buffers, under a limit of {made.vmem_limit_bytes / MIB:.0f} MiB",
        "tuned": f"not this; the nearest in the store differs by {'; '.join(misses[:_SHOWN])}{rest}" if misses else "",
        "profile": f"made with {made.profiles}; here is {others}, whose programs may take another time"
        if others
        else "",
        "HBM": f"{made.hbm_bytes / 1e6:,.1f} MB, {made.hbm_bytes / made.spec.least_hbm_bytes:.2f} × the least",
    }
