"""Kernels that only read and write blocks of known arrays are interpreted, and later kernels know their results."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

from systolic import slice_mesh
from systolic.compiler import Missing, pallas_operands

LOGITS = np.random.default_rng(0).standard_normal((32, 128)).astype(np.float32)


def route(logits: jax.Array) -> jax.Array:
    """Choose a column for each row, as a router's kernel does."""

    def kernel(logits_vmem, chosen_vmem):
        chosen_vmem[...] = jnp.argmax(logits_vmem[...], axis=1, keepdims=True).astype(jnp.int32)

    rows, columns = logits.shape
    return pl.pallas_call(
        kernel,
        grid=(rows // 8,),
        in_specs=[pl.BlockSpec((8, columns), lambda i: (i, 0), memory_space=pltpu.VMEM)],
        out_specs=pl.BlockSpec((8, 1), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, 1), jnp.int32),
    )(logits)


def copy(x: jax.Array) -> jax.Array:
    """Copy an array from HBM to HBM."""

    def kernel(x_hbm, out_hbm, semaphore):
        pltpu.make_async_copy(x_hbm, out_hbm, semaphore).start()
        pltpu.make_async_copy(x_hbm, out_hbm, semaphore).wait()

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    scratch = [pltpu.SemaphoreType.DMA]
    return pl.pallas_call(kernel, in_specs=[anywhere], out_specs=anywhere, out_shape=x, scratch_shapes=scratch)(x)


def drop(x: jax.Array) -> jax.Array:
    """Call the kernel whose operand is looked at."""
    return pl.pallas_call(lambda x_vmem, out_vmem: None, out_shape=x)(x)


def last_operand(fn, *args: object, partition: int = 0) -> object:
    names = [f"x{number}" for number in range(len(args))]
    return pallas_operands(jax.make_jaxpr(fn)(*args), args, names, partition=partition)[-1].operands[0].get()


def test_a_router_of_known_logits_is_followed() -> None:
    values = last_operand(lambda logits: drop(jnp.cumsum(route(logits), 0)), LOGITS)
    np.testing.assert_array_equal(np.asarray(values)[:, 0], np.cumsum(LOGITS.argmax(1)))


def test_a_router_of_a_shape_is_not() -> None:
    values = last_operand(lambda logits: drop(route(logits)), jax.ShapeDtypeStruct(LOGITS.shape, LOGITS.dtype))
    assert values == Missing("argument x0, of which only the shape was given", 0)


@pytest.mark.parametrize("around", [copy, lambda x: route(jnp.tile(x, (300, 1)))], ids=["copies", "a large array"])
def test_other_kernels_are_not(around) -> None:
    values = last_operand(lambda logits: drop(around(logits)), LOGITS)
    assert isinstance(values, Missing)
    assert "computes" in values.why


def test_each_device_routes_its_own_rows_and_hears_of_the_others() -> None:
    mesh = slice_mesh("v6e", "2x2", expert=4)

    def local(logits):
        return drop(lax.all_gather(route(logits), "expert", tiled=True) + lax.axis_index("expert"))

    def layer(logits):
        placed = jax.device_put(logits, jax.sharding.NamedSharding(mesh, P("expert")))
        return jax.shard_map(local, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"), check_vma=False)(placed)

    values = last_operand(layer, LOGITS, partition=3)
    np.testing.assert_array_equal(np.asarray(values)[:, 0], LOGITS.argmax(1) + 3)
