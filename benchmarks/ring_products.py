"""Products across the chips of a slice: our kernels against XLA's programs, on the layers of Llama-3.

    python benchmarks/ring_products.py --chip v6e --topology 2x4

XLA gets its mesh in the order of our ring, which suits its windowed products too, and runs with its default flags, and
with windowed products off and the flags of MaxText for asynchronous collectives; the faster one counts. The kernel's
time leaves out the copy of the result that XLA adds if it is the program's result.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
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


def rows(chip: str, topology: str, tokens: int) -> Iterator[str]:
    devices = systolic.slice_devices(chip, topology)
    made = systolic.slice_mesh(chip, topology, **{AXIS: len(devices)})
    ring = AxisRing(axis_name=AXIS, size=len(devices))(made)
    ordered = Mesh(np.asarray(made.devices)[list(ring)], (AXIS,))
    simulate = functools.partial(systolic.simulate, chip=chip, topology=topology)
    for kind, layer in CASES:
        k, n = LAYERS[layer][:: 1 if kind == "gather" else -1]
        try:
            run = simulate(ours(made, kind), *operands(made, kind, tokens, k, n))
        except IllegalTilesError as error:
            yield f"| {kind} {layer} | {tokens} | {error} |"
            continue
        kernel_us = sum(collective.cycles for collective in run.collectives) / run.clock_hz * 1e6
        xla_us = [
            simulate(by_xla(ordered, kind), *operands(ordered, kind, tokens, k, n), flags=flags).time_us
            for flags in (None, SERIAL)
        ]
        times = " | ".join(f"{time:.1f}" for time in (run.time_us, kernel_us, *xla_us))
        ratios = " | ".join(f"{min(xla_us) / time:.2f}" for time in (run.time_us, kernel_us))
        yield f"| {kind} {layer} | {tokens} | {times} | {ratios} |"


@click.command()
@click.option("--chip", default="v6e", show_default=True)
@click.option("--topology", default="2x4", show_default=True, help="Chips of the slice, such as 2x4.")
@click.option("--tokens", "counts", type=int, multiple=True, default=(256, 2048), show_default=True)
def main(chip: str, topology: str, counts: tuple[int, ...]) -> None:
    """Print a table of times in microseconds, each from a simulation.

    Example: python benchmarks/ring_products.py --chip v6e --topology 2x4 --tokens 256 --tokens 2048
    """
    columns = ("product", "tokens", "ours", "its kernel", "XLA", "XLA, serial", "× ours", "× its kernel")
    click.echo(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for tokens in counts:
        for row in rows(chip, topology, tokens):
            click.echo(row)


if __name__ == "__main__":
    main()
