"""Errors about unknown values name the deciding argument, the place in the function, and what to write."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import systolic
from systolic.simulator import UnknownValueError
from systolic.timing.preparing import prepare

COUNT = jax.ShapeDtypeStruct((), jnp.int32)
X = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)


def loop(params, x):
    return lax.while_loop(lambda state: state[0] < params["steps"], lambda state: (state[0] + 1, state[1] @ x), (0, x))


def until_small(x):
    return lax.while_loop(lambda y: jnp.max(jnp.abs(y)) > 1e-3, lambda y: jnp.tanh(y @ y), x)


def ragged(x, weights, sizes):
    return lax.ragged_dot(x, weights, sizes)


@pytest.mark.parametrize("simulate", [systolic.simulate, prepare])
def test_the_bound_of_a_loop(simulate) -> None:
    with pytest.raises(UnknownValueError) as caught:
        simulate(loop, {"steps": COUNT}, X, chip="v5e")
    text = str(caught.value)
    assert "which decides how often the while loop runs (" in text
    assert "test_unknown_values.py:" in text
    assert text.endswith("Pass an array in place of the shape s32[]")
    assert "TLP" not in text


def test_the_bound_of_a_loop_on_a_slice() -> None:
    mesh = systolic.slice_mesh("v5e", "2x2", data=4)
    sharded = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(mesh, P("data")))
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, P()))
    with pytest.raises(UnknownValueError, match="which decides how often the while loop runs"):
        systolic.simulate(loop, {"steps": count}, sharded, chip="v5e", topology="2x2")


def test_group_sizes() -> None:
    weights = jax.ShapeDtypeStruct((4, 256, 256), jnp.bfloat16)
    with pytest.raises(UnknownValueError, match=r"how many rows of the ragged product each group has .* s32\[4\]$"):
        systolic.simulate(ragged, X, weights, jax.ShapeDtypeStruct((4,), jnp.int32), chip="v5e")


def test_a_loop_that_ends_by_what_it_computes() -> None:
    with pytest.raises(UnknownValueError, match="are not computed: simulate the loop's body or the branch alone"):
        systolic.simulate(until_small, np.ones((256, 256), np.float32), chip="v5e")
