"""Functions that `matmul` accepts as elementwise: on a block they compute the same as on the whole."""

from __future__ import annotations

import zlib
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from elementwise_functions import ACCEPTED, F32, REFUSED, SCALAR, Fn, corner
from jax import export, lax

import systolic
from systolic.ops.functions.elementwise import elementwise
from systolic.spec import SpecError

TILE = jax.ShapeDtypeStruct((8, 128), F32)


def takes(fn: Fn, *shapes: tuple[int, ...], what: str = "activation") -> Fn:
    args = [jax.ShapeDtypeStruct(shape, F32) for shape in shapes] or [TILE]
    return elementwise(fn, what, args, in_kernel=False)


def refusal(fn: Fn, *shapes: tuple[int, ...], what: str = "activation") -> str:
    with pytest.raises(SpecError) as caught:
        takes(fn, *shapes, what=what)
    return str(caught.value)


def by_blocks(fn: Fn, arrays: list[np.ndarray], rows: int, columns: int) -> np.ndarray:
    """`fn` of one block after the other; arrays of one row or column have one in every block."""
    m, n = arrays[0].shape
    out = np.empty((m, n), np.float32)
    for i in range(0, m, rows):
        for j in range(0, n, columns):

            def block(array: np.ndarray, i: int = i, j: int = j) -> np.ndarray:
                of_rows = slice(i, i + rows) if array.shape[0] > 1 else slice(None)
                return array[of_rows, slice(j, j + columns) if array.shape[1] > 1 else slice(None)]

            out[i : i + rows, j : j + columns] = fn(*map(block, arrays))
    return out


# Of the functions that a library has a name for, every fifth; of the other forms, all.
NAMED = [name for name in ACCEPTED if name.startswith(("jax.nn.", "jnp.", "lax."))]
QUICK = {*ACCEPTED} - {*NAMED} | {*NAMED[::5]}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.exhaustive) for name in ACCEPTED]
)
def test_elementwise_functions_are_taken_and_are(name: str) -> None:
    fn = takes(ACCEPTED[name])
    x = np.random.default_rng(zlib.crc32(name.encode())).uniform(0.05, 0.95, (16, 256)).astype(np.float32)
    whole = np.asarray(ACCEPTED[name](x))
    # Only to the rounding of a few operations: programs for other shapes order them otherwise.
    np.testing.assert_allclose(by_blocks(jax.jit(fn), [x], 8, 128), whole, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_elements_is_refused(name: str) -> None:
    fn, word = REFUSED[name]
    said = refusal(fn)
    assert "is not elementwise" in said
    assert word in said
    assert "\n" not in said


@jax.custom_vjp
def clipped(t: jax.Array) -> jax.Array:
    """The same function, with a gradient whose norm is at most one, as some models use."""
    return t * 1.0


clipped.defvjp(lambda t: (t, None), lambda _, slope: (slope / jnp.linalg.norm(slope),))


@jax.custom_jvp
def without_a_rule_for_vjp(t: jax.Array) -> jax.Array:
    return t * 2.0


without_a_rule_for_vjp.defjvp(lambda t, slope: (t[0] * 2.0, lax.while_loop(lambda _: False, lambda s: s, slope[0])))


def test_a_derivative_of_its_own_is_looked_at_too() -> None:
    assert "clipped's derivative is not elementwise: it has reduce_sum" in refusal(clipped)
    assert "reduce_sum" in refusal(lambda t, a: clipped(t) + a, (7, 12), (1, 12), what="lhs_fn")
    takes(without_a_rule_for_vjp)  # and as long as nobody differentiates it, there is nothing wrong with it


def test_a_refusal_says_what_to_do() -> None:
    assert "pass arrays as bias, residual or out_scale" in refusal(REFUSED["a captured row"][0])
    for side in ("lhs", "rhs"):
        said = refusal(corner, (8, 128), what=f"{side}_fn")
        assert f"{side}_fn corner is not elementwise: it has slice along a dimension of its block" in said
        assert f"pass arrays in {side}_args" in said


# Arguments beside the block: rows, columns, single elements, blocks; as they are given, in fewer dimensions too.
@pytest.mark.parametrize("shape", [(), (1,), (12,), (1, 12), (7, 1), (1, 1), (7, 12)])
def test_arguments_broadcast(shape: tuple[int, ...]) -> None:
    takes(lambda t, a: t * a + jnp.where(a > 0, t, a), (7, 12), shape, what="lhs_fn")
    takes(lambda t, a: t * a.astype(F32), (3, 7, 12), shape, what="rhs_fn")


def test_arguments_that_are_turned_are_refused() -> None:
    assert "column" in refusal(lambda t, a: t * a.T, (12, 12), (12, 12), what="lhs_fn")
    assert "column" in refusal(lambda t, a: t * a.T, (12, 12), (12, 1), what="lhs_fn")
    assert "column" in refusal(lambda t, a: t + t.T + a, (12, 12), (1,), what="lhs_fn")
    assert "reduce_sum" in refusal(lambda t, a: t * a.sum(), (7, 12), (7, 1), what="lhs_fn")
    assert "transposes" in refusal(lambda t: t.T, (12, 12), what="lhs_fn")


def test_symbolic_sizes() -> None:
    rows, columns = export.symbolic_shape("rows, columns")
    shapes: Any = (rows, columns), (1, columns), (rows, 1)
    takes(lambda t, a, b: jax.nn.gelu(t) * a + b, *shapes, what="lhs_fn")
    assert "reduce_sum" in refusal(lambda t, a, b: t - t.sum(0) + a * b, *shapes, what="lhs_fn")
    assert "dim_as_value" in refusal(lambda t, a, b: t / t.shape[0] + a * b, *shapes, what="lhs_fn")


def test_one_row_is_no_excuse() -> None:
    """An array of one row has only a first row; the function is still not elementwise."""
    assert "slice" in refusal(lambda t: t - t[:1], (1, 128), what="lhs_fn")
    assert "reduce_sum" in refusal(lambda t: t - t.sum(0), (1, 128), what="lhs_fn")


def test_an_array_in_a_kernel() -> None:
    """A polynomial's coefficients decide nothing about places, but a kernel has no constants; a scalar becomes one."""
    polynomial, tile = ACCEPTED["polynomial"], TILE
    with pytest.raises(SpecError, match=r"closes over an array of shape \[3\], and a kernel has no constants"):
        elementwise(polynomial, "activation", [tile], in_kernel=True)
    x = np.linspace(-2, 2, 64 * 128, dtype=np.float32).reshape(64, 128)
    for name in ("a captured scalar", "a captured array of one element", "cond", "a captured scalar of numpy"):
        found = systolic.matmul(x, np.eye(128, dtype=np.float32), activation=ACCEPTED[name], implementation="interpret")
        np.testing.assert_allclose(np.asarray(found), np.asarray(ACCEPTED[name](x)), rtol=1e-6)


def test_a_captured_scalar_has_its_gradient() -> None:
    """The function that stands in for it is the same function for every call, with the same derivative."""
    x = jnp.linspace(-1, 1, 64 * 128).reshape(64, 128)

    def slope(fn: Fn) -> jax.Array:
        return jax.grad(lambda v: systolic.matmul(v, jnp.eye(128), activation=fn, implementation="interpret").sum())(x)

    captured = slope(lambda t: jnp.tanh(t * SCALAR))
    np.testing.assert_allclose(np.asarray(captured), np.asarray(slope(lambda t: jnp.tanh(t * 3.0))), rtol=1e-6)
    assert takes(ACCEPTED["a captured scalar"]) is takes(ACCEPTED["a captured scalar"])


def test_a_traced_value_is_refused() -> None:
    """It would be no operand of the kernel, and have no gradient."""

    def product(s: jax.Array) -> jax.Array:
        return systolic.matmul(jnp.ones((3, 4)), jnp.ones((4, 5)), lhs_fn=lambda t: t * s)

    with pytest.raises(SpecError, match=r"closes over a traced value of shape \[\].*pass arrays in lhs_args"):
        jax.jit(product)(2.0)


@pytest.mark.parametrize("side", ["lhs", "rhs"])
@pytest.mark.parametrize("implementation", [None, "xla", "interpret"])
def test_matmul_refuses_them_whatever_computes(side: str, implementation: Any) -> None:
    lhs, rhs = jnp.ones((8, 128)), jnp.ones((128, 8))
    for name in ("a corner", "a row", "roll", "a dropout"):
        fn = REFUSED[name][0]
        with pytest.raises(SpecError, match="is not elementwise"):
            systolic.matmul(lhs, rhs, implementation=implementation, **cast(Any, {f"{side}_fn": fn}))
        with pytest.raises(SpecError, match="is not elementwise"):
            systolic.matmul(lhs, rhs, implementation=implementation, activation=fn)


# Of a value, or of two of one shape, made from them element by element, or from constants; some are refused.
UNARY: list[Fn] = [
    jnp.sin, jnp.tanh, jax.nn.gelu, jax.nn.relu, jnp.abs, jnp.negative, lambda t: t.T.T, lambda t: t[:, None][:, 0],
    lambda t: jnp.round(t * 8) / 8, jax.jit(lambda t: t * t), lambda t: t.T, lambda t: t[:, ::-1],
    lambda t: t * jnp.arange(float(t.shape[1])), lambda t: t + t[:1], lambda t: t / t.shape[0],
    lambda t: lax.fori_loop(0, 2, lambda _, a: jnp.cos(a), t), lambda t: jnp.stack([t, t * t]).sum(0),
    lambda t: t - t.max(1, keepdims=True), lambda t: t + jnp.arange(3.0).sum(), lambda t: jnp.cumsum(t, 1),
    lambda t: lax.cond(True, jnp.sin, jnp.cos, t), lambda t: jnp.repeat(t[:, :1], t.shape[1], 1),
]  # fmt: skip
BINARY: list[Fn] = [
    jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, jnp.arctan2, lambda a, b: jnp.where(a > b, a, -b),
    lambda a, b: jnp.stack([a, b]).min(0), lambda a, b: a + b.T, lambda a, b: a + jnp.roll(b, 1, 0),
    lambda a, b: lax.select(a > 0, b, a), lambda a, b: (a @ b.T).mean() + a,
]  # fmt: skip


def drawn(random: np.random.Generator) -> Fn:
    """A function of a square block, a row, a column and an element, composed at random."""
    steps = [
        (bool(random.integers(2)), int(random.integers(len(UNARY))), int(random.integers(len(BINARY))),
         int(random.integers(8)), int(random.integers(8)))
        for _ in range(random.integers(1, 5))
    ]  # fmt: skip

    def fn(*args: jax.Array) -> jax.Array:
        values = [args[0], *(jnp.broadcast_to(arg, args[0].shape) for arg in args[1:])]
        for is_unary, unary, binary, one, other in steps:
            first, second = values[one % len(values)], values[other % len(values)]
            values.append(UNARY[unary](first) if is_unary else BINARY[binary](first, second))
        return values[-1]

    return fn


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [40, 150])
def test_what_is_taken_is_the_same_by_blocks(count: int) -> None:
    """Random functions, most of them of forbidden steps too: none may be taken that blocks compute otherwise."""
    random = np.random.default_rng(0)
    shapes = ((256, 256), (1, 256), (256, 1), (1, 1))
    arrays = [random.uniform(0.1, 1.0, shape).astype(np.float32) for shape in shapes]
    taken = wrong = 0
    for _ in range(count):
        fn = drawn(random)
        with jax.disable_jit():  # nothing is worth compiling for one call
            found, wanted = by_blocks(fn, arrays, 128, 128), np.asarray(fn(*arrays))
        same = np.allclose(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
        try:
            takes(fn, *shapes, what="lhs_fn")
        except SpecError:
            wrong += not same
        else:
            taken += 1
            assert same
    assert taken > count / 5
    assert wrong > count / 5
