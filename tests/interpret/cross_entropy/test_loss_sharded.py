"""The loss of arrays that are cut over a mesh with explicit axes, and under `shard_map`, against one device."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

SCRIPT = """
import functools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import systolic

by = {"xla or kernel": None}.get(sys.argv[1], sys.argv[1])
mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2, devices=jax.devices()[:4])
random = np.random.default_rng(0)
x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((64, 32), (32, 520)))
labels = np.where(random.random(64) < 0.2, -1, random.integers(0, 520, 64)).astype(np.int32)

def loss(implementation, x, w, labels, smoothing=0.1):
    return systolic.linear_cross_entropy(
        x, w, labels, ignore_index=-1, label_smoothing=smoothing, z_loss=0.01, soft_cap=4.0, precision="highest",
        implementation=implementation, chip="v6e",
    )

def put(mesh, array, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))

def close(values, wanted):
    for one, other in zip(jax.tree.leaves(values), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * float(abs(np.asarray(other)).max()))

# Compiled as a whole: one by one, its operations take longer.
wanted = jax.jit(jax.value_and_grad(functools.partial(loss, "xla"), argnums=(0, 1)))(x, w, labels)
ours = jax.value_and_grad(functools.partial(loss, by), argnums=(0, 1))
# Tokens; the vocabulary; both; features, as FSDP cuts them.
cuts = {
    "tokens": ((("x", "y"),), ()),
    "vocabulary": ((), (None, "y")),
    "both": (("x",), (None, "y")),
    "features": (("x",), ("y",)),
}
for of_x, of_w in cuts.values() if by is None else [cuts["both"]]:
    given = put(mesh, x, *of_x), put(mesh, w, *of_w), put(mesh, labels, *of_x[:1])
    values = jax.jit(ours)(*given)
    close(values, wanted)
    for gradient, array in zip(values[1], given, strict=False):
        assert gradient.sharding.is_equivalent_to(array.sharding, gradient.ndim), gradient.sharding

if by is None:
    # The gradient's change along x and w. Without smoothing zeros take the place of the sum of logits.
    def change(implementation, x, w, labels):
        def gradients(x, w):
            return jax.grad(functools.partial(loss, implementation, smoothing=0.0), argnums=(0, 1))(x, w, labels)

        return jax.jvp(gradients, (x, w), (x, w))

    given = put(mesh, x, "x"), put(mesh, w, None, "y"), put(mesh, labels, "x")
    close(jax.jit(functools.partial(change, by))(*given), jax.jit(functools.partial(change, "xla"))(x, w, labels))

    # Each device has the loss of its tokens; weights are the same on all, and JAX sums their gradients.
    manual = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])

    def total(x, w, labels):
        def part(x, w, labels):
            losses = systolic.linear_cross_entropy(
                x, w, labels, ignore_index=-1, reduction="sum", precision="highest", implementation=by
            )
            return jax.lax.psum(losses, "x")

        return jax.shard_map(part, mesh=manual, in_specs=(P("x"), P(), P("x")), out_specs=P())(x, w, labels)

    def whole(x, w, labels):
        return systolic.linear_cross_entropy(
            x, w, labels, ignore_index=-1, reduction="sum", precision="highest", implementation="xla"
        )

    both = [jax.jit(jax.value_and_grad(fn, argnums=(0, 1)))(x, w, labels) for fn in (total, whole)]
    close(*both)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("by", ["xla or kernel", "interpret"])
def test_cut_arrays(by: str, tmp_path: Path) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, by)
