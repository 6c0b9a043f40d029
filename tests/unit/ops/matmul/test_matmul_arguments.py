"""Everything that `matmul` refuses: one error each, with the shapes and the fix, before anything is computed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.core import Tracer

import systolic
from systolic.chips import UnknownChipError, UnsupportedDtypeError
from systolic.schedule import IllegalTilesError, Tiles, TilesError
from systolic.spec import SpecError


def ones(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.ones(shape, dtype)


def two(x: jax.Array, s: jax.Array) -> jax.Array:
    return x * s


LHS, RHS = ones(3, 4), ones(4, 5)
LARGE = ones(384, 512), ones(512, 640)  # which XLA stores by rows
INT8 = ones(64, 128, dtype=jnp.int8), ones(128, 128, dtype=jnp.int8)

# Name: operands, other arguments, what the message holds.
SHAPES: dict[str, tuple[tuple[Any, Any], dict[str, Any], tuple[str, ...]]] = {
    "inner sizes": ((LHS, ones(6, 5)), {}, ("lhs[3, 4] has k=4", "rhs[6, 5] has k=6", "transpose_rhs")),
    "inner sizes, rhs transposed": ((LHS, RHS), {"transpose_rhs": True}, ("k=4", "rhs[4, 5] transposed has k=5")),
    "inner sizes, lhs transposed": ((LHS, RHS), {"transpose_lhs": True}, ("lhs[3, 4] transposed has k=3", "k=4")),
    "inner size of a vector": ((ones(4), ones(5, 6)), {}, ("lhs[4] has k=4", "rhs[5, 6] has k=5")),
    "inner size none": ((ones(3, 0), RHS), {}, ("lhs[3, 0] has k=0", "rhs[4, 5] has k=4")),
    "batch": ((ones(2, 3, 4), ones(3, 4, 5)), {}, ("lhs[2, 3, 4]", "rhs[3, 4, 5]", "do not broadcast", "or one of")),
    "a vector's transpose": ((ones(4), RHS), {"transpose_lhs": True}, ("no transpose", "lhs[4]", "leave it out")),
    "the other vector's": ((LHS, ones(4)), {"transpose_rhs": True}, ("no transpose", "rhs[4]")),
    "bias too long": ((LHS, RHS), {"bias": ones(6)}, ("bias of shape [6]", "output of [3, 5]", "needs shape [5]")),
    "bias of rows": ((LHS, RHS), {"bias": ones(3)}, ("bias of shape [3]", "needs shape [5]")),
    "bias of two dimensions": ((LHS, RHS), {"bias": ones(3, 5)}, ("bias of shape [3, 5]", "needs shape [5]")),
    "bias beside a column": ((LHS, ones(4)), {"bias": ones(3)}, ("bias of shape [3]", "needs shape [1]")),
    "residual": ((LHS, RHS), {"residual": ones(4, 5)}, ("residual of shape [4, 5]", "[3, 5]", "broadcast")),
    "residual with a batch": ((LHS, RHS), {"residual": ones(2, 3, 5)}, ("residual of shape [2, 3, 5]", "[3, 5]")),
    "residual of a row": ((ones(4), RHS), {"residual": ones(1, 5)}, ("residual of shape [1, 5]", "output of [5]")),
    "out_scale": ((LHS, RHS), {"out_scale": ones(4)}, ("out_scale of shape [4]", "[3, 5]")),
    "lhs_args without lhs_fn": ((LHS, RHS), {"lhs_args": (ones(1),)}, ("lhs_args without lhs_fn",)),
    "rhs_args without rhs_fn": ((LHS, RHS), {"rhs_args": (ones(1),)}, ("rhs_args without rhs_fn",)),
    "lhs_args of another shape": ((LHS, RHS), {"lhs_fn": two, "lhs_args": (ones(7),)}, ("lhs_fn two", "[3, 4]", "[7]")),
    "lhs_args larger than lhs": ((LHS, RHS), {"lhs_fn": two, "lhs_args": (ones(2, 3, 4),)}, ("(3, 4)", "(2, 3, 4)")),
    "an unused argument of another shape": (
        (LHS, RHS), {"rhs_fn": lambda w, _: w, "rhs_args": (ones(7),)}, ("rhs_args[0] of shape [7]", "(4, 5)")),
}  # fmt: skip

DTYPES = {
    "complex lhs": ((ones(3, 4, dtype=jnp.complex64), RHS), {}, ("lhs[3, 4] is complex64", "multiply .real and .imag")),
    "complex rhs": ((LHS, ones(4, 5, dtype=jnp.complex64)), {}, ("rhs[4, 5] is complex64", "real numbers")),
    "int4": ((ones(3, 4, dtype=jnp.int4), RHS), {}, (
        "lhs[3, 4] is int4", "not take yet, though the matrix units of v5e, v5p and v6e do", "lhs.astype(jnp.int8)",
        "exact")),
    "float8 of a v6e": ((LHS, ones(4, 5, dtype=jnp.float8_e4m3b11fnuz)), {}, (
        "rhs[4, 5] is float8_e4m3b11fnuz", "not take yet, though the matrix units of v5e, v5p and v6e do",
        "rhs.astype(jnp.bfloat16)", "exact")),
    "float4": ((ones(3, 4, dtype=jnp.float4_e2m1fn), RHS), {}, ("float4_e2m1fn", "v7x do", "astype(jnp.bfloat16)")),
    "another float8": ((ones(3, 4, dtype=jnp.float8_e5m2fnuz), RHS), {}, ("no TPU multiplies", "bfloat16", "exact")),
    "uint8": ((ones(3, 4, dtype=jnp.uint8), RHS), {}, (
        "lhs[3, 4] is uint8", "no TPU multiplies unsigned", "astype(jnp.bfloat16), which is exact")),
    "int16": ((ones(3, 4, dtype=jnp.int16), RHS), {}, ("no TPU multiplies", "astype(jnp.float32)", "'highest'")),
    "int32": ((ones(3, 4, dtype=jnp.int32), RHS), {}, ("lhs[3, 4] is int32", "up to 2^24", "float8_e4m3fn")),
    "int64": ((np.ones((3, 4), np.int64), RHS), {}, ("lhs[3, 4] is int32",)),
    "bool": ((LHS, ones(4, 5, dtype=jnp.bool_)), {}, ("rhs[4, 5] is bool", "astype(jnp.int8)")),
    "keys": ((jax.random.split(jax.random.key(0), 3), RHS), {}, ("lhs is an array of key<fry>", "jax.random.normal")),
    "keys as bias": ((LHS, RHS), {"bias": jax.random.split(jax.random.key(0), 5)}, ("bias is an array of key<fry>",)),
    "a shape": ((jax.ShapeDtypeStruct((3, 4), jnp.float32), RHS), {}, (
        "lhs is a ShapeDtypeStruct, which has no elements", "jax.eval_shape", "systolic.plan", "systolic.simulate")),
    "a shape as rhs_args": ((LHS, RHS), {"rhs_fn": two, "rhs_args": (jax.ShapeDtypeStruct((5,), jnp.float32),)}, (
        "rhs_args[0] is a ShapeDtypeStruct",)),
    "objects": ((np.array([[object()]]), RHS), {}, ("lhs[1, 1] is object",)),
    "a list": (([[1.0, 2.0]], ones(2, 3)), {}, ("lhs is a list", "jnp.asarray")),
    "a tuple": ((LHS, ((1.0,),) * 4), {}, ("rhs is a tuple", "jnp.asarray")),
    "a number": ((1.0, RHS), {}, ("lhs is a float",)),
    "nothing": ((None, RHS), {}, ("lhs is a NoneType",)),
    "an array without dimensions": ((ones(), RHS), {}, ("lhs is a scalar", "Use * for scalars")),
    "complex bias": ((LHS, RHS), {"bias": ones(5, dtype=jnp.complex64)}, ("bias is complex64", "float32")),
    "a mask": ((LHS, RHS), {"lhs_fn": two, "lhs_args": (np.ones((3, 4), bool),)}, ("lhs_args[0] is bool",)),
    "words as bias": ((LHS, RHS), {"bias": "x"}, ("bias is",)),
    "an object as residual": ((LHS, RHS), {"residual": object()}, ("residual is a object", "jnp.asarray")),
    "no tuple of arguments": ((LHS, RHS), {"lhs_fn": two, "lhs_args": 2.0}, ("lhs_args is a float", "tuple")),
    "result float64": ((LHS, RHS), {"preferred_element_type": "float64"}, ("preferred_element_type=float64",)),
    "result complex": ((LHS, RHS), {"preferred_element_type": jnp.complex64}, ("preferred_element_type=complex64",)),
    "result unknown": ((LHS, RHS), {"preferred_element_type": "real"}, ("preferred_element_type='real'",)),
}  # fmt: skip

FUNCTIONS = {
    "unknown activation": ({"activation": "mish"}, ("'mish'", "relu, gelu, silu")),
    "no function": ({"activation": 3}, ("activation int",)),
    "activation that cuts": ({"activation": lambda x: x[:1]}, ("(8, 128) into (1, 128)", "elementwise")),
    "activation that sums": ({"activation": jnp.sum}, ("activation sum", "(8, 128) into ()", "elementwise")),
    "activation of two results": ({"activation": lambda x: (x, x)}, ("tuple", "one array of the same shape")),
    "activation without result": ({"activation": lambda x: None}, ("NoneType",)),
    "activation that fails": ({"activation": lambda x: x.nothing}, ("fails on float32[8, 128]", "AttributeError")),
    "activation of a row": ({"activation": jax.nn.softmax}, ("activation softmax", "reduce_max", "elementwise")),
    "activation of a place": (
        {"activation": lambda x: x * lax.broadcasted_iota(jnp.float32, x.shape, 0)}, ("iota", "elementwise")),
    "lhs_fn of a row": ({"lhs_fn": lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True)}, ("lhs_fn", "reduce_sum")),
    "rhs_fn that runs along": ({"rhs_fn": lambda w: jnp.cumsum(w, axis=0)}, ("rhs_fn", "cumsum")),
    "lhs_fn that transposes": ({"lhs_fn": lambda x: x.T}, ("lhs_fn <lambda>", "(3, 4) into (4, 3)")),
    "lhs_fn that fails": ({"lhs_fn": two}, ("lhs_fn two fails on float32[3, 4]", "missing 1 required")),
    "lhs_fn to float16": (
        {"lhs_fn": lambda x: x.astype(jnp.float16)}, ("returns float16", "no TPU multiplies", "astype(jnp.bfloat16)")),
    "lhs_fn to int4": ({"lhs_fn": lambda x: x.astype(jnp.int4)}, ("returns int4", "v6e do", ".astype(jnp.int8)")),
    "lhs_fn that is none": ({"lhs_fn": 3}, ("lhs_fn int",)),
}  # fmt: skip

CHOICES = {
    "unknown precision": ({"precision": "medium"}, ("'medium'", "choose from default, high, highest")),
    "a precision for each": ({"precision": ("high", "default")}, ("('high', 'default')", "highest")),
    "a number as precision": ({"precision": 3}, ("precision=3",)),
    "unknown implementation": ({"implementation": "cuda"}, ("'cuda'", "pallas, xla, interpret")),
    "a truth as implementation": ({"implementation": True}, ("implementation=True",)),
    "no chip": ({"chip": 5}, ("chip=5", "v5e")),
    "two tiles": ({"tiles": (128, 128)}, ("tiles=(128, 128)", "(tile_m, tile_k, tile_n)")),
    "one tile": ({"tiles": 128}, ("tiles=128", "three")),
    "words as tiles": ({"tiles": "128"}, ("tiles='128'",)),
    "half tiles": ({"tiles": (128.5, 128, 128)}, ("128.5", "whole numbers")),
}


def refused(call: Callable[[], object], said: tuple[str, ...], kind: type[ValueError] = SpecError) -> None:
    with pytest.raises(ValueError, match=re.escape(said[0])) as caught:
        call()
    assert type(caught.value) is kind
    for words in said:
        assert words in str(caught.value)


@pytest.mark.parametrize("implementation", [None, "interpret", "xla"])
@pytest.mark.parametrize("case", [*SHAPES, *DTYPES])
def test_operands_refused(case: str, implementation: Any) -> None:
    (lhs, rhs), keywords, said = {**SHAPES, **DTYPES}[case]
    refused(lambda: systolic.matmul(lhs, rhs, implementation=implementation, **keywords), said)


@pytest.mark.parametrize("case", [*FUNCTIONS, *CHOICES])
def test_functions_and_choices_refused(case: str) -> None:
    keywords, said = {**FUNCTIONS, **CHOICES}[case]
    refused(lambda: systolic.matmul(LHS, RHS, **keywords), said)


@pytest.mark.parametrize("case", SHAPES)
def test_refused_while_tracing_too(case: str) -> None:
    (lhs, rhs), keywords, said = SHAPES[case]
    refused(lambda: jax.jit(lambda *arrays: systolic.matmul(*arrays, **keywords))(lhs, rhs), said)
    refused(lambda: jax.grad(lambda *arrays: systolic.matmul(*arrays, **keywords).sum())(lhs, rhs), said)


def test_nothing_is_computed_before_the_refusal() -> None:
    def seen(x: jax.Array) -> jax.Array:
        if not isinstance(x, Tracer):
            pytest.fail("a function of the operand ran")
        return x

    refused(lambda: systolic.matmul(LHS, RHS, lhs_fn=seen, activation=seen, bias=ones(6)), ("bias of shape [6]",))


def test_unknown_chip() -> None:
    refused(lambda: systolic.matmul(LHS, RHS, chip="v9"), ("'v9'", "v4, v5e, v5p, v6e, v7x"), UnknownChipError)


@pytest.mark.parametrize("implementation", [None, "interpret"])
def test_a_chip_without_the_dtype_says_what_it_has(implementation: Any) -> None:
    refused(
        lambda: systolic.matmul(*INT8, chip="v4", implementation=implementation),
        ("v4 has no matrix multiplication of int8", "takes float32, bfloat16"),
        UnsupportedDtypeError,
    )
    fp8 = ones(64, 128, dtype=jnp.float8_e4m3fn), ones(128, 128, dtype=jnp.float8_e4m3fn)
    refused(
        lambda: systolic.matmul(*fp8, chip="v4", implementation=implementation),
        ("v4 has no matrix multiplication of float8_e4m3fn", "takes float32, bfloat16"),
        UnsupportedDtypeError,
    )


TILES: dict[str, tuple[tuple[jax.Array, jax.Array], tuple[int, int, int], tuple[str, ...]]] = {
    "no register": (LARGE, (100, 100, 100), (
        "tile_m=100 is not a multiple of 8", "use tile_m=104", "tile_k=100 is not a multiple of 128", "use tile_k=128",
        "tile_n=100 is not a multiple of 128", "use tile_n=128")),
    "above the matrix": (LARGE, (768, 768, 768), ("tile_m≤384", "tile_k≤512", "tile_n≤640")),
    "one above, one not aligned": (LARGE, (385, 200, 128), ("tile_m=385 is above m=384", "tile_k=200 is not a multi")),
    "8 rows of int8": (INT8, (8, 128, 128), ("tile_m=8 is not a multiple of 32", "use tile_m=32")),
}  # fmt: skip


@pytest.mark.parametrize("case", TILES)
def test_tiles_refused_with_every_rule(case: str) -> None:
    (lhs, rhs), tiles, said = TILES[case]
    refused(lambda: systolic.matmul(lhs, rhs, tiles=tiles, implementation="interpret"), said, IllegalTilesError)
    record = Tiles(tile_m=tiles[0], tile_k=tiles[1], tile_n=tiles[2])
    refused(lambda: systolic.matmul(lhs, rhs, tiles=record, chip="v5e"), said, IllegalTilesError)


def test_tiles_that_do_not_fit_in_vmem() -> None:
    lhs = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)
    with pytest.raises(IllegalTilesError) as caught:
        jax.eval_shape(
            lambda x: systolic.matmul(x, x, tiles=(8192, 8192, 8192), implementation="pallas", chip="v6e"), lhs
        )
    assert [one.rule for one in caught.value.violations] == ["vmem"]
    for words in ("MiB of VMEM (lhs 512.0, rhs 512.0, out 512.0)", "use smaller tiles"):
        assert words in str(caught.value)


@pytest.mark.parametrize("tiles", [(0, 128, 128), (128, -8, 128)])
def test_tiles_of_nothing(tiles: tuple[int, int, int]) -> None:
    refused(lambda: systolic.matmul(*LARGE, tiles=tiles), ("a tile needs at least one element",), TilesError)


def test_tiles_of_the_vector_like() -> None:
    """A tile that is all of a small side is legal, whatever its size."""
    out = systolic.matmul(ones(3, 5), ones(5, 7), tiles=(3, 5, 7), implementation="interpret")
    np.testing.assert_array_equal(np.asarray(out), np.full((3, 7), 5.0))


def test_numbers_and_lists_beside_the_output_are_taken() -> None:
    wanted = (np.full((3, 5), 4.0) + [1, 2, 3, 4, 5] + 10) * 0.5
    out = systolic.matmul(LHS, RHS, bias=cast(Any, [1, 2, 3, 4, 5]), residual=10, out_scale=np.float64(0.5))
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(np.asarray(out), wanted)
    scaled = systolic.matmul(LHS, RHS, lhs_fn=two, lhs_args=(2.0,), rhs_fn=two, rhs_args=[3])
    np.testing.assert_array_equal(np.asarray(scaled), np.full((3, 5), 24.0))


def test_bias_of_one_element_beside_a_column() -> None:
    for bias in (2.0, ones(1) * 2, ones() * 2):
        np.testing.assert_array_equal(np.asarray(systolic.matmul(LHS, ones(4), bias=bias)), np.full(3, 6.0))


def test_elementwise_functions_of_many_kinds_are_taken() -> None:
    def several(x: jax.Array) -> jax.Array:
        y = jnp.where(x > 0, jnp.clip(x, 0, 6), jnp.polyval(jnp.array([1.0, 0.5]), x))
        return jnp.piecewise(y, [y < 0], [lambda v: -v, lambda v: v * jnp.sum(jnp.arange(3.0))])

    got = systolic.matmul(LHS, RHS, activation=several)
    np.testing.assert_allclose(np.asarray(got), np.asarray(several(LHS @ RHS)), rtol=1e-6)
