"""A feed-forward block and products as a user might shard them over a slice; XLA adds the communication.

    systolic simulate examples/sharded.py:feed_forward --chip v6e --topology 2x4 --mesh data=2,model=4 \\
        --arg "bf16[2048,4096]@data,-" --arg "bf16[4096,16384]@-,model" --arg "bf16[16384,4096]@model,-"

Nothing here knows of `systolic`: the caller says how arguments are sharded.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def feed_forward(x: jax.Array, w_up: jax.Array, w_down: jax.Array) -> jax.Array:
    """gelu(x @ w_up) @ w_down: with w_up cut by columns and w_down by rows, one all-reduce at the end."""
    return jax.nn.gelu(x @ w_up) @ w_down


def loss(x: jax.Array, w_up: jax.Array, w_down: jax.Array) -> jax.Array:
    """Return the mean square of the result of `feed_forward`."""
    return jnp.mean(jnp.square(feed_forward(x, w_up, w_down).astype(jnp.float32)))


def step(x: jax.Array, w_up: jax.Array, w_down: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return gradients of `loss` by the weights; XLA gathers weights cut over `data`, and scatters the sums."""
    return jax.grad(loss, argnums=(1, 2))(x, w_up, w_down)
