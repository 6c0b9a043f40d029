"""Known functions with faults that only their values show, each checked without a reference.

Sums in low precision, masks, and ends that are off by one: nothing races, nothing is uninitialised, and every run gives
the same wrong numbers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from checked.case import Case, array, faulty, sound
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

T = 128


def narrow_product(lhs, rhs, *, fault=""):
    """lhs @ rhs in tiles, the sum in scratch memory."""
    acc = jnp.bfloat16 if fault == "sum in bfloat16" else jnp.float32
    (m, k), n = lhs.shape, rhs.shape[1]

    def body(lhs_vmem, rhs_vmem, out_vmem, acc_vmem):
        kk = pl.program_id(2)

        @pl.when(kk == 0)
        def _():
            acc_vmem[...] = jnp.zeros_like(acc_vmem)

        total = jnp.bfloat16 if fault == "parts in bfloat16" else jnp.float32
        part = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=total)
        acc_vmem[...] = (acc_vmem[...] + part).astype(acc)

        @pl.when(kk == pl.num_programs(2) - 1)
        def _():
            out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        grid=(m // T, n // T, k // T),
        in_specs=[pl.BlockSpec((T, T), lambda i, j, kk: (i, kk)), pl.BlockSpec((T, T), lambda i, j, kk: (kk, j))],
        out_specs=pl.BlockSpec((T, T), lambda i, j, kk: (i, j)),
        scratch_shapes=[pltpu.VMEM((T, T), acc)],
    )(lhs, rhs)


def looped_product(lhs, rhs, *, fault=""):
    """lhs @ rhs, k in a loop inside of the kernel."""
    (m, k), n = lhs.shape, rhs.shape[1]
    total = jnp.bfloat16 if fault == "sum in bfloat16" else jnp.float32
    rounds = k // T - (fault == "a block too few")

    def body(lhs_vmem, rhs_vmem, out_vmem):
        def add(kk, acc):
            part = pl.ds(pl.multiple_of(kk * T, T), T)
            return acc + jnp.dot(lhs_vmem[:, part], rhs_vmem[part, :], preferred_element_type=jnp.float32).astype(total)

        acc = lax.fori_loop(0, rounds, add, jnp.zeros(out_vmem.shape, total))
        out_vmem[...] = acc.astype(out_vmem.dtype)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        grid=(m // T, n // T),
        in_specs=[pl.BlockSpec((T, k), lambda i, j: (i, 0)), pl.BlockSpec((k, T), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((T, T), lambda i, j: (i, j)),
    )(lhs, rhs)


def masked_product(lhs, rhs, *, fault=""):
    """lhs @ rhs of uneven sizes, k masked at its end."""
    (m, k), n = lhs.shape, rhs.shape[1]

    def body(lhs_vmem, rhs_vmem, out_vmem):
        left = k - pl.program_id(2) * T - (fault == "the last of k masked")

        @pl.when(pl.program_id(2) == 0)
        def _():
            out_vmem[...] = jnp.zeros_like(out_vmem)

        seen = lax.broadcasted_iota(jnp.int32, (T, T), 1) < left
        left_block = jnp.where(seen, lhs_vmem[...], 0)
        right_block = jnp.where(seen.T, rhs_vmem[...], 0)
        out_vmem[...] += jnp.dot(left_block, right_block, preferred_element_type=jnp.float32)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        grid=(pl.cdiv(m, T), pl.cdiv(n, T), pl.cdiv(k, T)),
        in_specs=[pl.BlockSpec((T, T), lambda i, j, kk: (i, kk)), pl.BlockSpec((T, T), lambda i, j, kk: (kk, j))],
        out_specs=pl.BlockSpec((T, T), lambda i, j, kk: (i, j)),
    )(lhs, rhs)


def attention(q, k, v, *, fault=""):
    """Causal attention [heads, length, depth], with a running maximum."""
    heads, length, depth = q.shape

    def body(q_vmem, k_vmem, v_vmem, out_vmem, max_vmem, sum_vmem, acc_vmem):
        i, j = pl.program_id(1), pl.program_id(2)

        @pl.when(j == 0)
        def _():
            max_vmem[...] = jnp.full_like(max_vmem, -1e30)
            sum_vmem[...] = jnp.zeros_like(sum_vmem)
            acc_vmem[...] = jnp.zeros_like(acc_vmem)

        scores = jnp.dot(q_vmem[0], k_vmem[0].T, preferred_element_type=jnp.float32) * depth**-0.5
        row = lax.broadcasted_iota(jnp.int32, (T, T), 0) + i * T
        start = 0 if fault == "mask without the block's start" else j * T
        column = lax.broadcasted_iota(jnp.int32, (T, T), 1) + start
        far = {"mask one too far": 1, "mask one short": -1}.get(fault, 0)
        seen = (column <= row + far) | ((row == 0) & (column == 0))
        if fault == "mask of the diagonal block forgotten":
            seen = column // T <= row // T
        if fault == "last key left out":
            seen &= column < length - 1
        scores = jnp.where(seen, scores, -1e30)
        largest = jnp.maximum(max_vmem[...], scores.max(-1, keepdims=True))
        power = jnp.where(seen, jnp.exp(scores - largest), 0)
        scale = jnp.exp(max_vmem[...] - largest)
        sum_vmem[...] = sum_vmem[...] * scale + power.sum(-1, keepdims=True)
        acc_vmem[...] = acc_vmem[...] * scale + jnp.dot(power, v_vmem[0], preferred_element_type=jnp.float32)
        max_vmem[...] = largest

        @pl.when(j == pl.num_programs(2) - 1)
        def _():
            out_vmem[0] = acc_vmem[...] / sum_vmem[...]

    block = (1, T, depth)
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(q.shape, jnp.float32),
        grid=(heads, length // T, length // T),
        in_specs=[
            pl.BlockSpec(block, lambda h, i, j: (h, i, 0)),
            pl.BlockSpec(block, lambda h, i, j: (h, j, 0)),
            pl.BlockSpec(block, lambda h, i, j: (h, j, 0)),
        ],
        out_specs=pl.BlockSpec(block, lambda h, i, j: (h, i, 0)),
        scratch_shapes=[pltpu.VMEM((T, 1), jnp.float32)] * 2 + [pltpu.VMEM((T, depth), jnp.float32)],
    )(q, k, v)


def by_rows(x, *, function="sum", fault=""):
    """A function of each row, in eight rows at a time."""
    columns = x.shape[1]
    is_sum = function in ("sum", "mean", "largest")

    def body(x_vmem, out_vmem):
        value = x_vmem[...].astype(jnp.float32)
        at = lax.broadcasted_iota(jnp.int32, value.shape, 1)
        seen = at < columns - (fault == "the last column left out")
        seen &= at >= (fault == "the first column left out")
        if function in ("sum", "mean"):
            total = jnp.where(seen, value, 0).sum(-1, keepdims=True)
            count = {"sum": 1, "mean": pl.cdiv(columns, T) * T if fault == "divided by whole blocks" else columns}
            result = total / count[function]
        elif function == "largest":
            result = jnp.where(seen, value, -jnp.inf).max(-1, keepdims=True)
        elif function == "softmax":
            power = jnp.exp(value - value.max(-1, keepdims=True))
            result = power / jnp.where(seen, power, 0).sum(-1, keepdims=True)
        else:
            result = value * lax.rsqrt(jnp.where(seen, value * value, 0).mean(-1, keepdims=True) + 1e-6)
        out_vmem[...] = jnp.broadcast_to(result, out_vmem.shape).astype(out_vmem.dtype)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], 1 if is_sum else columns), jnp.float32),
        grid=(x.shape[0] // 8,),
        in_specs=[pl.BlockSpec((8, columns), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 1 if is_sum else columns), lambda i: (i, 0)),
    )(x)


def _of(function):
    def named(x, *, fault=""):
        return by_rows(x, function=function, fault=fault)

    named.__name__ = f"{function}_of_rows"
    return named


BF16 = array(256, 512, dtype="bfloat16"), array(512, 256, dtype="bfloat16")
UNEVEN = array(200, 300), array(300, 250)
HEADS = (array(2, 256, 128),) * 3
ROWS = array(32, 300)
_LAST, _FIRST = "the last column left out", "the first column left out"

SOUND: tuple[Case, ...] = (
    *(sound(fn, *BF16, reference=None) for fn in (narrow_product, looped_product)),
    sound(masked_product, *UNEVEN, reference=None),
    sound(attention, *HEADS, reference=None),
    *(sound(_of(function), ROWS, reference=None) for function in ("sum", "mean", "largest", "softmax", "rms_norm")),
)

FAULTS: tuple[Case, ...] = tuple(
    faulty(fn, fault, *args, rules=rules, reference=None, at_least="warning")
    for fn, args, rules, faults in (
        (narrow_product, BF16, "precision", ("sum in bfloat16", "parts in bfloat16")),
        (looped_product, BF16, "precision", ("sum in bfloat16",)),
        (looped_product, BF16, "dropped-tail", ("a block too few",)),
        (masked_product, UNEVEN, "dropped-tail wrong-result", ("the last of k masked",)),
        (attention, HEADS, "wrong-result dropped-tail reference",
         ("mask one too far", "mask one short", "mask without the block's start",
          "mask of the diagonal block forgotten", "last key left out")),
        (_of("sum"), (ROWS,), "dropped-tail wrong-result", (_LAST, _FIRST)),
        (_of("mean"), (ROWS,), "dropped-tail wrong-result", (_LAST, "divided by whole blocks")),
        (_of("largest"), (ROWS,), "dropped-tail wrong-result", (_LAST, _FIRST)),
        (_of("softmax"), (ROWS,), "dropped-tail wrong-result", (_LAST,)),
        (_of("rms_norm"), (ROWS,), "dropped-tail wrong-result", (_LAST,)),
    )
    for fault in faults
)  # fmt: skip
