"""Functions that are elementwise and functions that are not, by what is special about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive

Fn = Callable[..., Any]
F32 = jnp.float32
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
