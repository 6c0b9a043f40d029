"""The template: transposes and activations against float64."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from systolic.bench.accuracy import max_abs_error, operands, reference, tolerance
from systolic.lessons.first_matmul import lesson
from systolic.lessons.kernels.first_matmul import first_matmul, identity, requantized
from systolic.spec import MatmulSpec

Function = Callable[..., object]
# In the kernel, in float64, and the most by which the function can widen a distance.
ACTIVATIONS: dict[str, tuple[Function, Function, float]] = {
    "none": (identity, lambda x: x, 1.0),
    "relu": (jax.nn.relu, lambda x: np.maximum(x, 0), 1.0),
    "silu": (jax.nn.silu, lambda x: x / (1 + np.exp(-x)), 1.1),
    "affine": (lambda acc: acc * 0.5 + 1, lambda x: x * 0.5 + 1, 0.5),
}


def evaluation_error(exact: np.ndarray, dtype_out: str) -> float:
    """Return the error that evaluating the activation may add: four float32 roundings of a value, and the output's."""
    units = 4 * 2.0**-24 + (2.0**-8 if dtype_out == "bfloat16" else 2.0**-24)
    return units * float(np.max(np.abs(exact)))


@pytest.mark.sampled(2)
@pytest.mark.paired
@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("shape", "dtype"), [((8, 128, 128), "float32"), ((256, 384, 128), "bfloat16"), ((128, 256, 512), "float32")]
)
def test_right(shape: tuple[int, int, int], activation: str, transpose_rhs: bool, dtype: str) -> None:
    spec = MatmulSpec.of(*shape, dtype)
    lhs, rhs = operands(spec)
    in_kernel, in_float64, slope = ACTIVATIONS[activation]
    out = first_matmul(
        jnp.asarray(lhs),
        jnp.asarray(rhs.T if transpose_rhs else rhs),
        bm=128,
        bk=128,
        bn=128,
        transpose_rhs=transpose_rhs,
        activation=in_kernel,  # pyright: ignore[reportArgumentType]
        interpret=pltpu.InterpretParams(uninitialized_memory="nan"),
    )
    wanted = np.asarray(in_float64(reference(lhs, rhs)))
    limit = max(1.0, slope) * tolerance(spec, 1) + evaluation_error(wanted, dtype)
    assert max_abs_error(np.asarray(out), wanted, spec) <= limit


@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_int8_is_exact(transpose_rhs: bool) -> None:
    spec = MatmulSpec.of(64, 256, 128, "int8")
    lhs, rhs = operands(spec)
    out = first_matmul(
        jnp.asarray(lhs),
        jnp.asarray(rhs.T if transpose_rhs else rhs),
        bm=32,
        bk=128,
        bn=128,
        transpose_rhs=transpose_rhs,
        activation=jax.nn.relu,
        interpret=pltpu.InterpretParams(),
    )
    np.testing.assert_array_equal(np.asarray(out), np.maximum(reference(lhs, rhs), 0))


def test_the_transpose_moves_nothing() -> None:
    """No transpose and no copy beside the kernel: the program is the call alone."""
    jaxpr = jax.make_jaxpr(lambda lhs, rhs: first_matmul(lhs, rhs, transpose_rhs=True))(
        jnp.zeros((256, 512)), jnp.zeros((128, 512))
    )
    assert [equation.primitive.name for equation in jaxpr.eqns] == ["pallas_call"]


def test_refused() -> None:
    lhs, rhs = jnp.zeros((128, 256)), jnp.zeros((256, 128))
    with pytest.raises(ValueError, match=r"lhs\[128, 256\], rhs\[256, 128\].*rhs\[n, k\]"):
        first_matmul(lhs, rhs, transpose_rhs=True)
    with pytest.raises(ValueError, match=r"k=300.*bk=256.*have to divide"):
        first_matmul(jnp.zeros((256, 300)), jnp.zeros((300, 256)))
    with pytest.raises(ValueError, match=r"lhs is float32 and rhs is bfloat16"):
        first_matmul(lhs, rhs.astype(jnp.bfloat16))


@pytest.mark.parametrize("scale", [1.0, 0.004, 1 / 3000, 3.7e-5])
def test_requantizes_as_numpy_does(scale: float) -> None:
    lhs, rhs = operands(MatmulSpec.of(256, 384, 128, "int8", "int8"), seed=3)
    sums = reference(lhs, rhs).astype(np.int32)
    expected = np.clip(np.rint(sums.astype(np.float32) * np.float32(scale)), -128, 127).astype(np.int8)
    out = requantizing(lhs, rhs, scale)
    assert out.dtype == np.int8
    np.testing.assert_array_equal(out, expected)
    assert len(np.unique(expected)) > 10  # neither all saturated nor all zero


def test_requantizes_ties_to_even_and_saturates() -> None:
    sums = np.array([-1000, -5, -3, -1, 0, 1, 3, 5, 254, 255, 256, 1000])
    lhs, rhs = np.zeros((32, 128), np.int8), np.zeros((128, 128), np.int8)
    lhs[0, :10] = 100
    lhs[0, 10] = 1
    for column, total in enumerate(sums):
        hundreds, ones = divmod(int(total), 100)
        rhs[0, column], rhs[10, column] = hundreds, ones
    out = requantizing(lhs, rhs, 0.5)
    assert out[0, : len(sums)].tolist() == [-128, -2, -2, 0, 0, 0, 2, 2, 127, 127, 127, 127]


def requantizing(lhs: np.ndarray, rhs: np.ndarray, scale: float) -> np.ndarray:
    out = first_matmul(
        jnp.asarray(lhs),
        jnp.asarray(rhs),
        bm=128,
        bk=128,
        bn=128,
        dtype_out=jnp.int8,
        activation=requantized(scale),
        interpret=pltpu.InterpretParams(),
    )
    return np.asarray(out)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale="):
        requantized(scale)


@pytest.mark.exhaustive
def test_lesson() -> None:
    told = lesson()
    assert told.ok
    assert len(told.rows) == 8
    assert {(row["transpose_rhs"], row["activation"]) for row in told.rows} == {
        (False, "none"), (False, "relu"), (True, "none"), (True, "relu"),
    }  # fmt: skip
