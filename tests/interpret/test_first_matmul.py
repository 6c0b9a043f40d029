"""The template: transposes and activations against float64."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from systolic.bench.accuracy import max_abs_error, operands, reference, tolerance
from systolic.lessons.first_matmul import first_matmul, identity, lesson
from systolic.lessons.ladder import IllegalTilesError
from systolic.lessons.ladder.rung import clipped
from systolic.problem import MatmulProblem, ProblemError
from systolic.tiling import Tiles

Function = Callable[..., object]
# In the kernel, in float64, and the most by which the function can widen a distance.
ACTIVATIONS: dict[str, tuple[Function, Function, float]] = {
    "none": (identity, lambda x: x, 1.0),
    "relu": (jax.nn.relu, lambda x: np.maximum(x, 0), 1.0),
    "silu": (jax.nn.silu, lambda x: x / (1 + np.exp(-x)), 1.1),
    "affine": (lambda acc: acc * 0.5 + 1, lambda x: x * 0.5 + 1, 0.5),
}


def evaluation_error(exact: np.ndarray, dtype_out: str) -> float:
    """What evaluating the activation itself may add: four float32 roundings of a value, and that of the output."""
    units = 4 * 2.0**-24 + (2.0**-8 if dtype_out == "bfloat16" else 2.0**-24)
    return units * float(np.max(np.abs(exact)))


@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("shape", "dtype"), [((8, 128, 128), "float32"), ((256, 384, 128), "bfloat16"), ((128, 256, 512), "float32")]
)
def test_right(shape: tuple[int, int, int], activation: str, transpose_rhs: bool, dtype: str) -> None:
    problem = MatmulProblem.of(*shape, dtype)
    lhs, rhs = operands(problem)
    in_kernel, in_float64, slope = ACTIVATIONS[activation]
    out = first_matmul(
        jnp.asarray(lhs),
        jnp.asarray(rhs.T if transpose_rhs else rhs),
        tiles=clipped(Tiles.cube(128), problem),
        transpose_rhs=transpose_rhs,
        activation=in_kernel,  # pyright: ignore[reportArgumentType]
        interpret=pltpu.InterpretParams(uninitialized_memory="nan"),
    )
    wanted = np.asarray(in_float64(reference(lhs, rhs)))
    limit = max(1.0, slope) * tolerance(problem, 1) + evaluation_error(wanted, dtype)
    assert max_abs_error(np.asarray(out), wanted, problem) <= limit


@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_int8_is_exact(transpose_rhs: bool) -> None:
    problem = MatmulProblem.of(64, 256, 128, "int8")
    lhs, rhs = operands(problem)
    out = first_matmul(
        jnp.asarray(lhs),
        jnp.asarray(rhs.T if transpose_rhs else rhs),
        tiles=Tiles(tile_m=32, tile_k=128, tile_n=128),
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
    with pytest.raises(ProblemError, match=r"lhs\[128, 256\], rhs\[256, 128\].*rhs\[n, k\]"):
        first_matmul(lhs, rhs, transpose_rhs=True)
    with pytest.raises(IllegalTilesError, match="tile_m=512 is above m=128"):
        first_matmul(lhs, rhs, tiles=Tiles.cube(512))
    with pytest.raises(IllegalTilesError, match="the last 44 of k would be lost"):
        first_matmul(jnp.zeros((256, 300)), jnp.zeros((300, 256)))


def test_lesson() -> None:
    told = lesson()
    assert told.ok
    assert len(told.rows) == 8
    assert {(row["transpose_rhs"], row["activation"]) for row in told.rows} == {
        (False, "none"), (False, "relu"), (True, "none"), (True, "relu"),
    }  # fmt: skip
