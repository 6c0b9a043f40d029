"""Compare the savings that `systolic explain` promises with the savings that its user gets.

    python benchmarks/explained_savings.py --json build/explained_savings.json

The first finding's estimated saving for each kernel is compared with the saving when it is applied. The estimate is
made by changing the traced program (a call's VMEM limit, order, buffers) or by calling the function with other tiles.
Here the change is made as the kernel's author would make it: the keyword is passed, the launcher's compiler parameters
get the limit, the source has another axis order. Both are simulated, for ten kernels; the difference is in percentage
points of the kernel's time. A difference above three points fails: exit code 1.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import click
import jax
import jax.numpy as jnp
import numpy as np
import products
import slow_products
from jax.experimental.pallas import tpu as pltpu

from systolic.chips import chip as chip_named
from systolic.cli.options import output_options
from systolic.cli.output import check_target, versions, write_json
from systolic.cli.progress import progress_bar
from systolic.cli.tables import console, show_table
from systolic.compiler import WorkerPool
from systolic.explaining import ExplainRequest, explain_with_pool
from systolic.explaining.explanation import Explanation, Saving
from systolic.report.columns import Column, numeric, textual
from systolic.timing import submit_simulation

_MAX_POINTS = 3.0
_ASSIGNED = re.compile(r"(\w+)(?:\[(\d+)\]|\.(\w+))?=(\d+)")


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    """Return a shape of bfloat16."""
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


SQUARE = (bf16(2048, 2048), bf16(2048, 2048))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A function to explain, with its author's keywords by the finding's title, for changes other than tile sizes."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = SQUARE
    chip: str = "v6e"
    cures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


KERNELS: dict[str, Kernel] = {
    "ladder v3": Kernel(fn=functools.partial(products.v3, tile_m=256, tile_k=256, tile_n=256)),
    "ladder v4": Kernel(fn=functools.partial(products.v4, tile_m=512, tile_k=512, tile_n=512), chip="v5e"),
    "ladder v5": Kernel(fn=functools.partial(products.v5, tile_m=512, tile_k=1024, tile_n=512)),
    "JAX's example": Kernel(fn=functools.partial(products.jax_example, block_m=256, block_k=512, block_n=512)),
    "megablox gmm": Kernel(
        fn=functools.partial(products.grouped, tile_m=128, tile_k=256, tile_n=512),
        args=(bf16(2048, 1024), bf16(4, 1024, 1024), np.array([512, 700, 0, 836], np.int32)),
    ),
    "flash attention": Kernel(fn=products.attention, args=(bf16(1, 4, 2048, 128),) * 3),
    "grid by columns": Kernel(
        fn=functools.partial(slow_products.by_columns, tile_k=2048),
        cures={"grid axes": {"order": "mnk"}},
    ),
    "one buffer": Kernel(fn=slow_products.one_buffer, cures={"two buffers": {"buffers": 2}}),
    "one core": Kernel(
        fn=slow_products.one_core,
        chip="v5p",
        cures={"both cores": {"semantics": ("parallel", "parallel", "arbitrary")}},
    ),
    "128³ tiles": Kernel(fn=slow_products.small_tiles, args=(bf16(1024, 1024), bf16(1024, 1024)), chip="v5e"),
}


class Applied:
    """A kernel with a finding applied as its author would, independently of the estimate."""

    def __init__(self, kernel: Kernel, saving: Saving) -> None:
        self._fn = kernel.fn
        self._keywords: dict[str, Any] = {}
        self._limit: int | None = None
        for start, keywords in kernel.cures.items():
            if start in saving.title:
                self._keywords |= keywords
        for name, place, part, value in _ASSIGNED.findall(saving.change):
            if name == "vmem_limit_bytes":
                self._limit = int(value)
            elif place or part:
                raise ValueError(f"{name}, {place or part}: no kernel here takes tuples or records")
            else:
                self._keywords[name] = int(value)
        if not self._keywords and self._limit is None:
            raise ValueError(f"{saving.title}: nobody has said how its author would apply it")

    def __call__(self, *args: Any) -> Any:
        """Call the changed kernel."""
        changed = functools.partial(self._fn, **self._keywords)
        if self._limit is None:
            return changed(*args)
        with mock.patch.object(pltpu, "CompilerParams", functools.partial(_limited, pltpu.CompilerParams, self._limit)):
            return changed(*args)


def _limited(made: Callable[..., Any], limit: int, **options: Any) -> Any:
    return made(**{**options, "vmem_limit_bytes": limit})


@click.command()
@click.option("--only", default="", help="Kernels whose name has this in it.")
@click.option("--tries", type=click.IntRange(min=1), default=8, show_default=True, help="Changes to simulate of each.")
@output_options
def main(only: str, tries: int, json_file: str | None, quiet: bool) -> None:
    """Compare the first finding's estimated saving with what applying it brings."""
    check_target(json_file)
    chosen = {name: kernel for name, kernel in KERNELS.items() if only in name}
    rows = []
    with progress_bar(quiet=quiet) as bar, WorkerPool(max_workers=2, time_limit_s=600) as pool:
        for name, kernel in chosen.items():
            request = ExplainRequest(
                fn=kernel.fn, args=kernel.args, arguments=(), chip=chip_named(kernel.chip), tries=tries
            )
            explanation = explain_with_pool(pool, request, progress=bar)
            rows.append(_row(pool, name, kernel, explanation))
    worst = max((row["difference_points"] for row in rows), default=0.0)
    summary = {"provenance": "simulated", "worst_difference_points": worst, "limit_points": _MAX_POINTS}
    if json_file is not None:
        write_json(json_file, "explained_savings", rows, summary)
    if json_file != "-":
        _show(rows, worst)
    sys.exit(1 if worst > _MAX_POINTS else 0)


def _row(pool: WorkerPool, name: str, kernel: Kernel, found: Explanation) -> dict[str, Any]:
    changes = [saving for saving in found.savings if "in its place" not in saving.title]
    row = {"kernel": name, "chip": kernel.chip, "time_us": found.time_us}
    if not changes:
        return {**row, "finding": "none", "estimated_saving": 0.0, "applied_saving": 0.0, "difference_points": 0.0}
    first = changes[0]
    applied = Applied(kernel, first)
    run = submit_simulation(pool, applied, kernel.args, chip_named(kernel.chip), label=f"{name} applied").result().run
    assert run is not None
    assert first.saving is not None
    saving = 1 - run.time_us / found.time_us
    return {
        **row,
        "finding": first.title,
        "estimated_saving": first.saving,
        "applied_saving": saving,
        "difference_points": abs(saving - first.saving) * 100,
    }


_COLUMNS: tuple[Column[dict[str, Any]], ...] = (
    textual("kernel", lambda row: row["kernel"]),
    textual("chip", lambda row: row["chip"]),
    numeric("simulated µs", lambda row: row["time_us"], ",.1f"),
    textual("first finding", lambda row: row["finding"]),
    numeric("estimated", lambda row: row["estimated_saving"], ".1%"),
    numeric("applied", lambda row: row["applied_saving"], ".1%"),
    numeric("points apart", lambda row: row["difference_points"], ".2f"),
)


def _show(rows: list[dict[str, Any]], worst: float) -> None:
    out = console()
    used_versions = versions()
    out.print(
        f"jax {used_versions['jax']}, libtpu {used_versions['libtpu']} · times are simulated · operands are shapes"
    )
    out.print(f"worst difference {worst:.2f} points of {_MAX_POINTS:g} allowed")
    show_table(out, _COLUMNS, rows)


if __name__ == "__main__":
    main()
