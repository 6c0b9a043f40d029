"""Train a small MLP on points of a sphere: an ordinary script, which `systolic run` times as if on a TPU.

python examples/train_mlp.py --steps 3
systolic run examples/train_mlp.py --chip v6e -- --width 256
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp

import systolic

LEARNING_RATE = 1e-2


@partial(jax.jit, static_argnames=("width", "features"))
def initial_weights(key, *, features, width):
    """Return weights of two layers, float32[features,width] and float32[width,features]."""
    up, down = jax.random.split(key)
    return {
        "up": jax.random.normal(up, (features, width)) / features**0.5,
        "down": jax.random.normal(down, (width, features)) / width**0.5,
    }


def predictions(weights, points):
    """Return bfloat16[batch,features]. The first product and its activation are one Pallas kernel on a TPU."""
    hidden = systolic.matmul(points, weights["up"].astype(jnp.bfloat16), activation="silu")
    return hidden @ weights["down"].astype(jnp.bfloat16)


def loss(weights, points):
    """Return the mean of the squared distances between predictions and normalized points."""
    wanted = points / jnp.linalg.norm(points.astype(jnp.float32), axis=1, keepdims=True)
    return jnp.mean(jnp.sum((predictions(weights, points) - wanted) ** 2, axis=1))


@partial(jax.jit, donate_argnums=0)
def train_step(weights, points):
    """Return weights after a step of gradient descent, and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(weights, points)
    return jax.tree.map(lambda weight, gradient: weight - LEARNING_RATE * gradient, weights, gradients), value


@partial(jax.jit, static_argnames=("batch", "features"))
def batch_of_points(key, *, batch, features):
    """Return bfloat16[batch,features]."""
    return jax.random.normal(key, (batch, features), dtype=jnp.bfloat16)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=5)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--features", type=int, default=128)
    options.add_argument("--width", type=int, default=512)
    given = options.parse_args()

    key = jax.random.key(0)
    weights = initial_weights(key, features=given.features, width=given.width)
    for step in range(given.steps):
        points = batch_of_points(jax.random.fold_in(key, step), batch=given.batch, features=given.features)
        weights, value = train_step(weights, points)
        print(f"step {step}: loss {float(value):.4f}")


if __name__ == "__main__":
    main()
