"""A layer of experts: `systolic.moe` against the same layer with `jax.lax.ragged_dot`, on published models.

    python benchmarks/moe_layer.py --chip v6e

XLA runs with its default flags and with 64 MiB of scoped VMEM; the faster one counts. It is given the sizes of groups,
which it would have to count: a simulation does not know what a router sends.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import systolic
from systolic.compiler import CompilerError
from systolic.ops.moe.routing import typical_counts
from systolic.simulator import SimulationError
from systolic.timing.opponent import MORE_VMEM_FLAGS


@dataclass(frozen=True)
class Layer:
    """Sizes of one layer's experts."""

    features: int
    hidden: int
    experts: int
    top_k: int


LAYERS = {
    "qwen3-30b": Layer(features=2048, hidden=768, experts=128, top_k=8),
    "mixtral-8x7b": Layer(features=4096, hidden=14336, experts=8, top_k=2),
}


def by_xla(top_k: int, x: Array, logits: Array, gate: Array, up: Array, down: Array, sizes: Array) -> Array:
    weights, experts = lax.top_k(jax.nn.softmax(logits), top_k)
    weights /= weights.sum(1, keepdims=True)
    order = jnp.argsort(experts.reshape(-1))

    def product(lhs: Array, rhs: Array) -> Array:
        return lax.ragged_dot(lhs, rhs, sizes, preferred_element_type=lhs.dtype)

    rows = x[order // top_k]
    hidden = jax.nn.silu(product(rows, gate)) * product(rows, up)
    results = product(hidden, down)[jnp.argsort(order)].reshape(*weights.shape, -1)
    return (results.astype(jnp.float32) * weights[..., None]).sum(1).astype(x.dtype)


def operands(layer: Layer, tokens: int) -> list[jax.ShapeDtypeStruct]:
    d, f, experts = layer.features, layer.hidden, layer.experts
    weights = [jax.ShapeDtypeStruct((experts, *shape), jnp.bfloat16) for shape in ((d, f), (d, f), (f, d))]
    return [
        jax.ShapeDtypeStruct((tokens, d), jnp.bfloat16),
        jax.ShapeDtypeStruct((tokens, experts), jnp.float32),
        *weights,
    ]


def time_us(fn: Any, *args: Any, chip: str, flags: Any = None) -> float | str:
    """Return the simulated time, or the kind of error in its place."""
    try:
        return systolic.simulate(fn, *args, chip=chip, flags=flags).time_us
    except (CompilerError, SimulationError) as error:
        return type(error).__name__


def row(name: str, tokens: int, chip: str) -> str:
    layer = LAYERS[name]
    args = operands(layer, tokens)
    sizes = np.asarray(typical_counts(tokens, layer.top_k, layer.experts).sum(0))
    ours_us = time_us(functools.partial(systolic.moe, top_k=layer.top_k), *args, chip=chip)
    xla = functools.partial(by_xla, layer.top_k)
    xla_us = [time_us(xla, *args, sizes, chip=chip, flags=flags) for flags in (None, MORE_VMEM_FLAGS)]
    known = [time for time in xla_us if not isinstance(time, str)]
    ratio = f"{min(known) / ours_us:.2f}" if known and not isinstance(ours_us, str) else ""
    times = (time if isinstance(time, str) else f"{time:,.0f}" for time in (ours_us, *xla_us))
    return f"| {name} | {tokens} | {' | '.join(times)} | {ratio} |"


@click.command()
@click.option("--chip", default="v6e", show_default=True)
@click.option("--layer", "layers", type=click.Choice(sorted(LAYERS)), multiple=True, default=("qwen3-30b",))
@click.option("--tokens", "counts", type=int, multiple=True, default=(128, 2048, 8192), show_default=True)
def main(chip: str, layers: tuple[str, ...], counts: tuple[int, ...]) -> None:
    """Print a table of times in microseconds, each from a simulation.

    Example: python benchmarks/moe_layer.py --chip v6e --layer qwen3-30b --tokens 2048
    """
    columns = ("layer", "tokens", "systolic.moe", "XLA", "XLA, 64 MiB of VMEM", "XLA ÷ ours")
    click.echo(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for name in layers:
        for tokens in counts:
            click.echo(row(name, tokens, chip))


if __name__ == "__main__":
    main()
