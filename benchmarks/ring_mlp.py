"""A gated MLP cut over the chips of a slice, under `jit` alone: our kernels against XLA's programs.

    python benchmarks/ring_mlp.py --chip v6e --topology 2x4

Tokens are cut over the axis before and after the MLP, its hidden dimension between. We get the mesh as `jax.make_mesh`
makes it. XLA gets it so, and in the order of our ring, each with its default flags and with windowed products off and
MaxText's flags for asynchronous collectives; the fastest counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ring_products import AXIS, LAYERS, SERIAL

import systolic
from systolic.compiler.slice_devices import explicit_axes
from systolic.ops.collective.axis_ring import AxisRing

ROWS, COLUMNS = P(AXIS, None), P(None, AXIS)
Layer = Callable[..., Array]


def ours(x: Array, gate: Array, up: Array, down: Array) -> Array:
    hidden = systolic.gated_matmul(x, gate, up, out_sharding=COLUMNS, implementation="pallas")
    return systolic.matmul(hidden, down, out_sharding=ROWS, implementation="pallas")


def by_xla(mesh: Mesh, x: Array, gate: Array, up: Array, down: Array) -> Array:
    hidden = lax.with_sharding_constraint(jax.nn.silu(x @ gate) * (x @ up), NamedSharding(mesh, COLUMNS))
    return lax.with_sharding_constraint(hidden @ down, NamedSharding(mesh, ROWS))


def with_gradients(layer: Layer, *arrays: Array) -> Any:
    *operands, cotangent = arrays
    out, back = jax.vjp(layer, *operands)
    return out, back(cotangent)


def arguments(mesh: Mesh, tokens: int, k: int, n: int, *, backward: bool) -> list[jax.ShapeDtypeStruct]:
    x, weight = ((tokens, k), ROWS), ((k, n), COLUMNS)
    arrays = [x, weight, weight, ((n, k), ROWS), *([x] if backward else [])]
    return [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, cut)) for shape, cut in arrays]


def rows(chip: str, topology: str, model: str, tokens: int) -> Iterator[str]:
    devices = systolic.slice_devices(chip, topology)
    made = systolic.slice_mesh(chip, topology, **{AXIS: len(devices)})
    ring = AxisRing(axis_name=AXIS, size=len(devices))(made)
    ordered = Mesh(np.asarray(made.devices)[list(ring)], (AXIS,))
    simulate = functools.partial(systolic.simulate, chip=chip, topology=topology)
    for backward in (False, True):
        sizes = tokens, *LAYERS[model]
        wrapped = functools.partial(functools.partial, with_gradients) if backward else lambda layer: layer
        shapes = functools.partial(arguments, tokens=sizes[0], k=sizes[1], n=sizes[2], backward=backward)
        run = simulate(wrapped(ours), *shapes(explicit_axes(made)))
        cuts = (ROWS, (ROWS, COLUMNS, COLUMNS, ROWS)) if backward else ROWS
        times = [run.time_us]
        for mesh in (made, ordered):
            out = jax.tree.map(functools.partial(NamedSharding, mesh), cuts, is_leaf=lambda cut: isinstance(cut, P))
            layer = jax.jit(wrapped(functools.partial(by_xla, mesh)), out_shardings=out)
            times += [simulate(layer, *shapes(mesh), flags=options).time_us for options in (None, SERIAL)]
        columns = " | ".join(f"{time:.1f}" for time in times)
        yield f"| {model}, {tokens}{', gradients' if backward else ''} | {columns} | {min(times[1:]) / times[0]:.2f} |"


@click.command()
@click.option("--chip", default="v6e", show_default=True)
@click.option("--topology", default="2x4", show_default=True, help="Chips of the slice, such as 2x4.")
@click.option("--model", default="8B", show_default=True, type=click.Choice(list(LAYERS)), help="Llama-3 model.")
@click.option("--tokens", "counts", type=int, multiple=True, default=(2048,), show_default=True)
def main(chip: str, topology: str, model: str, counts: tuple[int, ...]) -> None:
    """Print a table of times in microseconds, each from a simulation.

    Example: python benchmarks/ring_mlp.py --chip v6e --topology 2x4 --tokens 2048
    """
    columns = ("layer, tokens", "ours", "XLA", "XLA, serial", "XLA on our ring", "XLA on our ring, serial", "×")
    click.echo(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for tokens in counts:
        for row in rows(chip, topology, model, tokens):
            click.echo(row)


if __name__ == "__main__":
    main()
