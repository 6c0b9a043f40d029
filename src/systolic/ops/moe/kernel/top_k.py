"""The `k` largest logits of each token and their experts, as `lax.top_k` orders them.

A block of 128 tokens is transposed: tokens lie along lanes, and eight experts along the sublanes of a register. Then
the largest logit of each token takes comparisons of whole registers, and a reduction over the sublanes of the last one.
The kernel does this k times, and each time takes out the logit that it chose, of equal ones the lowest expert's. XLA
sorts all logits. The grid goes over tiles of tokens; blocks of a tile that are computed together hide each other's
latencies.

Logits are compared as integers in IEEE 754's totalOrder, as in the comparison of XLA's sort: a positive NaN is above
infinity, a negative one below minus infinity, and -0 below 0. The lowest of all, a NaN of which all bits are set,
counts as taken out: its expert may be returned more than once.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float, Int

from systolic.compat import shape_with_mesh_axes
from systolic.kernels.packed_rows import SUBLANES
from systolic.ops.moe.top_k_schedule import TopKSchedule
from systolic.schedule.legality import LANES
from systolic.schedule.sizes import padded

_LOWEST = -(2**31)  # the key of an expert that is taken out, or does not exist
_NO_EXPERT = 2**31 - 1
_CHAIN = 8  # registers compared one after another: shorter chains need more registers, longer ones wait more


def largest_logits(
    logits: Float[Array, "tokens experts"],
    *,
    top_k: int,
    schedule: TopKSchedule,
    interpret: bool | pltpu.InterpretParams = False,
) -> tuple[Float[Array, "k tokens"], Int[Array, "k tokens"]]:
    """Return the largest logits, float32, and their experts, int32, with tokens along lanes."""
    tokens, experts = logits.shape
    tile = schedule.tokens
    in_spec, out_spec = pl.BlockSpec((tile, experts), lambda i: (i, 0)), pl.BlockSpec((top_k, tile), lambda i: (0, i))
    if experts % LANES:
        # XLA itself keeps such an array with tokens along lanes, where it fills registers.
        logits, in_spec = logits.T, pl.BlockSpec((padded(experts, SUBLANES), tile), lambda i: (0, i))
    values, ids = pl.pallas_call(
        functools.partial(_kernel, experts, schedule),
        grid=(schedule.steps,),
        in_specs=[in_spec],
        out_specs=[out_spec, out_spec],
        out_shape=[shape_with_mesh_axes((top_k, tokens), dtype, [logits]) for dtype in (jnp.float32, jnp.int32)],
        cost_estimate=pl.CostEstimate(
            flops=0, transcendentals=0, bytes_accessed=logits.nbytes + 2 * 4 * top_k * tokens
        ),
        interpret=interpret,
        name=f"systolic_top_k_{tokens}_{experts}_{top_k}",
    )(logits)
    return values, ids


def _kernel(
    experts: int,
    schedule: TopKSchedule,
    logits_vmem: Any,  # float32 [tile, experts], or [experts, tile] if experts do not fill registers
    values_vmem: Any,  # float32 [k, tile]
    ids_vmem: Any,  # int32 [k, tile]
) -> None:
    top_k, tile = ids_vmem.shape
    row = lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), 0)
    ids = [row + first for first in range(0, experts, SUBLANES)]

    def together(group: Any, carry: None) -> None:
        first = group * schedule.together
        places = [pl.ds(pl.multiple_of((first + block) * LANES, LANES), LANES) for block in range(schedule.together)]
        blocks = [_keys(logits_vmem, tokens, ids, experts) for tokens in places]
        largest: list[list[Array]] = [[] for _ in blocks]
        chosen: list[list[Array]] = [[] for _ in blocks]
        for _ in range(top_k):
            # Alternately, so that one block's comparisons are computed while another's reduction is on its way.
            for block, keys in enumerate(blocks):
                key, expert = _largest(keys, ids)
                blocks[block] = [jnp.where(id == expert, _LOWEST, key) for id, key in zip(ids, keys, strict=True)]
                largest[block].append(key)
                chosen[block].append(expert)
        for tokens, keys, experts_of_tokens in zip(places, largest, chosen, strict=True):
            values_vmem[:, tokens] = lax.bitcast_convert_type(_in_total_order(jnp.concatenate(keys)), jnp.float32)
            ids_vmem[:, tokens] = jnp.concatenate(experts_of_tokens)
        return carry

    lax.fori_loop(0, tile // (LANES * schedule.together), together, None)


def _keys(logits_vmem: Any, tokens: Any, ids: list[Array], experts: int) -> list[Array]:
    """Return the keys of a block's logits as registers of eight experts of 128 tokens."""
    logits = logits_vmem[:, tokens] if experts % LANES else logits_vmem[tokens, :].T
    keys = _in_total_order(lax.bitcast_convert_type(logits, jnp.int32))
    registers = [keys[first : first + SUBLANES] for first in range(0, keys.shape[0], SUBLANES)]
    if experts % SUBLANES:
        registers[-1] = jnp.where(ids[-1] < experts, registers[-1], _LOWEST)
    return registers


def _in_total_order(bits: Array) -> Array:
    """Return integers in the order of the floats of these bits; of such integers, the bits."""
    return bits ^ (lax.shift_right_arithmetic(bits, jnp.full_like(bits, 31)) & 0x7FFFFFFF)


def _largest(keys: list[Array], ids: list[Array]) -> tuple[Array, Array]:
    """Return the largest key of each token and its expert, the lowest of equal ones: [1, 128] each."""
    pairs = list(zip(keys, ids, strict=True))
    key, expert = _first_largest([_first_largest(pairs[n : n + _CHAIN]) for n in range(0, len(pairs), _CHAIN)])
    largest = key.max(0, keepdims=True)
    return largest, jnp.where(key == largest, expert, _NO_EXPERT).min(0, keepdims=True)


def _first_largest(pairs: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    (key, expert), *others = pairs
    for other_key, other in others:
        is_larger = other_key > key
        key, expert = jnp.where(is_larger, other_key, key), jnp.where(is_larger, other, expert)
    return key, expert
