"""Tests which arguments of a traced function decide what its program executes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.compiler import argument_example, decisions, named_argument, traced_arguments

COUNT = jax.ShapeDtypeStruct((), jnp.int32)
SIZES = jax.ShapeDtypeStruct((4,), jnp.int32)
X = jax.ShapeDtypeStruct((512, 128), jnp.float32)


def loop(count, unused, x):
    """Decide by a bound that the loop carries."""
    del unused
    return lax.while_loop(lambda state: state[0] < state[1], lambda state: (state[0] + 1, state[1], x), (0, count, x))


def carried_in_two_rounds(count, x):
    """Decide by what the first round moves into the bound."""
    return (
        lax.while_loop(
            lambda state: state[0] < state[1],
            lambda state: (state[0] + 1, state[2], state[3], state[3]),
            (0, 1, 1, count),
        )[0]
        + x.shape[0]
    )


def fixed_rounds(count, x):
    return lax.fori_loop(0, 3, lambda _, y: y @ y.T @ y + count, x)


def branch(x, flag):
    return jax.jit(lambda chosen: lax.cond(chosen > 0, lambda y: y + 1, lambda y: y, x))(flag)


def inside_scan(sizes, x):
    return lax.scan(lambda y, size: (lax.cond(size > 0, lambda z: z * 2, lambda z: z, y), None), x, sizes)[0]


def body(sizes, x, out):
    out[...] = x[...] * sizes[0]


def prefetched(sizes, x):
    block = pl.BlockSpec((128, 128), lambda i, _: (i, 0))
    spec = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(4,), in_specs=[block], out_specs=block)
    return pl.pallas_call(body, grid_spec=spec, out_shape=X)(jnp.cumsum(sizes), x)


def on_a_grid_of(count, x):
    block = pl.BlockSpec((128, 128), lambda i: (i, 0))

    def doubled(x, out):
        out[...] = x[...] * 2

    return pl.pallas_call(doubled, grid=(count,), in_specs=[block], out_specs=block, out_shape=X)(x)


def ragged(x, weights, sizes):
    return lax.ragged_dot(x, weights, sizes)


WEIGHTS = jax.ShapeDtypeStruct((4, 128, 128), jnp.float32)


@pytest.mark.parametrize(
    ("fn", "args", "expected"),
    [
        (loop, (COUNT, COUNT, X), [("how often the while loop runs", {0}, False)]),
        (carried_in_two_rounds, (COUNT, X), [("how often the while loop runs", {0}, False)]),
        (fixed_rounds, (COUNT, X), []),
        (branch, (X, COUNT), [("which branch of the cond runs", {1}, False)]),
        (inside_scan, (SIZES, X), [("which branch of the cond runs", {0}, False)]),
        (prefetched, (SIZES, X), [("what the kernel body does by scalar prefetch", {0}, True)]),
        (on_a_grid_of, (COUNT, X), [("the grid of the kernel doubled", {0}, True)]),
        (ragged, (X, WEIGHTS, SIZES), [("how many rows of the ragged product each group has", {2}, False)]),
    ],
)
def test_the_arguments_that_decide(
    fn: Callable[..., Any], args: tuple[Any, ...], expected: list[tuple[str, set[int], bool]]
) -> None:
    deciding = decisions(jax.make_jaxpr(fn)(*args))
    assert [(decision.effect, set(decision.arguments), decision.kernel) for decision in deciding] == expected
    assert all(f" in {fn.__name__}" in decision.where for decision in deciding)


def test_arguments_have_the_names_of_the_definition() -> None:
    def fn(params, x):
        return params["steps"] + x

    (steps, x) = traced_arguments(jax.jit(fn).trace({"steps": COUNT}, X).jaxpr)
    assert (steps.name, x.name, x.size_bytes) == ("params['steps']", "x", 512 * 128 * 4)


@pytest.mark.parametrize(
    ("shape", "dtype", "text"),
    [
        ((4,), jnp.int32, "s32[4]=0,1,2,3"),
        ((), jnp.bool_, "pred[]=1"),
        ((2,), jnp.bfloat16, "bf16[2]=0,1"),
        ((2, 1), jnp.float8_e4m3fn, "f8e4m3fn[2,1]=0,1"),
        ((3,), jnp.uint8, "u8[3]=0,1,2"),
    ],
)
def test_the_example_is_an_argument_of_that_type(shape: tuple[int, ...], dtype: Any, text: str) -> None:
    assert argument_example(shape, jnp.dtype(dtype)) == text
    array = named_argument(text)
    assert (array.shape, array.dtype) == (shape, jnp.dtype(dtype))


def test_a_long_array_is_given_as_a_file() -> None:
    assert argument_example((9,), jnp.dtype(jnp.int32)) == "FILE.npy"
