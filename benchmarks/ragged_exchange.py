"""XLA's `ragged_all_to_all` of rows for experts on eight devices: the exchange, the operations around it, the limit.

    python benchmarks/ragged_exchange.py --chip v6e --topology 2x4

Each device has some tokens, and sends each as often as it has experts, equally many rows to every device. The limit is
the time of the links that connect the two halves of the slice. A kernel that writes rows where they belong can save the
operations around the exchange, and nothing of the exchange below that limit.
"""

from __future__ import annotations

import functools

import click
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import systolic

AXIS = "expert"
CUT_LINKS = 2  # in each direction between the halves of a 2x4


def exchanged(mesh: Mesh, rows: int, x: Array) -> Array:
    """Return the rows that a device receives, `rows` from each device."""
    devices = mesh.size
    offsets = np.arange(devices, dtype=np.int32) * rows
    sizes = np.full(devices, rows, np.int32)

    def exchange(part: Array) -> Array:
        mine = jnp.full(devices, lax.axis_index(AXIS) * rows, jnp.int32)
        out = jnp.zeros_like(part)
        return lax.ragged_all_to_all(part, out, offsets, sizes, mine, sizes, axis_name=AXIS)

    return jax.shard_map(exchange, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False)(x)


@click.command()
@click.option("--chip", default="v6e", show_default=True)
@click.option("--topology", default="2x4", show_default=True, help="Chips of the slice, such as 2x4.")
@click.option("--tokens", default=4096, show_default=True, help="Of all devices together.")
@click.option("--experts", default=8, show_default=True, help="Experts of a token.")
@click.option("--width", default=4096, show_default=True, help="Features of a token, bfloat16.")
def main(chip: str, topology: str, tokens: int, experts: int, width: int) -> None:
    """Print times in microseconds of one exchange of tokens, from a simulation."""
    devices = len(systolic.slice_devices(chip, topology))
    mesh = systolic.slice_mesh(chip, topology, **{AXIS: devices})
    rows = tokens // devices * experts // devices
    x = jax.ShapeDtypeStruct((rows * devices**2, width), jnp.bfloat16, sharding=NamedSharding(mesh, P(AXIS)))
    run = systolic.simulate(functools.partial(exchanged, mesh, rows), x, chip=chip, topology=topology)
    links = systolic.chip(chip).links
    assert links is not None
    exchange_us = sum(collective.cycles for collective in run.collectives) / run.clock_hz * 1e6
    crossing_bytes = (devices // 2) ** 2 * rows * width * 2
    limit_us = crossing_bytes / (CUT_LINKS * links.bytes_per_s) * 1e6
    click.echo("| total | exchange | around it | limit of the exchange | total ÷ exchange |\n|---|---|---|---|---|")
    times = (run.time_us, exchange_us, run.time_us - exchange_us, limit_us)
    click.echo(f"| {' | '.join(f'{time_us:.1f}' for time_us in times)} | {run.time_us / exchange_us:.2f} |")
    for collective in run.collectives:
        click.echo(f"{collective.kind}: {collective.cycles / run.clock_hz * 1e6:.1f} µs")
    for operation in sorted(run.slowest.later_core.ops, key=lambda op: -op.cycles)[:8]:
        click.echo(f"{operation.name}: {operation.cycles / run.clock_hz * 1e6:.1f} µs")


if __name__ == "__main__":
    main()
