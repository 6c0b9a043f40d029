"""A ragged all-to-all of tokens to the devices of their experts: `systolic.ragged_all_to_all` against XLA's.

    python benchmarks/ragged_all_to_all.py --chip v6e --topology 2x4

Each device has its part of the tokens, and sends each to eight of 128 experts, drawn at random, that lie on all
devices. Rows are multiplied before the exchange and added to after it, so that neither is an argument or a result of
the program. XLA runs with its default flags and with 64 MiB of scoped VMEM; the faster counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import systolic

AXIS, EXPERTS, TOP_K = "expert", 128, 8
SCOPED_VMEM = {"xla_tpu_scoped_vmem_limit_kib": 65536}


def drawn_slices(devices: int, tokens: int) -> list[np.ndarray]:
    """Return input offsets, send sizes, output offsets, receive sizes and receive offsets, [devices · devices] each."""
    random = np.random.default_rng(0)
    chosen = np.argsort(random.random((devices, tokens // devices, EXPERTS)), -1)[..., :TOP_K]
    owners = chosen.reshape(devices, -1) // (EXPERTS // devices)
    sizes = np.stack([np.bincount(row, minlength=devices) for row in owners])
    begins, targets = np.cumsum(sizes, 1) - sizes, np.cumsum(sizes, 0) - sizes
    return [np.int32(array).reshape(-1) for array in (begins, sizes, targets, sizes.T, targets.T)]


def ours(*given: Array) -> Array:
    *rest, recv_offsets = given
    return systolic.ragged_all_to_all(*rest, axis_name=AXIS, recv_offsets=recv_offsets)


def by_xla(*given: Array) -> Array:
    return lax.ragged_all_to_all(*given[:-1], axis_name=AXIS)


def layer(exchange: Callable[..., Array], room: int) -> Callable[..., Array]:
    def local(x: Array, *slices: Array) -> Array:
        return exchange(x * 2, jnp.zeros((room, x.shape[1]), x.dtype), *slices) + 1

    return local


def rows(chip: str, topology: str, d: int, counts: tuple[int, ...]) -> Iterator[str]:
    devices = len(systolic.slice_devices(chip, topology))
    mesh = systolic.slice_mesh(chip, topology, **{AXIS: devices})
    for tokens in counts:
        slices = drawn_slices(devices, tokens)
        room = -(-int(slices[3].reshape(devices, devices).sum(1).max()) // 16) * 16
        x = jax.ShapeDtypeStruct((tokens * TOP_K, d), jnp.bfloat16)
        times = []
        for exchange, flags in ((ours, None), (by_xla, None), (by_xla, SCOPED_VMEM)):
            mapped: Any = jax.shard_map(layer(exchange, room), mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS))
            program = jax.jit(mapped, in_shardings=NamedSharding(mesh, P(AXIS)))
            times.append(systolic.simulate(program, x, *slices, chip=chip, topology=topology, flags=flags).time_us)
        yield f"| {tokens:,} | {' | '.join(f'{time:.1f}' for time in times)} | {min(times[1:]) / times[0]:.2f} |"


@click.command()
@click.option("--chip", default="v6e", show_default=True)
@click.option("--topology", default="2x4", show_default=True, help="Chips of the slice, such as 2x4.")
@click.option("--d", default=4096, show_default=True, help="Elements of a token, bfloat16.")
@click.option("--tokens", "counts", type=int, multiple=True, default=(1024, 4096), show_default=True)
def main(chip: str, topology: str, d: int, counts: tuple[int, ...]) -> None:
    """Print a table of times in microseconds, each from a simulation.

    Example: python benchmarks/ragged_all_to_all.py --chip v6e --topology 2x4 --tokens 4096
    """
    columns = ("tokens", "ours", "XLA", "XLA, 64 MiB", "×")
    click.echo(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for row in rows(chip, topology, d, counts):
        click.echo(row)


if __name__ == "__main__":
    main()
