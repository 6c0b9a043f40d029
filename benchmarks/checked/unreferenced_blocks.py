"""Known functions whose partial sums, paddings or index maps are wrong, each checked without a reference.

As in `unreferenced.py`, every run gives the same wrong numbers. The kernels were written before anybody tried which of
their faults `systolic check` finds.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from checked.case import Case, array, faulty, sound
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

T = 128


def output_product(lhs, rhs, *, fault=""):
    """lhs @ rhs, summed in the block of the output."""
    (m, k), n = lhs.shape, rhs.shape[1]
    first = 1 if fault == "cleared one step late" else 0
    dtype = jnp.bfloat16 if fault == "sum in a bfloat16 output" else jnp.float32

    def body(lhs_vmem, rhs_vmem, out_vmem):
        @pl.when(pl.program_id(2) == first)
        def _():
            out_vmem[...] = jnp.zeros_like(out_vmem)

        part = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=jnp.float32)
        out_vmem[...] = jnp.where(pl.program_id(2) < first, 0, out_vmem[...] + part.astype(dtype))

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), dtype),
        grid=(m // T, n // T, k // T),
        in_specs=[pl.BlockSpec((T, T), lambda i, j, kk: (i, kk)), pl.BlockSpec((T, T), lambda i, j, kk: (kk, j))],
        out_specs=pl.BlockSpec((T, T), lambda i, j, kk: (i, j)),
    )(lhs, rhs)


def split_product(lhs, rhs, *, fault=""):
    """lhs @ rhs: each step of k writes its own part, and the parts are added outside of the kernel."""
    (m, k), n = lhs.shape, rhs.shape[1]
    dtype = jnp.bfloat16 if fault == "parts in bfloat16" else jnp.float32

    def body(lhs_vmem, rhs_vmem, part_vmem):
        part = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=jnp.float32)
        part_vmem[0] = part.astype(dtype)

    parts = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((k // T, m, n), dtype),
        grid=(k // T, m // T, n // T),
        in_specs=[pl.BlockSpec((T, T), lambda kk, i, j: (i, kk)), pl.BlockSpec((T, T), lambda kk, i, j: (kk, j))],
        out_specs=pl.BlockSpec((1, T, T), lambda kk, i, j: (kk, i, j)),
    )(lhs, rhs)
    return parts.astype(jnp.float32).sum(0)


def ragged_product(lhs, rhs, *, fault=""):
    """lhs @ rhs, whose last blocks of rows and columns end after the arrays."""
    (m, k), n = lhs.shape, rhs.shape[1]
    blocks = pl.cdiv(m, T)

    def row(i):
        return jnp.minimum(i, blocks - 2) if fault == "last block of rows clamped" else i

    def body(lhs_vmem, rhs_vmem, out_vmem):
        out_vmem[...] = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=jnp.float32)

    def place(i, j):
        return (j, i) if fault == "block indices of the output swapped" else (i, j)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        grid=(blocks, pl.cdiv(n, T)),
        in_specs=[pl.BlockSpec((T, k), lambda i, j: (row(i), 0)), pl.BlockSpec((k, T), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((T, T), place),
    )(lhs, rhs)


def biased_product(lhs, rhs, bias, *, fault=""):
    """relu(lhs @ rhs + bias), a bias for each column."""
    (m, k), n = lhs.shape, rhs.shape[1]
    column = (lambda i, j: (0, i)) if fault == "bias of the row's block" else (lambda i, j: (0, j))

    def body(lhs_vmem, rhs_vmem, bias_vmem, out_vmem):
        total = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=jnp.float32)
        out_vmem[...] = jnp.maximum(total + bias_vmem[...], 0)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        grid=(m // T, n // T),
        in_specs=[
            pl.BlockSpec((T, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, T), lambda i, j: (0, j)),
            pl.BlockSpec((1, T), column),
        ],
        out_specs=pl.BlockSpec((T, T), lambda i, j: (i, j)),
    )(lhs, rhs, bias.reshape(1, n))


def chunked_norm(x, *, fault=""):
    """x / sqrt(mean(x²)) of each row, in chunks of 128 columns."""
    rows, columns = x.shape
    dtype = jnp.bfloat16 if fault == "squares summed in bfloat16" else jnp.float32

    def body(x_vmem, out_vmem):
        def add(at, total):
            chunk = x_vmem[:, pl.ds(pl.multiple_of(at * T, T), T)]
            return total + (chunk * chunk).sum(-1, keepdims=True).astype(dtype)

        total = lax.fori_loop(0, columns // T, add, jnp.zeros((8, 1), dtype))
        out_vmem[...] = x_vmem[...] * lax.rsqrt(total.astype(jnp.float32) / columns + 1e-6)

    block = pl.BlockSpec((8, columns), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        grid=(rows // 8,),
        in_specs=[block],
        out_specs=block,
    )(x)


def padded_largest(x, *, fault=""):
    """The maximum of each row, whose columns are padded to whole registers outside of the kernel."""
    rows, columns = x.shape
    value = 0.0 if fault == "padded with zeros" else -jnp.inf
    padded = jnp.pad(x, ((0, 0), (0, -columns % T)), constant_values=value)

    def body(x_vmem, out_vmem):
        out_vmem[...] = x_vmem[...].max(-1, keepdims=True)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((rows, 1), jnp.float32),
        grid=(rows // 8,),
        in_specs=[pl.BlockSpec((8, padded.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 1), lambda i: (i, 0)),
    )(padded)


def padded_attention(q, k, v, *, fault=""):
    """Attention [heads, length, depth], with keys that are padded to whole blocks outside of the kernel."""
    heads, length, depth = q.shape
    padding = ((0, 0), (0, -length % T), (0, 0))
    q, k, v = (jnp.pad(array, padding) for array in (q, k, v))
    seen_keys = q.shape[1] if fault == "padded keys not masked" else length

    def body(q_vmem, k_vmem, v_vmem, out_vmem):
        scores = jnp.dot(q_vmem[0], k_vmem[0].T, preferred_element_type=jnp.float32) * depth**-0.5
        scores = jnp.where(lax.broadcasted_iota(jnp.int32, scores.shape, 1) < seen_keys, scores, -1e30)
        power = jnp.exp(scores - scores.max(-1, keepdims=True))
        weights = power / power.sum(-1, keepdims=True)
        out_vmem[0] = jnp.dot(weights, v_vmem[0], preferred_element_type=jnp.float32)

    whole = pl.BlockSpec((1, q.shape[1], depth), lambda h, i: (h, 0, 0))
    block = pl.BlockSpec((1, T, depth), lambda h, i: (h, i, 0))
    out = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(q.shape, jnp.float32),
        grid=(heads, q.shape[1] // T),
        in_specs=[block, whole, whole],
        out_specs=block,
    )(q, k, v)
    return out[:, :length]


def prefix_sums(x, *, fault=""):
    """The running sum of each row, the total of the columns before a block in scratch memory."""
    rows, columns = x.shape

    def body(x_vmem, out_vmem, carry_vmem):
        @pl.when(pl.program_id(1) == 0)
        def _():
            carry_vmem[...] = jnp.zeros_like(carry_vmem)

        upper = lax.broadcasted_iota(jnp.int32, (T, T), 0) <= lax.broadcasted_iota(jnp.int32, (T, T), 1)
        sums = jnp.dot(x_vmem[...], upper.astype(x.dtype), preferred_element_type=jnp.float32)
        out_vmem[...] = sums + carry_vmem[...]
        last = T - 2 if fault == "carry without the last column" else T - 1
        carry_vmem[...] += sums[:, last : last + 1]

    block = pl.BlockSpec((8, T), lambda i, j: (i, j))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        grid=(rows // 8, columns // T),
        in_specs=[block],
        out_specs=block,
        scratch_shapes=[pltpu.VMEM((8, 1), jnp.float32)],
    )(x)


BF16 = array(256, 512, dtype="bfloat16"), array(512, 256, dtype="bfloat16")
RAGGED = array(300, 256), array(256, 300)
BIASED = array(256, 256), array(256, 256), array(256)
CHUNKED = array(32, 512)
HEADS = (array(2, 200, 128),) * 3

SOUND: tuple[Case, ...] = (
    *(sound(fn, *BF16, reference=None) for fn in (output_product, split_product)),
    sound(ragged_product, *RAGGED, reference=None),
    sound(biased_product, *BIASED, reference=None),
    sound(chunked_norm, CHUNKED, reference=None),
    sound(padded_largest, array(32, 300), reference=None),
    sound(padded_attention, *HEADS, reference=None),
    sound(prefix_sums, CHUNKED, reference=None),
)

FAULTS: tuple[Case, ...] = tuple(
    faulty(fn, fault, *args, rules=rules, reference=None, at_least="warning")
    for fn, args, rules, faults in (
        (output_product, BF16, "precision", ("sum in a bfloat16 output",)),
        (output_product, BF16, "dropped-tail wrong-result reference", ("cleared one step late",)),
        (split_product, BF16, "precision", ("parts in bfloat16",)),
        (ragged_product, RAGGED, "dropped-tail wrong-result reference nan",
         ("last block of rows clamped", "block indices of the output swapped")),
        (biased_product, BIASED, "wrong-result reference", ("bias of the row's block",)),
        (chunked_norm, (CHUNKED,), "precision", ("squares summed in bfloat16",)),
        (padded_largest, (array(32, 300),), "wrong-result reference", ("padded with zeros",)),
        (padded_attention, HEADS, "wrong-result reference", ("padded keys not masked",)),
        (prefix_sums, (CHUNKED,), "dropped-tail wrong-result reference", ("carry without the last column",)),
    )
    for fault in faults
)  # fmt: skip
