"""The tolerance: met by honest kernels with a margin below ten, and missed by planted faults."""

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from systolic.bench.accuracy import Accuracy, ResultError, check, operands, reference, tolerance
from systolic.spec import MatmulSpec

Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]


def honest(dtype_out: str, chunks: int = 1) -> Multiply:
    """Sums term after term in float32, with no help from a BLAS; rounded to `dtype_out` after each of the chunks."""

    def multiply(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        lhs, rhs = lhs.astype(np.float32), rhs.astype(np.float32)
        out = np.zeros((lhs.shape[0], rhs.shape[1]), dtype_out)
        for terms in np.split(np.arange(lhs.shape[1]), chunks):
            acc = np.zeros(out.shape, np.float32)
            for term in terms:
                acc += np.outer(lhs[:, term], rhs[term])
            out = (out.astype(np.float32) + acc).astype(dtype_out)
        return out

    return multiply


@pytest.mark.sampled
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("dtype", "dtype_out", "chunks"),
    [
        ("float32", "float32", 1),
        ("float32", "float32", 4),
        ("bfloat16", "bfloat16", 1),
        ("bfloat16", "bfloat16", 4),
        ("bfloat16", "bfloat16", 8),
        ("float32", "bfloat16", 1),
    ],
)
@pytest.mark.parametrize("shape", [(32, 64, 128), (128, 128, 128), (100, 200, 300), (256, 384, 128), (64, 1024, 256)])
def test_honest_kernels_pass_with_a_margin_below_ten(
    shape: tuple[int, int, int], dtype: str, dtype_out: str, chunks: int, seed: int
) -> None:
    spec = MatmulSpec.of(*shape, dtype, dtype_out)
    accuracy = check(honest(dtype_out, chunks), spec, chunks, seed)
    assert accuracy.ok
    assert accuracy.max_abs_error < accuracy.tolerance < 10 * accuracy.max_abs_error


@pytest.mark.parametrize(("k", "dtype_out"), [(1, "bfloat16"), (1, "float32"), (2, "bfloat16"), (7, "float32")])
def test_few_terms_pass(k: int, dtype_out: str) -> None:
    """Sums of few products are far from normal; the tolerance does not assume that they are."""
    spec = MatmulSpec.of(512, k, 512, "float32", dtype_out)
    assert all(check(honest(dtype_out), spec, 1, seed).ok for seed in range(3))


def blas(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    return lhs.astype(np.float32) @ rhs.astype(np.float32)


def lost_row_of_k(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    return blas(lhs[:, :-1], rhs[:-1])


def one_bfloat16_pass(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    return blas(lhs.astype(ml_dtypes.bfloat16), rhs.astype(ml_dtypes.bfloat16))


def missing_tile(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    out = blas(lhs, rhs)
    out[-128:, -128:] = 0
    return out


def tile_added_twice(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    out = blas(lhs, rhs)
    out[:128, :128] += blas(lhs[:128, :128], rhs[:128, :128])
    return out


def rows_swapped(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    return blas(lhs, rhs)[[1, 0, *range(2, len(lhs))]]


def one_nan(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    out = blas(lhs, rhs)
    out[3, 5] = np.nan
    return out


FAULTS = [lost_row_of_k, missing_tile, tile_added_twice, rows_swapped, one_nan]


@pytest.mark.sampled
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("fault", [*FAULTS, one_bfloat16_pass])
def test_faults_in_float32(fault: Multiply, seed: int) -> None:
    spec = MatmulSpec.of(256, 1024, 256, "float32")
    assert check(blas, spec, 1, seed).ok
    for chunks in (1, 8):
        assert not check(fault, spec, chunks, seed).ok


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_bfloat16(fault: Multiply, seed: int) -> None:
    spec = MatmulSpec.of(256, 1024, 256, "bfloat16")
    assert check(lambda lhs, rhs: blas(lhs, rhs).astype(ml_dtypes.bfloat16), spec, 1, seed).ok
    for chunks in (1, 8):  # v5 and v3
        assert not check(lambda lhs, rhs: fault(lhs, rhs).astype(ml_dtypes.bfloat16), spec, chunks, seed).ok


def test_a_bfloat16_accumulator_is_no_float32_one() -> None:
    """Rounded at each of 32 steps, but claimed to be rounded once."""
    spec = MatmulSpec.of(256, 1024, 256, "bfloat16")
    assert not check(honest("bfloat16", 32), spec, 1).ok
    assert check(honest("bfloat16", 32), spec, 32).ok


def test_integers_are_exact() -> None:
    spec = MatmulSpec.of(64, 1000, 32, "int8")
    assert tolerance(spec, 1) == 0

    def multiply(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return lhs.astype(np.int32) @ rhs.astype(np.int32)

    def one_off(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        out = multiply(lhs, rhs)
        out[0, 0] += 1
        return out

    assert check(multiply, spec, 1) == Accuracy(max_abs_error=0.0, tolerance=0.0)
    assert check(multiply, spec, 1).ok
    assert check(one_off, spec, 1) == Accuracy(max_abs_error=1.0, tolerance=0.0)
    assert not check(one_off, spec, 1).ok


def test_integer_reference_is_exact_either_way() -> None:
    small = np.full((2, 3), -128, np.int8), np.full((3, 2), -128, np.int8)
    assert (reference(*small) == 3 * 16384).all()
    large = np.array([[2**31 - 1, 1]], np.int32), np.array([[2**31 - 1], [1]], np.int32)
    assert reference(*large).dtype == np.int64
    assert int(reference(*large)[0, 0]) == (2**31 - 1) ** 2 + 1  # float64 has no such number


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_operands(dtype: str) -> None:
    spec = MatmulSpec.of(300, 400, 500, dtype)
    lhs, rhs = operands(spec, seed=5)
    assert (lhs.shape, rhs.shape) == ((300, 400), (400, 500))
    assert lhs.dtype.name == rhs.dtype.name == dtype
    again, other = operands(spec, seed=5)[0], operands(spec, seed=6)[0]
    assert (again == lhs).all()
    assert (other != lhs).mean() > 0.9
    if dtype == "int8":
        assert (lhs.min(), lhs.max()) == (-128, 127)
    else:
        assert lhs.astype(float).std() == pytest.approx(1, abs=0.01)
        assert lhs.astype(float).mean() == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("error", [math.nan, math.inf, 1.1])
def test_not_ok(error: float) -> None:
    assert not Accuracy(max_abs_error=error, tolerance=1.0).ok


def test_ok_includes_the_limit() -> None:
    assert Accuracy(max_abs_error=1.0, tolerance=1.0).ok


def test_tolerance_grows_with_what_makes_errors() -> None:
    def of(m: int = 128, k: int = 128, dtype_out: str = "float32", chunks: int = 1) -> float:
        return tolerance(MatmulSpec.of(m, k, 128, "bfloat16", dtype_out), chunks)

    assert of() < of(k=256) < of(k=4096)
    assert of() < of(m=1024)
    assert of() < of(dtype_out="bfloat16") < of(dtype_out="bfloat16", chunks=4)
    # One rounding of the output: half a step of bfloat16, 2^-8, of the largest sum.
    tail = math.log(2 * 128 * 128 / 1e-6)
    assert of(dtype_out="bfloat16") == pytest.approx(2**-8 * (math.sqrt(2 * 128 * tail) + tail), rel=1e-4)


def test_result_of_another_kind() -> None:
    spec = MatmulSpec.of(8, 128, 128, "float32")
    with pytest.raises(ResultError, match=r"float32\[1, 128\]; the product is float32\[8, 128\]"):
        check(lambda lhs, rhs: blas(lhs[:1], rhs), spec, 1)  # which would broadcast
    with pytest.raises(ResultError, match="float64"):
        check(lambda lhs, rhs: lhs.astype(float) @ rhs.astype(float), spec, 1)
