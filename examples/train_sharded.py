"""Train a small MLP on several devices: batches are cut over the axis `data`, weights over `model`.

systolic run examples/train_sharded.py --chip v6e --topology 2x4
systolic run examples/train_sharded.py --chip v6e --topology 2x2 -- --model 2

Nothing here knows of `systolic`: XLA adds the communication.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

LEARNING_RATE = 1e-2


def loss(weights, points):
    """Return the mean square of a layer's results, for bfloat16[batch,features]."""
    return jnp.mean((jax.nn.silu(points @ weights["up"]) @ weights["down"]).astype(jnp.float32) ** 2)


@partial(jax.jit, donate_argnums=0)
def train_step(weights, points):
    """Return weights after a step of gradient descent, and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(weights, points)
    return jax.tree.map(lambda weight, gradient: weight - LEARNING_RATE * gradient, weights, gradients), value


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", type=int, default=4, help="devices along the axis of the weights")
    options.add_argument("--steps", type=int, default=3)
    options.add_argument("--batch", type=int, default=512)
    options.add_argument("--features", type=int, default=512)
    options.add_argument("--width", type=int, default=2048)
    given = options.parse_args()

    shape = (jax.device_count() // given.model, given.model)
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    columns, rows, batches = (
        NamedSharding(mesh, spec) for spec in (P(None, "model"), P("model", None), P("data", None))
    )

    @partial(jax.jit, out_shardings={"up": columns, "down": rows})
    def initial_weights(key):
        up, down = jax.random.split(key)
        return {
            "up": jax.random.normal(up, (given.features, given.width), jnp.bfloat16) / given.features**0.5,
            "down": jax.random.normal(down, (given.width, given.features), jnp.bfloat16) / given.width**0.5,
        }

    weights = initial_weights(jax.random.key(0))
    points = jax.device_put(jnp.ones((given.batch, given.features), jnp.bfloat16), batches)
    for step in range(given.steps):
        weights, value = train_step(weights, points)
        print(f"step {step}: loss {float(value):.4f}")


if __name__ == "__main__":
    main()
