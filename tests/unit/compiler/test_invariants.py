from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from systolic.compiler import pallas_operands
from systolic.compiler.deferred import Deferred
from systolic.compiler.invariants import Invariants


def copied(x: jax.Array, y: jax.Array) -> jax.Array:
    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + y_ref[...]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def test_rounds_of_a_loop_share_arrays_that_they_compute_alike() -> None:
    def fn(start, x):
        def body(carry, step):
            same = jnp.cumsum(jnp.ones((8, 128), jnp.int32)) + start
            return carry, copied(same.reshape(8, 128), jnp.full((8, 128), step))

        return lax.scan(body, x, jnp.arange(4))

    arguments = np.int32(3), jax.ShapeDtypeStruct((8, 128), jnp.int32)
    executions = pallas_operands(jax.make_jaxpr(fn)(*arguments), arguments, ["start", "x"])
    same, steps = zip(*(execution.operands for execution in executions), strict=True)
    assert len(set(same)) == 1
    np.testing.assert_array_equal(same[0].get(), np.cumsum(np.ones(1024, np.int32)).reshape(8, 128) + 3)
    assert [np.asarray(step.get())[0, 0] for step in steps] == [0, 1, 2, 3]


def test_what_depends_on_the_round_is_made_for_each() -> None:
    argument, carried = Deferred.known(1), Deferred.known(2)
    invariants = Invariants([argument])

    def make() -> list[Deferred]:
        return [Deferred.known(object())]

    once = invariants.once("a place", [argument], make)
    assert invariants.once("a place", [argument], make) is once
    assert invariants.once("another place", [argument], make) is not once
    assert invariants.once("a third place", once, make) is invariants.once("a third place", once, make)
    assert invariants.once("a place", [argument, carried], make) is not invariants.once(
        "a place", [argument, carried], make
    )
