"""Operands that `matmul` converts as `jnp.matmul` does, and programs that are for another machine than they ask for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic.spec import SpecError


def ones(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.ones(shape, dtype)


LHS, RHS = ones(3, 4), ones(4, 5)
PALLAS: dict[str, Callable[[], object]] = {
    "eager": lambda: systolic.matmul(LHS, RHS, implementation="pallas"),
    "jit": lambda: jax.jit(functools.partial(systolic.matmul, implementation="pallas"))(LHS, RHS),
    "batch": lambda: systolic.matmul(ones(2, 3, 4), ones(2, 4, 5), implementation="pallas", chip="v6e"),
    "vmap": lambda: jax.vmap(lambda x: systolic.matmul(x, RHS, implementation="pallas"))(ones(2, 3, 4)),
    "gradient": lambda: jax.grad(lambda x: systolic.matmul(x, RHS, implementation="pallas").sum())(LHS),
}


@pytest.mark.parametrize("case", PALLAS)
def test_a_kernel_where_no_tpu_is(case: str) -> None:
    with pytest.raises(SpecError, match=r'"pallas" runs on a TPU, and this .* use "interpret" .* XLA'):
        PALLAS[case]()


def test_a_kernel_for_a_tpu_elsewhere() -> None:
    """An operation that refuses a program for a CPU does nothing in one for a TPU."""
    traced = jax.jit(functools.partial(systolic.matmul, implementation="pallas", chip="v5e")).trace(
        ones(100, 200), ones(200, 300)
    )
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "tpu_custom_call" in text
    assert "for_a_tpu" not in text


# Operands, other arguments, and the dtype of the result: that of jnp.matmul, but for int8.
CONVERTED: dict[str, tuple[tuple[Any, Any], dict[str, Any], str]] = {
    "float64 of numpy": ((np.full((3, 4), 0.1), np.full((4, 5), 0.3)), {}, "float32"),
    "float64 and bfloat16": ((np.full((3, 4), 0.1), ones(4, 5, dtype=jnp.bfloat16)), {}, "float32"),
    "float16": ((ones(3, 4, dtype=jnp.float16) / 3, ones(4, 5, dtype=jnp.float16)), {}, "float16"),
    "float16 of numpy": ((np.full((3, 4), 0.1, np.float16), np.ones((4, 5), np.float16)), {}, "float16"),
    "float16 and float32": ((ones(3, 4, dtype=jnp.float16) / 3, RHS), {}, "float32"),
    "float16 and bfloat16": ((ones(3, 4, dtype=jnp.float16), ones(4, 5, dtype=jnp.bfloat16)), {}, "float32"),
    "float16 and int8": ((ones(3, 4, dtype=jnp.float16) / 3, ones(4, 5, dtype=jnp.int8)), {}, "float16"),
    "result float16": ((LHS / 3, RHS), {"preferred_element_type": jnp.float16}, "float16"),
    "float16 to float32": (
        (np.full((3, 4), 0.1, np.float16), np.ones((4, 5), np.float16)), {"preferred_element_type": jnp.float32},
        "float32"),
}  # fmt: skip


@pytest.mark.sampled(9)
@pytest.mark.parametrize("implementation", ["interpret", "xla"])
@pytest.mark.parametrize("case", CONVERTED)
def test_operands_converted_as_by_jnp(case: str, implementation: Any) -> None:
    operands, keywords, dtype = CONVERTED[case]
    found = systolic.matmul(*operands, implementation=implementation, **keywords)
    wanted = jnp.matmul(*operands, **keywords)
    assert found.dtype.name == wanted.dtype.name == dtype
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=2.0**-9 if dtype == "float16" else 2.0**-22)


def test_arrays_beside_are_converted_too() -> None:
    beside = {"bias": np.full(5, 0.5), "residual": np.ones((3, 5), np.float16), "out_scale": np.full((3, 1), 0.25)}
    for implementation in ("interpret", "xla"):
        found = systolic.matmul(LHS, RHS, implementation=cast(Any, implementation), **cast(Any, beside))
        assert found.dtype == jnp.float32
        np.testing.assert_array_equal(np.asarray(found), np.full((3, 5), (4.5 + 1) * 0.25))


def test_gradients_of_float16_are_float16() -> None:
    lhs, rhs = (jnp.linspace(-1, 1, 12).reshape(3, 4).astype(jnp.float16), ones(4, 5, dtype=jnp.float16))
    for implementation in ("interpret", "xla"):
        product = functools.partial(systolic.matmul, implementation=implementation)
        slope = jax.grad(lambda x, product=product: product(x, rhs).sum())(lhs)
        assert slope.dtype == jnp.float16
        np.testing.assert_array_equal(np.asarray(slope), np.full((3, 4), 5.0))


def test_float64_is_refused_where_jax_has_it() -> None:
    with jax.enable_x64(True):
        with pytest.raises(SpecError, match=r"lhs\[3, 4\] is float64, which no TPU .* lhs.astype\(jnp.float32\)"):
            systolic.matmul(np.ones((3, 4)), RHS)
        with pytest.raises(SpecError, match=r"bias is float64, .* use float32"):
            systolic.matmul(LHS, RHS, bias=np.ones(5))
        assert systolic.matmul(LHS, RHS, bias=cast(Any, [1.0] * 5), out_scale=0.5).dtype == jnp.float32
