"""Passes, sums and integers: each loses what arithmetic says it must."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from systolic.bench.accuracy import max_abs_error, operands, reference, tolerance
from systolic.lessons.kernels.numbers_on_chip import PRODUCTS, multiply, split
from systolic.lessons.numbers_on_chip import errors, largest_sums
from systolic.spec import MatmulSpec


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["float32 dot", "six passes", "HIGHEST"])
@pytest.mark.parametrize("shape", [(8, 128, 128), (128, 384, 256)], ids=str)
def test_six_passes_are_float32(name: str, shape: tuple[int, int, int]) -> None:
    spec = MatmulSpec.of(*shape, "float32")
    lhs, rhs = operands(spec)
    out = multiply(
        jnp.asarray(lhs),
        jnp.asarray(rhs),
        product=PRODUCTS[name],
        bm=shape[0],
        bk=128,
        bn=128,
        interpret=pltpu.InterpretParams(uninitialized_memory="nan"),
    )
    assert max_abs_error(np.asarray(out), reference(lhs, rhs), spec) <= tolerance(spec, 1)


def test_terms_hold_eight_bits_each() -> None:
    x = np.random.default_rng(0).standard_normal((64, 128), np.float32)
    for count, bits in ((1, 8), (2, 16), (3, 24)):
        terms = split(jnp.asarray(x), count)
        assert all(term.dtype == jnp.bfloat16 for term in terms)
        left = np.abs(x - sum(np.asarray(term, np.float64) for term in terms))
        assert (left <= 2.0**-bits * np.abs(x)).all()


@pytest.mark.exhaustive
def test_errors() -> None:
    found = errors(m=64, k=1024, n=128, bk=128)
    # Both operands are rounded by up to 2^-9 of themselves, 0.4 of that in the mean square.
    assert 2.0**-10 < found["one pass"] < 2.0**-8
    assert found["three passes"] < 2.0**-16
    assert found["six passes"] < 2.0**-20
    assert found["sum in float32"] < 2.0**-8 < found["sum in bfloat16"] * 2
    assert found["sum in bfloat16"] > 1.5 * found["sum in float32"]
    assert 0.001 < found["int8"] < 0.1


def test_int32_holds_131071_products_of_the_largest_int8() -> None:
    assert largest_sums() == (131071 * 2**14, -(2**31))
