"""Products across the chips of a slice: our kernels against XLA's programs, on the layers of Llama-3.

    python benchmarks/ring_products.py --chip v6e --topology 2x4

XLA gets its mesh in the order of our ring, which suits its windowed products too, and runs with its default flags, and
with windowed products off and the flags of MaxText for asynchronous collectives; the faster one counts. The kernel's
time leaves out the copy of the result that XLA adds if it is the program's result.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from step_recipes import ALL_GATHER_FUSION, VMEM_LIMIT

import systolic
from systolic.ops.collective.axis_ring import AxisRing
from systolic.ops.collective.sizes import RingSizes
from systolic.schedule import IllegalTilesError

AXIS = "model"
LAYERS = {"8B": (4096, 14336), "70B": (8192, 28672)}
CASES = [("gather", "8B"), ("scatter", "8B"), ("gather", "70B"), ("scatter", "70B")]
SERIAL = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000, **ALL_GATHER_FUSION, **VMEM_LIMIT}


def specs(kind: str) -> tuple[tuple[P, P], P]:
    return ((P(AXIS), P(None, AXIS)), P(None, AXIS)) if kind == "gather" else ((P(None, AXIS), P(AXIS)), P(AXIS))


def ours(mesh: Mesh, kind: str) -> Any:
    multiply = systolic.all_gather_matmul if kind == "gather" else systolic.matmul_reduce_scatter
    in_specs, out_specs = specs(kind)
    return jax.shard_map(
        functools.partial(multiply, axis_name=AXIS, implementation="pallas"),
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
    )


def by_xla(mesh: Mesh, kind: str) -> Any:
    def multiply(x: Array, w: Array) -> Array:
        return lax.with_sharding_constraint(x @ w, NamedSharding(mesh, specs(kind)[1]))

    return multiply


def operands(mesh: Mesh, kind: str, tokens: int, k: int, n: int) -> list[jax.ShapeDtypeStruct]:
    shardings = [NamedSharding(mesh, spec) for spec in specs(kind)[0]]
    shapes = ((tokens, k), (k, n))
    return [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)
        for shape, sharding in zip(shapes, shardings, strict=True)
    ]


def limit_us(chip: str, devices: int, kind: str, tokens: int, k: int, n: int) -> float:
    """Return the longest of a device's product at its peak, its weights from HBM, and what its links carry."""
    model = systolic.chip(chip)
    assert model.links is not None
    gathers = kind == "gather"
    sizes = RingSizes(
        devices=devices,
        rows=tokens // devices,
        k=k if gathers else k // devices,
        columns=n // devices if gathers else n,
        dtype="bfloat16",
        dtype_out="bfloat16",
        scatters=not gathers,
    )
    return 1e6 * max(
        sizes.operations / model.peak_ops_per_s("bfloat16"),
        sizes.weight_bytes / model.hbm_bytes_per_s,
        sizes.sent_bytes / model.links.bytes_per_s,
    )


def rows(chip: str, topology: str, tokens: int, only: str) -> Iterator[dict[str, Any]]:
    """Yield a row of times in µs for each case, or with the reason why there is none."""
    devices = systolic.slice_devices(chip, topology)
    made = systolic.slice_mesh(chip, topology, **{AXIS: len(devices)})
    ring = AxisRing(axis_name=AXIS, size=len(devices))(made)
    ordered = Mesh(np.asarray(made.devices)[list(ring)], (AXIS,))
    simulate = functools.partial(systolic.simulate, chip=chip, topology=topology)
    for kind, layer in CASES:
        if only not in f"{kind} {layer}":
            continue
        k, n = LAYERS[layer][:: 1 if kind == "gather" else -1]
        row: dict[str, Any] = {"product": f"{kind} {layer}", "chip": chip, "tokens": tokens}
        try:
            run = simulate(ours(made, kind), *operands(made, kind, tokens, k, n))
        except IllegalTilesError as error:
            yield {**row, "reason": str(error)}
            continue
        row |= {
            "ours_us": run.time_us,
            "kernel_us": sum(collective.cycles for collective in run.collectives) / run.clock_hz * 1e6,
            "limit_us": limit_us(chip, len(devices), kind, tokens, k, n),
        }
        for name, flags in (("xla_us", None), ("xla_serial_us", SERIAL)):
            shapes = operands(ordered, kind, tokens, k, n)
            row[name] = simulate(by_xla(ordered, kind), *shapes, flags=flags).time_us
        yield row


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    if "reason" in row:
        return f"| {row['product']}, {row['tokens']} | {row['reason']} |"
    xla_us = min(row["xla_us"], row["xla_serial_us"])
    times = " | ".join(f"{row[name]:.1f}" for name in ("ours_us", "kernel_us", "limit_us", "xla_us", "xla_serial_us"))
    ratios = " | ".join(f"{xla_us / row[name]:.2f}" for name in ("ours_us", "kernel_us"))
    return f"| {row['product']}, {row['tokens']} | {times} | {ratios} |"


@click.command()
@click.option("--chip", default="v6e", show_default=True)
@click.option("--topology", default="2x4", show_default=True, help="Chips of the slice, such as 2x4.")
@click.option("--tokens", "counts", type=int, multiple=True, default=(256, 2048), show_default=True)
@click.option("--only", default="", help="Products whose name contains this, such as gather 8B.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows to this file, too.")
def main(chip: str, topology: str, counts: tuple[int, ...], only: str, file: Path | None) -> None:
    """Print a table of times in microseconds, each from a simulation.

    Example: python benchmarks/ring_products.py --chip v6e --topology 2x4 --tokens 256 --tokens 2048
    """
    columns = ("product, tokens", "ours", "kernel", "limit", "XLA", "XLA, serial", "× ours", "× kernel")
    click.echo(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    done: list[dict[str, Any]] = []
    for tokens in counts:
        for row in rows(chip, topology, tokens, only):
            click.echo(line(row))
            done.append(row)
            if file is not None:  # a stopped run leaves its rows so far
                file.write_text(json.dumps(done, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
