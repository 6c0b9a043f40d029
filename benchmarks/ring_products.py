"""Products across the chips of a slice: our kernels against XLA's programs, on the layers of Llama-3.

    python benchmarks/ring_products.py --chip v6e --topology 2x4
    python benchmarks/ring_products.py --goals

XLA gets its mesh in the order of our ring, which suits its windowed products too, and runs with its default flags, and
with windowed products off and the flags of MaxText for asynchronous collectives; the faster one counts. The kernel's
time leaves out the copy of the result that XLA adds if it is the program's result. `--goals` simulates the products
that this project has set itself a ratio for, each on its own slice.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from step_recipe import ALL_GATHER_FUSION, VMEM_LIMIT

import systolic
from systolic.ops.collective.axis_ring import AxisRing
from systolic.ops.collective.sizes import RingSizes
from systolic.schedule import IllegalTilesError

DATA, AXIS = "data", "model"
LAYERS = {"8B": (4096, 14336), "70B": (8192, 28672)}
PRODUCTS = ("gather 8B", "scatter 8B", "gather 70B", "scatter 70B")
SLICES = {"v5e": "2x4", "v6e": "2x4", "v7x": "2x2x1"}
SERIAL = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000, **ALL_GATHER_FUSION, **VMEM_LIMIT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A ratio to XLA, of the kernel's time, that this project has set itself, and a share of the limit if it has one.

    `data` devices cut the tokens in addition.
    """

    chip: str
    product: str
    tokens: int
    ratio: float
    share: float | None = None
    data: int = 1


GOALS = (
    Goal(chip="v6e", product="gather 8B", tokens=2048, ratio=1.45, share=0.90),
    Goal(chip="v6e", product="gather 8B", tokens=8192, ratio=1.45, share=0.90),
    Goal(chip="v6e", product="gather 70B", tokens=2048, ratio=1.7, share=0.85),
    Goal(chip="v6e", product="gather 70B", tokens=8192, ratio=1.7, share=0.85),
    Goal(chip="v6e", product="scatter 8B", tokens=2048, ratio=1.5, share=0.85),
    Goal(chip="v6e", product="scatter 70B", tokens=2048, ratio=1.6, share=0.80),
    Goal(chip="v6e", product="gather 8B", tokens=256, ratio=1.5),
    Goal(chip="v6e", product="gather 70B", tokens=256, ratio=1.5),
    Goal(chip="v6e", product="scatter 8B", tokens=256, ratio=1.0),
    Goal(chip="v6e", product="scatter 70B", tokens=256, ratio=1.0),
    Goal(chip="v6e", product="gather 8B", tokens=2048, ratio=1.15, data=2),
    Goal(chip="v6e", product="scatter 8B", tokens=2048, ratio=1.15, data=2),
    Goal(chip="v5e", product="gather 8B", tokens=2048, ratio=1.45, share=0.85),
    Goal(chip="v5e", product="scatter 8B", tokens=2048, ratio=1.45, share=0.85),
    Goal(chip="v7x", product="gather 8B", tokens=2048, ratio=1.3, share=0.90),
    Goal(chip="v7x", product="scatter 8B", tokens=2048, ratio=1.5, share=0.90),
)


def specs(kind: str, mesh: Mesh) -> tuple[tuple[P, P], P]:
    data = DATA if DATA in mesh.axis_names else None
    rows = (DATA, AXIS) if data else AXIS
    if kind == "gather":
        return (P(rows), P(None, AXIS)), P(data, AXIS)
    return (P(data, AXIS), P(AXIS)), P(rows)


def ours(mesh: Mesh, kind: str, wire_dtype: str | None = None) -> Any:
    multiply: Any = systolic.all_gather_matmul if kind == "gather" else systolic.matmul_reduce_scatter
    in_specs, out_specs = specs(kind, mesh)
    return jax.shard_map(
        functools.partial(multiply, axis_name=AXIS, implementation="pallas", wire_dtype=wire_dtype),
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
    )


def by_xla(mesh: Mesh, kind: str) -> Any:
    def multiply(x: Array, w: Array | systolic.Quantized) -> Array:
        w = w.dequantize(x.dtype) if isinstance(w, systolic.Quantized) else w
        return lax.with_sharding_constraint(x @ w, NamedSharding(mesh, specs(kind, mesh)[1]))

    return multiply


def operands(mesh: Mesh, kind: str, tokens: int, k: int, n: int, weight_dtype: str | None = None) -> list[Any]:
    """Return the shapes of x and w; a w of `weight_dtype` has a scale for each column, of the device's rows of it."""
    of_x, of_w = (NamedSharding(mesh, spec) for spec in specs(kind, mesh)[0])
    x = jax.ShapeDtypeStruct((tokens, k), jnp.bfloat16, sharding=of_x)
    w = jax.ShapeDtypeStruct((k, n), jnp.dtype(weight_dtype or "bfloat16"), sharding=of_w)
    if weight_dtype is None:
        return [x, w]
    blocks = 1 if kind == "gather" else mesh.shape[AXIS]
    return [x, systolic.Quantized(w, jax.ShapeDtypeStruct((blocks, n), jnp.float32, sharding=of_w))]


def limit_us(
    chip: str,
    mesh: Mesh,
    kind: str,
    tokens: int,
    k: int,
    n: int,
    wire_dtype: str | None = None,
    weight_dtype: str | None = None,
) -> float:
    """Return the longest of a device's product at its peak, its weights from HBM, and what its links carry."""
    model, devices = systolic.chip(chip), mesh.shape[AXIS]
    assert model.links is not None
    gathers = kind == "gather"
    sizes = RingSizes(
        devices=devices,
        rows=tokens // mesh.size,
        k=k if gathers else k // devices,
        columns=n // devices if gathers else n,
        dtype="bfloat16",
        dtype_out="bfloat16",
        scatters=not gathers,
        wire_dtype=wire_dtype,
        weight_dtype=weight_dtype,
    )
    return 1e6 * max(
        sizes.flops / model.peak_ops_per_s(sizes.dtype_multiplied),
        sizes.weight_bytes / model.hbm_bytes_per_s,
        sizes.sent_bytes / model.links.bytes_per_s,
    )


def meshes(chip: str, topology: str, data: int) -> tuple[Mesh, Mesh]:
    """Return the mesh as `jax.make_mesh` makes it, and with the axis in the order of our ring."""
    devices = len(systolic.slice_devices(chip, topology))
    sizes = {DATA: data, AXIS: devices // data} if data > 1 else {AXIS: devices}
    made = systolic.slice_mesh(chip, topology, **sizes)
    ring = AxisRing(axis_name=AXIS, size=sizes[AXIS])(made)
    return made, Mesh(np.take(np.asarray(made.devices), ring, axis=-1), made.axis_names)


def row_of(
    chip: str,
    topology: str,
    product: str,
    tokens: int,
    data: int = 1,
    wire_dtype: str | None = None,
    weight_dtype: str | None = None,
) -> dict[str, Any]:
    """Return the times of a product in µs; in place of ours, perhaps the reason why there is none."""
    made, ordered = meshes(chip, topology, data)
    simulate = functools.partial(systolic.simulate, chip=chip, topology=topology)
    kind, layer = product.split()
    k, n = LAYERS[layer][:: 1 if kind == "gather" else -1]
    row: dict[str, Any] = {"product": product, "chip": chip, "tokens": tokens, "data": data}
    row["limit_us"] = limit_us(chip, made, kind, tokens, k, n, wire_dtype, weight_dtype)
    try:
        run = simulate(ours(made, kind, wire_dtype), *operands(made, kind, tokens, k, n, weight_dtype))
        kernel_cycles = sum(collective.cycles for collective in run.collectives)
        row |= {"ours_us": run.time_us, "kernel_us": kernel_cycles / run.clock_hz * 1e6}
    except IllegalTilesError as error:
        row["reason"] = str(error)
    for name, flags in (("xla_us", None), ("xla_serial_us", SERIAL)):
        arrays = operands(ordered, kind, tokens, k, n, weight_dtype)
        row[name] = simulate(by_xla(ordered, kind), *arrays, flags=flags).time_us
    return row


def line(row: dict[str, Any], goal: Goal | None) -> str:
    """Return a row of the table."""
    cut = f", {DATA}={row['data']}" if row["data"] > 1 else ""
    name = f"{row['chip']} {row['product']}, {row['tokens']}{cut}"
    xla_us = min(row["xla_us"], row["xla_serial_us"])
    times = [row.get(name) for name in ("ours_us", "kernel_us", "limit_us", "xla_us", "xla_serial_us")]
    cells = ["–" if time_us is None else f"{time_us:.1f}" for time_us in times]
    cells += ["–" if time_us is None else f"{xla_us / time_us:.2f}" for time_us in times[:2]]
    cells.append(row.get("reason") or f"{row['limit_us'] / row['kernel_us']:.2f}")
    if goal is not None:
        cells += [f"{goal.ratio:.2f}", "–" if goal.share is None else f"{goal.share:.2f}"]
    return f"| {name} | {' | '.join(cells)} |"


@click.command()
@click.option("--chip", default="v6e", show_default=True)
@click.option("--topology", default="2x4", show_default=True, help="Chips of the slice, such as 2x4.")
@click.option("--data", default=1, show_default=True, help="Devices that cut tokens alone; the others cut weights.")
@click.option("--wire", help="Dtype in which ours sends rows and sums, such as int8 or float8_e4m3fn.")
@click.option("--weights", help="Dtype of quantized weights, such as int8, which XLA dequantizes.")
@click.option("--tokens", "counts", type=int, multiple=True, default=(256, 2048), show_default=True)
@click.option("--only", default="", help="Products whose name contains this, such as gather 8B.")
@click.option("--goals", "has_goals", is_flag=True, help="The products with a goal, on all chips; --only chooses some.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows to this file, too.")
def main(
    chip: str,
    topology: str,
    data: int,
    wire: str | None,
    weights: str | None,
    counts: tuple[int, ...],
    only: str,
    has_goals: bool,
    file: Path | None,
) -> None:
    """Print a table of times in microseconds, each from a simulation.

    Example: python benchmarks/ring_products.py --chip v6e --topology 2x4 --tokens 256 --tokens 2048
    """
    columns = ["product, tokens", "ours", "kernel", "limit", "XLA", "XLA, serial", "× ours", "× kernel", "of the limit"]
    columns += ["goal ×", "goal of the limit"] if has_goals else []
    click.echo(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    cases: list[tuple[tuple[Any, ...], Goal | None]]
    if has_goals:
        cases = [((goal.chip, SLICES[goal.chip], goal.product, goal.tokens, goal.data), goal) for goal in GOALS]
    else:
        options = data, wire, weights
        cases = [((chip, topology, product, tokens, *options), None) for tokens in counts for product in PRODUCTS]
    done: list[dict[str, Any]] = []
    for case, goal in cases:
        if only not in f"{case[0]} {case[2]} {case[3]}":
            continue
        row = row_of(*case)
        click.echo(line(row, goal))
        done.append(row)
        if file is not None:  # a stopped run leaves its rows so far
            file.write_text(json.dumps(done, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
