"""Numbers at the limits: infinities, NaN, the largest and the smallest floats, and integers that overflow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matmul_reference import values, wide

import systolic

F32, BF16, INT8, E5M2, E4M3 = jnp.float32, jnp.bfloat16, jnp.int8, jnp.float8_e5m2, jnp.float8_e4m3fn
KINDS: dict[str, tuple[Any, Any, str]] = {
    "float32, default": (F32, F32, "default"),
    "float32, high": (F32, F32, "high"),
    "float32, highest": (F32, F32, "highest"),
    "float32 × bfloat16, high": (F32, BF16, "high"),
    "bfloat16": (BF16, BF16, "default"),
    "bfloat16 × int8": (BF16, INT8, "default"),
    "int8 × float32, high": (INT8, F32, "high"),
    "float8_e5m2": (E5M2, E5M2, "default"),
    "float8_e4m3fn": (E4M3, E4M3, "default"),
}
M, K, N = 160, 300, 136
MET = 130  # the column of lhs, and row of rhs, with which extreme numbers are multiplied: in the second of three steps


def extreme(dtype: Any) -> list[float]:
    """Every number of the dtype that is special; none but 1 for integers."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return [1.0]
    limits = jnp.finfo(dtype)
    some = [float(limits.max), float(limits.smallest_normal), float(limits.smallest_subnormal), float("nan")]
    if dtype != E4M3:  # it has no infinity
        some.append(float("inf"))
    return [sign * value for value in some for sign in (1.0, -1.0)]


def planted(dtype: Any, seed: int) -> np.ndarray:
    """[M, K]: rows of zeros but for one extreme number; then the same numbers among others; then ordinary rows."""
    random = np.random.default_rng(seed)
    array = values(random, (M, K), F32)
    if dtype == INT8:
        array = np.round(array * 30)
    for number, value in enumerate(extreme(dtype)):
        array[number] = 0
        array[number, MET] = value
        if abs(value) != jnp.finfo(F32).max:
            array[M // 2 + number, MET] = value
    return array.astype(dtype)


def check(found: Any, lhs: np.ndarray, rhs: np.ndarray) -> None:
    """The reference is XLA's full float32 product on a CPU, which flushes denormals as a TPU does."""
    wanted = wide(jnp.matmul(lhs.astype(F32), rhs.astype(F32), precision="highest"))
    found = wide(found)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    infinite = np.isinf(wanted)
    np.testing.assert_array_equal(found[infinite], wanted[infinite])
    finite = np.isfinite(wanted)
    # The three passes of `high` leave out the product of both low parts, up to 2^-14 of the product.
    size = np.abs(np.nan_to_num(wide(lhs), posinf=0, neginf=0)) @ np.abs(np.nan_to_num(wide(rhs), posinf=0, neginf=0))
    tolerance = 2.0**-13 * size + 300 * float(jnp.finfo(F32).smallest_normal)
    assert (np.abs(found[finite] - wanted[finite]) <= tolerance[finite]).all()


def matmul(lhs: np.ndarray, rhs: np.ndarray, **keywords: Any) -> jax.Array:
    keywords = {"implementation": "interpret", "preferred_element_type": F32, "tiles": (128, 128, 128), **keywords}
    return systolic.matmul(lhs, rhs, **keywords)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "form"),
    [(kind, form) for n, kind in enumerate(KINDS) for form in ("staged", "plain" if n % 2 else "transposed")],
)
def test_extreme_numbers(kind: str, form: str) -> None:
    """In lhs, in rhs, and in both. Elsewhere they meet powers of two, so that nothing is rounded there."""
    dtype_lhs, dtype_rhs, precision = KINDS[kind]
    lhs, rhs = planted(dtype_lhs, 0), values(np.random.default_rng(1), (K, N), F32)
    rhs = np.round(rhs * 30) if dtype_rhs == INT8 else rhs
    rhs[MET] = np.resize([1.0, -1.0] if dtype_rhs == INT8 else [1.0, -1.0, 0.5, -0.25, 0.125], N)
    if dtype_rhs in (F32, BF16, E5M2):
        rhs[MET, :4] = [np.inf, -np.inf, np.nan, 0.0]
    rhs = rhs.astype(dtype_rhs)

    def product(lhs: np.ndarray, rhs: np.ndarray) -> jax.Array:
        more: dict[str, Any] = {"precision": precision}
        if form == "transposed":
            lhs, rhs = lhs.T.copy(), rhs.T.copy()
            more |= {"transpose_lhs": True, "transpose_rhs": True}
        if form == "staged":  # blocks that end past k are rewritten before they are multiplied
            more |= {"lhs_fn": lambda block: block * 1, "rhs_fn": lambda block: block * 1}
        return matmul(lhs, rhs, **more)

    check(product(lhs, rhs), lhs, rhs)
    check(product(rhs.T, lhs.T), rhs.T, lhs.T)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", ["default", "high", "highest"])
def test_the_largest_number(precision: str) -> None:
    largest = float(jnp.finfo(F32).max)
    lhs = np.zeros((M, K), np.float32)
    lhs[:, 3] = np.resize([largest, -largest, largest * (1 - 2.0**-9), largest / 2], M)
    rhs = np.zeros((K, N), np.float32)
    rhs[3] = np.resize([1.0, -1.0, 0.5], N)
    found = wide(matmul(lhs, rhs, precision=precision))
    np.testing.assert_allclose(found, wide(lhs) @ wide(rhs), rtol=2.0**-14)
    assert np.isinf(wide(matmul(lhs, rhs * 2, precision=precision))[:2, 0]).all()


def by_both(lhs: np.ndarray, rhs: np.ndarray, **keywords: Any) -> np.ndarray:
    """The result, which has to be the same to the bit by XLA and by the kernel."""
    by_xla = np.asarray(systolic.matmul(lhs, rhs, implementation="xla", **keywords))
    by_kernel = np.asarray(systolic.matmul(lhs, rhs, implementation="interpret", **keywords))
    np.testing.assert_array_equal(by_xla, by_kernel)
    assert by_xla.dtype == by_kernel.dtype
    return by_kernel


@pytest.mark.parametrize("fused", [{}, {"bias": np.float32(0)}, {"out_scale": 1.0}, {"activation": lambda t: t}])
def test_int8_saturates_with_or_without_something_fused(fused: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    lhs, rhs = values(random, (64, 300), INT8), values(random, (300, 136), INT8)
    lhs[0], rhs[:, 0], rhs[:, 1] = 127, 127, -128
    lhs[1], lhs[1, 0], rhs[0] = 0, 1, np.arange(136) - 64  # results that int8 holds
    found = by_both(lhs, rhs, preferred_element_type=INT8, **fused)
    np.testing.assert_array_equal(found, np.clip(lhs.astype(np.int64) @ rhs.astype(np.int64), -128, 127))
    assert found[0, 0] == 127
    assert found[0, 1] == -128


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [INT8, jnp.int32])
@pytest.mark.parametrize("fused", [{}, {"bias": np.float32(0)}])
def test_floats_round_to_even_and_saturate(dtype: Any, fused: dict[str, Any]) -> None:
    limits = jnp.iinfo(dtype)
    wanted = {
        0.5: 0, 1.5: 2, 2.5: 2, -0.5: 0, -1.5: -2, 126.5: 126, -126.5: -126, 1e3: min(1000, limits.max),
        2.0**31: limits.max, -(2.0**31): limits.min, 3e38: limits.max, -3e38: limits.min, 0.0: 0,
        2147483520.0: min(2147483520, limits.max), np.inf: limits.max, -np.inf: limits.min, np.nan: 0,
    }  # fmt: skip
    lhs = np.zeros((len(wanted), 128), np.float32)
    lhs[:, 0] = list(wanted)
    rhs = np.zeros((128, 128), np.float32)
    rhs[0] = 1.0
    found = by_both(lhs, rhs, preferred_element_type=dtype, **fused)
    np.testing.assert_array_equal(found, np.repeat(np.array(list(wanted.values()), dtype)[:, None], 128, 1))


@pytest.mark.exhaustive
def test_a_sum_of_int32_wraps_only_where_it_is_the_result() -> None:
    """2^18 products of 127·127 wrap modulo 2^32, as XLA's do. A float or int8 comes from a float32 sum of its parts."""
    k = 2**18
    lhs, rhs = np.full((32, k), 127, np.int8), np.full((k, 128), 127, np.int8)
    wrapped = (127 * 127 * k + 2**31) % 2**32 - 2**31
    total = np.float32(127 * 127 * k)
    assert wrapped != total
    for dtype, wanted in ((None, wrapped), (F32, total), (INT8, 127)):
        found = by_both(lhs, rhs, preferred_element_type=dtype, tiles=(32, 32768, 128))
        np.testing.assert_array_equal(found, np.full((32, 128), wanted, found.dtype))
    found = by_both(lhs, rhs, bias=np.ones(128, np.float32), tiles=(32, 32768, 128))
    assert (found == 2**31 - 1).all()  # an int32 of a float saturates
