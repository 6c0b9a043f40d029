"""Functions that `matmul` accepts as elementwise: on a block they compute the same as on the whole."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive

import systolic
from systolic.ops.functions.elementwise import elementwise
from systolic.spec import SpecError

Fn = Callable[..., Any]
F32 = jnp.float32
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


ACTIVATIONS = [
    "relu", "relu6", "sigmoid", "softplus", "sparse_plus", "sparse_sigmoid", "soft_sign", "silu", "swish",
    "log_sigmoid", "leaky_relu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "elu", "celu", "selu", "gelu",
    "squareplus", "mish", "identity", "tanh",
]  # fmt: skip
OF_ONE = [
    "abs", "absolute", "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "asin", "asinh",
    "atan", "atanh", "cbrt", "ceil", "cos", "cosh", "deg2rad", "degrees", "exp", "exp2", "expm1", "fabs", "floor", "i0",
    "log", "log10", "log1p", "log2", "nan_to_num", "negative", "positive", "rad2deg", "radians", "reciprocal", "rint",
    "round", "sign", "sin", "sinc", "sinh", "spacing", "sqrt", "square", "tan", "tanh", "trunc",
]  # fmt: skip
OF_TWO = [
    "add", "arctan2", "copysign", "divide", "fmax", "fmin", "fmod", "floor_divide", "heaviside", "hypot", "logaddexp",
    "logaddexp2", "maximum", "minimum", "mod", "multiply", "nextafter", "power", "remainder", "subtract",
]  # fmt: skip
OF_LAX = [
    "cbrt", "digamma", "erf", "erf_inv", "erfc", "is_finite", "lgamma", "logistic", "rsqrt", "bessel_i0e", "bessel_i1e"
]  # fmt: skip


def with_a_number(name: str) -> Fn:
    return lambda t: getattr(jnp, name)(t, 0.75)


def as_float32(name: str) -> Fn:
    return lambda t: getattr(lax, name)(t).astype(F32)


SCALAR, OF_NUMPY, ELEMENT = jnp.float32(3.0), np.float32(2.5), jnp.full((1, 1), 2.0)
MANY, ROW = jnp.arange(1024.0), np.arange(128.0, dtype=np.float32)


@jax.custom_vjp
def with_its_own_slope(t: jax.Array) -> jax.Array:
    return jnp.sin(t)


with_its_own_slope.defvjp(lambda t: (jnp.sin(t), t), lambda t, slope: (slope * jnp.cos(t),))

ACCEPTED: dict[str, Fn] = {
    **{f"jax.nn.{name}": getattr(jax.nn, name) for name in ACTIVATIONS},
    **{f"jnp.{name}": getattr(jnp, name) for name in OF_ONE},
    **{f"jnp.{name}": with_a_number(name) for name in OF_TWO},
    **{f"lax.{name}": as_float32(name) for name in OF_LAX},
    "gelu, exact": lambda t: jax.nn.gelu(t, approximate=False),
    "comparisons": lambda t: ((t > 0) & (t <= 2) | ~(t != 1)).astype(F32),
    "where": lambda t: jnp.where(t > 0, t, 0.1 * t),
    "select": lambda t: jnp.select([t < 0, t > 1], [-t, t * t], 0.5),
    "piecewise": lambda t: jnp.piecewise(t, [t < 0, t > 1], [lambda v: -v, jnp.sin, 2.0]),
    "clip": lambda t: jnp.clip(t, -1, 1),
    "polynomial": lambda t: jnp.polyval(jnp.array([1.0, 0.5, 2.0]), t),
    "Horner": lambda t: (((0.1 * t + 1) * t) - 2) * t,
    "largest of candidates": lambda t: jnp.stack([t, -t, t * t]).max(0),
    "sum of candidates": lambda t: jax.nn.logsumexp(jnp.stack([t, jnp.zeros_like(t)]), axis=0),
    "softmax over candidates": lambda t: jax.nn.softmax(jnp.stack([t, 2 * t], -1), axis=-1)[..., 0],
    "sum of constants": lambda t: t * jnp.arange(4.0).sum(),
    "dot of constants": lambda t: t * jnp.dot(jnp.arange(4.0), jnp.ones(4)),
    "element of a table": lambda t: t * jnp.array([3.0, 4.0, 5.0])[1],
    "bits": lambda t: lax.bitcast_convert_type(lax.bitcast_convert_type(t, jnp.int32) & -65536, F32),
    "rounded": lambda t: t.astype(jnp.bfloat16).astype(F32) + lax.reduce_precision(t, 8, 3),
    "whole numbers": lambda t: (t.astype(jnp.int32) << 2).astype(F32),
    "complex": lambda t: jnp.real(jnp.exp(1j * t)),
    "jit": jax.jit(lambda t: t * 2),
    "checkpoint": jax.checkpoint(lambda t: jnp.sin(jnp.sin(t))),
    "vmap": lambda t: jax.vmap(jnp.tanh)(t),
    "vectorize": jnp.vectorize(lambda v: jnp.sin(v) + 1),
    "derivative": lambda t: jax.vmap(jax.vmap(jax.grad(jnp.tanh)))(t),
    "custom_vjp": with_its_own_slope,
    "cond": lambda t: lax.cond(SCALAR > 2, jnp.sin, jnp.cos, t),
    "switch": lambda t: lax.switch(1, [jnp.sin, jnp.cos, jnp.tan], t),
    "fori_loop": lambda t: lax.fori_loop(0, 3, lambda i, a: a * t + i, t),
    "while_loop": lambda t: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 0.5), (0, t))[1],
    "scan": lambda t: lax.scan(lambda a, x: (a * x, None), t, jnp.arange(1.0, 4.0))[0],
    "scan that keeps rounds": lambda t: lax.scan(lambda a, x: (a * x, a), t, jnp.arange(1.0, 4.0))[1].sum(0),
    "two transposes": lambda t: (t.T + 1).T,
    "dimensions come and go": lambda t: jnp.squeeze(t[:, None, :] * 2.0, 1),
    "a captured number": lambda t: t * 2.5,
    "a captured scalar": lambda t: t * SCALAR,
    "a captured scalar of numpy": lambda t: t * OF_NUMPY,
    "a captured array of one element": lambda t: t * ELEMENT,
    "an unused array": lambda t: (MANY.sum() * 0, t)[1],
    "name": lambda t: checkpoint_name(t, "kept"),
    "nothing": lambda t: lax.stop_gradient(t),
}  # fmt: skip


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


RANDOM = jax.random.key(0)
BLOCK = jnp.arange(1024.0).reshape(8, 128)
mystery = Primitive("mystery")
mystery.def_abstract_eval(lambda t: t)


def corner(t: jax.Array) -> jax.Array:
    return t + t[0, 0]


# What is refused, and a word of the reason.
REFUSED: dict[str, tuple[Fn, str]] = {
    "a corner": (corner, "slice"),
    "a row": (lambda t: t - t[:1], "slice"),
    "a row at an index": (lambda t: t - lax.dynamic_slice(t, (0, 0), (1, 128)), "dynamic_slice"),
    "roll": (lambda t: jnp.roll(t, 1), "reshape"),
    "roll along rows": (lambda t: jnp.roll(t, 1, axis=1), "slice"),
    "flip": (lambda t: t[::-1], "rev"),
    "pad": (lambda t: jnp.pad(t, ((1, 0), (0, 0)))[:-1], "pad"),
    "gather": (lambda t: jnp.take(t, jnp.arange(7, -1, -1), axis=0), "gather"),
    "take_along_axis": (lambda t: jnp.take_along_axis(t, t.astype(jnp.int32) % 8, axis=0), "known"),
    "scatter": (lambda t: t.at[0, 0].set(0.0), "known"),
    "concatenate": (lambda t: jnp.concatenate([t[4:], t[:4]]), "slice"),
    "halves": (lambda t: jnp.concatenate(jnp.split(t, 2)[::-1]), "split"),
    "reshape": (lambda t: t.reshape(16, 64).reshape(8, 128)[:, :] * 1, "reshape"),
    "ravel": (lambda t: jnp.sin(t.ravel()).reshape(t.shape), "reshape"),
    "transpose": (lambda t: t + jnp.transpose(t.reshape(128, 8)), "reshape"),
    "sum": (lambda t: t / t.sum(), "reduce_sum"),
    "mean of rows": (lambda t: t - t.mean(1, keepdims=True), "reduce_sum"),
    "largest": (lambda t: t - t.max(), "reduce_max"),
    "softmax": (jax.nn.softmax, "reduce_max"),
    "log_softmax": (jax.nn.log_softmax, "reduce_max"),
    "standardize": (jax.nn.standardize, "reduce"),
    "norm": (lambda t: t / jnp.linalg.norm(t), "reduce_sum"),
    "argmax": (lambda t: t * jnp.argmax(t, 0), "argmax"),
    "cumsum": (lambda t: jnp.cumsum(t, 0), "cumsum"),
    "diff": (lambda t: jnp.diff(t, axis=0, prepend=0), "concatenate"),
    "sort": (lambda t: jnp.sort(t, 1), "sort"),
    "top_k": (lambda t: t - lax.top_k(t, 1)[0], "top_k"),
    "median": (lambda t: t - jnp.median(t, 0), "reduce_or"),
    "dot": (lambda t: t @ jnp.ones((128, 128)), "dot_general"),
    "fft": (lambda t: jnp.fft.fft(t).real, "fft"),
    "convolution": (lambda t: jax.vmap(lambda r: jnp.convolve(r, jnp.ones(3), mode="same"))(t), "conv"),
    "scan along rows": (lambda t: lax.scan(lambda a, r: (a + r, a + r), jnp.zeros(128), t)[1], "scan"),
    "map over rows": (lambda t: lax.map(jnp.sin, t), "scan"),
    "a loop over rows": (lambda t: lax.fori_loop(0, 8, lambda i, a: a + t[i], t), "known"),
    "a place": (lambda t: t * lax.broadcasted_iota(F32, t.shape, 0), "iota"),
    "a place alone": (lambda t: lax.broadcasted_iota(F32, t.shape, 1), "iota"),
    "a mask of the diagonal": (lambda t: jnp.where(jnp.eye(8, 128) > 0, t, 0), "iota"),
    "tril": (lambda t: jnp.tril(t), "iota"),
    "a place in a loop": (lambda t: lax.fori_loop(0, 2, lambda i, a: a + jnp.arange(128.0), t), "iota"),
    "a place in a branch": (lambda t: lax.cond(True, lambda u: u * jnp.arange(128.0), lambda u: u, t), "iota"),
    "a place in a custom rule": (lambda t: jax.nn.relu(t + jnp.arange(128.0)), "iota"),
    "a place in jit": (lambda t: jax.jit(lambda u: u * jnp.arange(128.0))(t), "iota"),
    "a dropout": (lambda t: t * jax.random.bernoulli(RANDOM, 0.5, t.shape), "PRNG key"),
    "a dropout with its own key": (lambda t: t * jax.random.bernoulli(jax.random.key(1), 0.5, t.shape), "random"),
    "noise from an old key": (lambda t: t + jax.random.normal(jax.random.PRNGKey(1), t.shape), "random"),
    "rng_uniform": (lambda t: t + lax.rng_uniform(0.0, 1.0, t.shape), "rng_uniform"),
    "a captured block": (lambda t: t + BLOCK, "an array of shape [8, 128] that it closes over"),
    "a captured row": (lambda t: t + BLOCK[0], "closes over"),
    "a captured column": (lambda t: t + BLOCK[:, :1], "closes over"),
    "a captured array of numpy": (lambda t: t + ROW, "closes over"),
    "a captured block alone": (lambda _: BLOCK + 0, "closes over"),
    "the size": (lambda t: t / t.shape[0], "size"),
    "the size of a row": (lambda t: t / jnp.sqrt(t.shape[-1]), "size"),
    "the size as an array": (lambda t: t * jnp.array([1.0 / t.size]), "size"),
    "a sum of ones": (lambda t: t / jnp.sum(jnp.ones_like(t)), "size"),
    "as many rounds as rows": (lambda t: lax.fori_loop(0, t.shape[0], lambda i, a: a + 1.0, t), "size"),
    "an element of a table by size": (lambda t: t * jnp.arange(99.0)[t.shape[0]], "size"),
    "a callback": (lambda t: jax.pure_callback(np.sin, t, t), "pure_callback"),
    "a print": (lambda t: (jax.debug.print("seen"), t)[1], "effect"),
    "an unknown primitive": (lambda t: mystery.bind(t), "mystery"),
}  # fmt: skip


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


@pytest.mark.parametrize("count", [40, pytest.param(150, marks=pytest.mark.exhaustive)])
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
