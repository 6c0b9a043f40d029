"""Functions of rows: softmax, variance, norms, counts, prefix sums; with faults in tails, ranges and conditions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from checked.case import Case, array, faulty, sound
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ROWS = 8


def _by_rows(body, x, *, out_columns=None, dtype=None, scratch=(), grid=None):
    """Return a call of a kernel that holds all columns of eight rows at a time."""
    shape = jax.ShapeDtypeStruct((x.shape[0], out_columns or x.shape[1]), dtype or x.dtype)
    return pl.pallas_call(
        body,
        out_shape=shape,
        grid=grid or (pl.cdiv(x.shape[0], ROWS),),
        in_specs=[pl.BlockSpec((ROWS, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((ROWS, shape.shape[1]), lambda i: (i, 0)),
        scratch_shapes=scratch,
    )(x)


def softmax(x, *, fault=""):
    """Softmax of rows."""

    def body(x_vmem, out_vmem):
        value = x_vmem[...].astype(jnp.float32)
        if fault != "without its maximum":
            value = value - (jnp.max(value) if fault == "maximum of all rows" else value.max(-1, keepdims=True))
        power = jnp.exp(value)
        total = power.sum(keepdims=True) if fault == "sum of all rows" else power.sum(-1, keepdims=True)
        out_vmem[...] = (power / total).astype(out_vmem.dtype)

    return _by_rows(body, x)


def softmax_plain(x):
    return jax.nn.softmax(x, axis=-1)


def variance(x, *, fault=""):
    """The variance of each row, in 128 columns."""

    def body(x_vmem, out_vmem):
        value = x_vmem[...]
        mean = value.mean(-1, keepdims=True)
        if fault == "by cancellation":
            variances = (value * value).mean(-1, keepdims=True) - mean * mean
        else:
            variances = ((value - mean) ** 2).mean(-1, keepdims=True)
        if fault == "divided by n - 1":
            variances = variances * (value.shape[-1] / (value.shape[-1] - 1))
        out_vmem[...] = jnp.broadcast_to(variances, out_vmem.shape)

    return _by_rows(body, x, out_columns=128)


def variance_plain(x):
    return jnp.broadcast_to(((x - x.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True), (x.shape[0], 128))


def norm(x, *, fault=""):
    """Root mean square norm of rows."""

    def body(x_vmem, out_vmem):
        value = x_vmem[...].astype(jnp.float32)
        square = (value * value).mean(-1, keepdims=True)
        epsilon = {"without epsilon": 0.0, "epsilon outside": 0.0}.get(fault, 1e-6)
        scale = lax.rsqrt(square + epsilon)
        out_vmem[...] = (value * scale).astype(out_vmem.dtype)

    return _by_rows(body, x)


def norm_plain(x):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def columns_summed(x, *, fault="", tile=128):
    """The sum of each row, in 128 columns of the output; the kernel reads blocks of 128 columns."""
    columns = x.shape[1]

    def body(x_vmem, out_vmem):
        at = pl.program_id(1)

        @pl.when(at == 0)
        def _():
            out_vmem[...] = jnp.zeros_like(out_vmem)

        value = x_vmem[...]
        inside = lax.broadcasted_iota(jnp.int32, value.shape, 1) + at * tile < columns
        if fault == "positives counted behind the end":
            value = jnp.where(value > 0, 1.0, 0.0)
        elif fault == "negatives counted behind the end":
            value = jnp.where(value < 0, 1.0, 0.0)
        elif fault == "NaN counted for zero":
            value = jnp.nan_to_num(value, posinf=0.0)
        elif fault == "end masked by multiplication":
            value = value * inside
        elif fault != "end not masked":
            value = jnp.where(inside, value, 0)
        out_vmem[...] += jnp.broadcast_to(value.sum(-1, keepdims=True), out_vmem.shape).astype(out_vmem.dtype)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], 128), jnp.bfloat16 if fault == "sum in bfloat16" else jnp.float32),
        grid=(x.shape[0] // ROWS, pl.cdiv(columns, tile)),
        in_specs=[pl.BlockSpec((ROWS, tile), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((ROWS, 128), lambda i, j: (i, 0)),
    )(x)


def _wide(values):
    return jnp.broadcast_to(values[:, None], (values.shape[0], 128))


def columns_summed_plain(x):
    return _wide(x.sum(-1))


def positives_plain(x):
    """The number of elements above 0."""
    return _wide((x > 0).sum(-1).astype(x.dtype))


def negatives_plain(x):
    """The number of elements below 0."""
    return _wide((x < 0).sum(-1).astype(x.dtype))


def prefix(x, *, fault=""):
    """Sums of all rows up to each row, for each band of 128 columns separately."""

    def body(x_vmem, out_vmem, carry_vmem):
        i = pl.program_id(1)
        if fault == "carry of the band before":
            i = i + pl.program_id(0)
        if fault != "carry never cleared":

            @pl.when(i == 0)
            def _():
                carry_vmem[...] = jnp.zeros_like(carry_vmem)

        sums = x_vmem[...] + (carry_vmem[...] if fault != "without carry" else 0)
        out_vmem[...] = sums
        carry_vmem[...] = sums

    return pl.pallas_call(
        body,
        out_shape=x,
        grid=(x.shape[1] // 128, x.shape[0] // ROWS),
        in_specs=[pl.BlockSpec((ROWS, 128), lambda j, i: (i, j))],
        out_specs=pl.BlockSpec((ROWS, 128), lambda j, i: (i, j)),
        scratch_shapes=[pltpu.VMEM((ROWS, 128), x.dtype)],
    )(x)


def prefix_plain(x):
    """Prefix sums in which row r of each eight is added to row r of the eights before."""
    return jnp.cumsum(x.reshape(-1, ROWS, x.shape[1]), axis=0).reshape(x.shape)


def relu(x, *, fault=""):
    """x where it is positive, else 0."""

    def body(x_vmem, out_vmem):
        value = x_vmem[...]
        if fault == "stored under a condition on data":

            @pl.when(jnp.max(value) > 0)
            def _():
                out_vmem[...] = jnp.maximum(value, 0)
        elif fault == "stored by rows only":
            out_vmem[:4] = jnp.maximum(value[:4], 0)
        elif fault == "negative infinity times zero":
            out_vmem[...] = value * (1 / jnp.where(value > 0, 1.0, jnp.inf) > 0)
        else:
            out_vmem[...] = jnp.maximum(value, 0)

    return _by_rows(body, x)


def relu_plain(x):
    return jnp.maximum(x, 0)


def first_maximum(x, *, fault=""):
    """The column of the first maximum of each row, in 128 columns."""

    def body(x_vmem, out_vmem):
        value = x_vmem[...]
        place = lax.broadcasted_iota(jnp.int32, value.shape, 1)
        best = value == value.max(-1, keepdims=True)
        if fault == "the last of several":
            column = jnp.where(best, place, -1).max(-1, keepdims=True)
        elif fault == "places of several added":
            column = jnp.where(best, place, 0).sum(-1, keepdims=True)
        else:
            column = jnp.where(best, place, value.shape[1]).min(-1, keepdims=True)
        out_vmem[...] = jnp.broadcast_to(column, out_vmem.shape)

    return _by_rows(body, x, out_columns=128, dtype=jnp.int32)


def first_maximum_plain(x):
    return _wide(jnp.argmax(x, -1).astype(jnp.int32))


def largest(x, *, fault=""):
    """The maximum of each row; the kernel reads blocks of 128 columns."""

    def body(x_vmem, out_vmem):
        @pl.when(pl.program_id(1) == 0)
        def _():
            least = 0.0 if fault == "begins at zero" else -jnp.inf
            out_vmem[...] = jnp.full(out_vmem.shape, least, out_vmem.dtype)

        out_vmem[...] = jnp.maximum(out_vmem[...], x_vmem[...].max(-1, keepdims=True))

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], 128), x.dtype),
        grid=(x.shape[0] // ROWS, x.shape[1] // 128),
        in_specs=[pl.BlockSpec((ROWS, 128), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((ROWS, 128), lambda i, j: (i, 0)),
    )(x)


def largest_plain(x):
    return _wide(x.max(-1))


def integers_summed(x, *, fault=""):
    """The sum of each row of integers, in 128 columns."""

    def body(x_vmem, out_vmem):
        narrow = {"in 16 bits": jnp.int16, "in eight bits": jnp.int8}.get(fault, jnp.int32)
        total = jnp.sum(x_vmem[...].astype(narrow).astype(jnp.int32), axis=-1, keepdims=True)
        if fault:
            total = total.astype(narrow)
        out_vmem[...] = jnp.broadcast_to(total, out_vmem.shape).astype(jnp.int32)

    rows = 32
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], 128), jnp.int32),
        grid=(x.shape[0] // rows,),
        in_specs=[pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((rows, 128), lambda i: (i, 0)),
    )(x)


def integers_summed_plain(x):
    return _wide(x.astype(jnp.int32).sum(-1))


def logarithm(x):
    """The logarithm of 1 + |x|, or of x itself on request: NaN below 0 follows from arithmetic."""

    def body(x_vmem, out_vmem):
        out_vmem[...] = jnp.log(x_vmem[...])

    return _by_rows(body, x)


def gelu(x):
    """GELU by tanh."""

    def body(x_vmem, out_vmem):
        out_vmem[...] = jax.nn.gelu(x_vmem[...].astype(jnp.float32)).astype(out_vmem.dtype)

    return _by_rows(body, x)


def doubled(x):
    """Twice x; in eight bits it wraps, as in NumPy."""

    def body(x_vmem, out_vmem):
        out_vmem[...] = (x_vmem[...].astype(jnp.int32) * 2).astype(out_vmem.dtype)

    return pl.pallas_call(
        body,
        out_shape=x,
        grid=(x.shape[0] // 32,),
        in_specs=[pl.BlockSpec((32, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((32, x.shape[1]), lambda i: (i, 0)),
    )(x)


X, BF16, UNEVEN = array(32, 256), array(32, 256, dtype="bfloat16"), array(32, 300)
I8, I16 = array(64, 512, dtype="int8"), array(64, 512, dtype="int16")

SOUND: tuple[Case, ...] = (
    *(sound(fn, x, reference=plain, name=name) for fn, plain in
      ((softmax, softmax_plain), (norm, norm_plain)) for name, x in {"f32": X, "bf16": BF16}.items()),
    *(sound(fn, X, reference=plain) for fn, plain in
      ((variance, variance_plain), (prefix, prefix_plain), (relu, relu_plain), (first_maximum, first_maximum_plain),
       (largest, largest_plain), (logarithm, jnp.log))),
    *(sound(fn, X, reference=None, name="no reference") for fn in
      (softmax, variance, prefix, norm, logarithm, largest)),
    sound(columns_summed, X, reference=columns_summed_plain),
    sound(columns_summed, UNEVEN, reference=columns_summed_plain, name="uneven"),
    sound(columns_summed, UNEVEN, reference=None, name="uneven, no reference"),
    sound(integers_summed, I8, reference=integers_summed_plain, name="int8"),
    sound(integers_summed, I16, reference=integers_summed_plain, name="int16"),
    sound(gelu, X, reference=jax.nn.gelu), sound(gelu, BF16, reference=jax.nn.gelu, name="bf16"),
    sound(gelu, X, reference=None, name="no reference"),
    sound(doubled, I8, reference=lambda x: x + x, name="int8"),
    sound(doubled, array(64, 512, dtype="int16"), reference=None, name="int16, no reference"),
)  # fmt: skip

FAULTS: tuple[Case, ...] = (
    faulty(softmax, "without its maximum", X, reference=softmax_plain, rules="nan wrong-result"),
    faulty(softmax, "without its maximum", X, reference=None, rules="nan"),
    faulty(softmax, "maximum of all rows", X, reference=softmax_plain, rules="nan wrong-result"),
    faulty(softmax, "sum of all rows", X, reference=softmax_plain, rules="wrong-result"),
    faulty(variance, "by cancellation", X, reference=variance_plain, rules="wrong-result precision"),
    faulty(variance, "divided by n - 1", X, reference=variance_plain, rules="wrong-result"),
    faulty(norm, "without epsilon", X, reference=norm_plain, rules="nan wrong-result"),
    faulty(norm, "without epsilon", X, reference=None, rules="nan"),
    faulty(columns_summed, "end not masked", UNEVEN, reference=columns_summed_plain, rules="edge-block nan"),
    faulty(columns_summed, "end not masked", UNEVEN, reference=None, rules="edge-block nan"),
    faulty(columns_summed, "end masked by multiplication", UNEVEN, reference=None, rules="edge-block nan"),
    faulty(columns_summed, "positives counted behind the end", UNEVEN, reference=positives_plain,
           rules="uninitialised edge-block"),
    faulty(columns_summed, "negatives counted behind the end", UNEVEN, reference=negatives_plain,
           rules="uninitialised edge-block"),
    faulty(columns_summed, "NaN counted for zero", UNEVEN, reference=None, rules="uninitialised edge-block"),
    faulty(prefix, "carry never cleared", X, reference=prefix_plain, rules="uninitialised nan"),
    faulty(prefix, "carry of the band before", X, reference=prefix_plain, rules="wrong-result uninitialised"),
    faulty(prefix, "without carry", X, reference=prefix_plain, rules="wrong-result"),
    faulty(relu, "stored under a condition on data", X, reference=relu_plain, rules="nan uninitialised"),
    faulty(relu, "stored under a condition on data", X, reference=None, rules="nan uninitialised"),
    faulty(relu, "stored by rows only", X, reference=None, rules="nan uninitialised unwritten-output"),
    faulty(first_maximum, "the last of several", X, reference=first_maximum_plain, rules="wrong-result"),
    faulty(first_maximum, "places of several added", X, reference=first_maximum_plain, rules="wrong-result"),
    faulty(largest, "begins at zero", X, reference=largest_plain, rules="wrong-result"),
    faulty(integers_summed, "in 16 bits", I16, reference=integers_summed_plain, rules="wrong-result"),
    faulty(integers_summed, "in eight bits", I8, reference=integers_summed_plain, rules="wrong-result"),
)  # fmt: skip
