"""The loss of a training step of Llama-3.1-8B with its gradients, on eight chips of v6e, in three forms.

    python benchmarks/step_loss.py --sequences 1

It is the part `loss` of the step of `examples/transformer`, alone: the vocabulary's weights are cut over the mesh as
FSDP cuts them, gathered for the products, and their gradients are added up.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import click
import jax
import jax.numpy as jnp
from transformer.models import configured
from transformer.sharding import Sharding
from transformer.step import mean_loss

import systolic

FORMS: dict[str, dict[str, Any]] = {
    "plain": {"loss": "plain"},
    "recompute": {"loss": "systolic", "logits": "recompute"},
    "keep": {"loss": "systolic", "logits": "keep"},
}


def simulated(form: str, sequences: int) -> Any:
    """Return the time of the loss and its gradients, each device having so many sequences of 2,048 tokens."""
    config = configured("llama3.1-8b", **FORMS[form])
    sharding = Sharding(systolic.slice_mesh("v6e", "2x4", fsdp=8))

    def given(dtype: Any, **sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(tuple(sizes.values()), dtype, sharding=sharding.of(*sizes))

    batch = sequences * sharding.devices
    arguments = (
        given(jnp.bfloat16, batch=batch, sequence=2048, residual=config.width),
        given(jnp.int32, batch=batch, sequence=2048),
        given(jnp.float32, width=config.width, vocabulary=config.vocabulary),
    )
    loss = functools.partial(mean_loss, config=config, sharding=sharding)
    cuts = (sharding.of(), (arguments[0].sharding, arguments[2].sharding))
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 2)), out_shardings=cuts)
    return systolic.simulate(step, *arguments, chip="v6e", topology="2x4")


@click.command()
@click.option("--sequences", default=1, show_default=True, help="Sequences of a device.")
@click.option("--form", "forms", multiple=True, type=click.Choice(list(FORMS)), help="One of the forms; repeat it.")
def main(sequences: int, forms: tuple[str, ...]) -> None:
    """Simulate the loss of a training step in plain JAX and by the kernels."""
    for form in forms or FORMS:
        click.echo(f"{form:<10} {simulated(form, sequences)}\n")


if __name__ == "__main__":
    main()
