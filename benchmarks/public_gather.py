"""An all-gather with its product: our kernel against tpu-inference's, in the six products that it has tiles for.

    python -m pip install --no-deps tpu-inference
    python benchmarks/public_gather.py

tpu-inference needs Python 3.12 or later. These are gates and their second halves side by side, over eight devices of
v6e: of a Llama of 70B, and of a Qwen of 32B. Both kernels get the devices in the order of our ring, theirs with its own
tuned tiles. XLA runs with its default flags, and with windowed products off and 96 MiB of scoped VMEM: newer compilers
refuse MaxText's flags for asynchronous collectives on v6e. The kernel's time leaves out the copy of the result that XLA
adds if it is the program's result.
"""

from __future__ import annotations

from typing import Any

import click
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from ring_products import AXIS, SERIAL, by_xla, meshes, operands, ours
from step_recipe import ALL_GATHER_FUSION

import systolic
from systolic.support.tpu_inference import kernel_module

CHIP, TOPOLOGY, DEVICES = "v6e", "2x4", 8
IN_TURN = {name: value for name, value in SERIAL.items() if name not in ALL_GATHER_FUSION}


def public(mesh: Mesh, tiles: tuple[int, int]) -> Any:
    def multiply(x: Array, w: Array) -> Array:
        gather = kernel_module("collectives.all_gather_matmul").all_gather_matmul  # in the process that traces
        return gather(x, w, mesh, AXIS, bn=tiles[0], bk=tiles[1])

    return multiply


def times_us(function: Any, arrays: list[Any], flags: Any = None) -> tuple[float, float]:
    """Return the simulated times of the program, and of its kernels across chips."""
    run = systolic.simulate(function, *arrays, chip=CHIP, topology=TOPOLOGY, flags=flags, time_limit_s=900)
    return run.time_us, sum(collective.cycles for collective in run.collectives) / run.clock_hz * 1e6


@click.command()
@click.option("--tokens", "counts", type=int, multiple=True, help="Only these numbers of tokens.")
def main(counts: tuple[int, ...]) -> None:
    """Print a table of times in microseconds, each from a simulation.

    Example: python benchmarks/public_gather.py --tokens 1024
    """
    try:
        tuned = kernel_module("collectives.all_gather_matmul_tuned_block_sizes").TUNED_BLOCK_SIZES
    except ModuleNotFoundError as error:
        raise click.ClickException(str(error)) from error
    _, mesh = meshes(CHIP, TOPOLOGY, 1)
    columns = ["tokens", "k", "n", "ours", "kernel", "tpu-inference", "kernel", "XLA", "XLA, in turn"]
    click.echo(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for (version, tokens, n, k, dtype, devices), tiles in sorted(tuned.items()):
        is_raced = (version, dtype, devices) == (6, jnp.dtype(jnp.bfloat16).name, DEVICES)
        if not is_raced or (counts and tokens not in counts):
            continue
        arrays = operands(mesh, "gather", tokens, k, n)
        times = [*times_us(ours(mesh, "gather"), arrays), *times_us(public(mesh, tiles), arrays)]
        times += [times_us(by_xla(mesh, "gather"), arrays, flags)[0] for flags in (None, IN_TURN)]
        click.echo(f"| {tokens} | {k} | {n} | {' | '.join(f'{time_us:.1f}' for time_us in times)} |")


if __name__ == "__main__":
    main()
