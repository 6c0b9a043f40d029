"""Kernels of one layer of Qwen3-235B's published step, alone: products by expert and attention, with their gradients.

    python benchmarks/step_kernels.py
    python benchmarks/step_kernels.py --kernel tokamax

They have the sizes of a device of v7x: 16 sequences of 4,096 tokens, each of which goes to 8 of 128 experts. The
forward pass is computed again for the gradients. tokamax has to be installed, with Python 3.12 or later. libtpu
0.0.50.1 compiles the gradient of its attention in a minute; 0.0.42.1 was stopped after five.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import click
import jax
import jax.numpy as jnp
from step_recipes import RECIPES
from transformer.attention import splash_attention
from transformer.config import Config
from transformer.experts import product_by_expert, untrained_sizes
from transformer.models import configured
from transformer.tokamax_kernels import for_another_machine

import systolic

[RECIPE] = [recipe for recipe in RECIPES if recipe.op.startswith("qwen3-235b")]
TIME_LIMIT_S = 1_800
SEQUENCES, LENGTH = RECIPE.parameters["batch"], RECIPE.parameters["seq"]
BLOCKS = {"blocks": RECIPE.parameters["blocks"]}
# The configurations of the two parts with each kernel.
FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "products": {name: {"grouped": name} for name in ("megablox", "tokamax", "systolic")},
    "attention": {name: {"attention": name, **BLOCKS} for name in ("splash", "tokamax")},
}
KERNELS = sorted({name for forms in FORMS.values() for name in forms})


def milliseconds(config: Config, fn: Callable[..., Any], *shapes: tuple[int, ...]) -> float:
    """Simulate a function twice, without and with its gradients, and add up the times.

    Args:
      shapes: of the operands, then of the result.
    """
    *operands, slope = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)

    def gradients(*args: jax.Array) -> Any:
        with for_another_machine(config):
            value, backward = jax.vjp(fn, *args[:-1])
            return value, backward(args[-1])

    def forward(*args: jax.Array) -> Any:
        with for_another_machine(config):
            return fn(*args)

    runs = (
        systolic.simulate(function, *args, chip=RECIPE.chip, flags=RECIPE.flags, time_limit_s=TIME_LIMIT_S)
        for function, args in ((forward, operands), (gradients, (*operands, slope)))
    )
    return sum(run.time_us for run in runs) / 1e3


def products(config: Config) -> float:
    """Return the milliseconds of the three products of each expert."""
    rows = SEQUENCES * LENGTH * config.experts_per_token
    sizes = untrained_sizes(rows, config.experts)

    def product(values: jax.Array, matrices: jax.Array) -> jax.Array:
        return product_by_expert(values, matrices, jnp.asarray(sizes), config)

    def both_ways(inner: int, outer: int) -> float:
        return milliseconds(config, product, (rows, inner), (config.experts, inner, outer), (rows, outer))

    return 2 * both_ways(config.width, config.expert_width) + both_ways(config.expert_width, config.width)


def attention(config: Config) -> float:
    """Return the milliseconds of the attention of all sequences of a device, executed one after another."""
    heads, keys = ((1, LENGTH, count, config.head_dim) for count in (config.heads, config.kv_heads))

    def of_a_sequence(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return splash_attention(query, key, value, config)

    return SEQUENCES * milliseconds(config, of_a_sequence, heads, keys, keys, heads)


@click.command()
@click.option("--kernel", "kernels", multiple=True, type=click.Choice(KERNELS), help="One of them; repeat it.")
def main(kernels: tuple[str, ...]) -> None:
    """Simulate the kernels of one layer of a published step.

    Example: python benchmarks/step_kernels.py --kernel splash
    """
    for part, forms in FORMS.items():
        for name, changes in forms.items():
            if kernels and name not in kernels:
                continue
            if name == "tokamax" and importlib.util.find_spec(name) is None:
                click.echo(f"{part:<10} {name:<9} is not installed")
            else:
                config = configured(RECIPE.parameters["config"], **changes)
                time_ms = (products if part == "products" else attention)(config)
                click.echo(f"{part:<10} {name:<9} {time_ms:6.1f} ms a layer, forward twice and backward (simulated)")


if __name__ == "__main__":
    main()
