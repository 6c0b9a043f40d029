"""JAX's paged attention, of one token per sequence and of several, with pages in any order."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from checked.case import Case, array, sound
from checked.public.plain import attention_plain
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.paged_attention.quantization_utils import quantize_to_int8
from jax.experimental.pallas.ops.tpu.ragged_paged_attention.kernel import ragged_paged_attention

LENGTHS = np.array([20, 60], np.int32)
PAGES = np.array([[3, 1, 4, 0], [9, 2, 6, 5]], np.int32)


def paged(q, k_pages, v_pages, lengths, pages, *, inline=True):
    """q [batch, heads, depth], pages [groups of heads, pages, page size, depth]."""
    return paged_attention(
        q,
        k_pages,
        v_pages,
        lengths,
        pages,
        pages_per_compute_block=2,
        inline_seq_dim=inline,
    )


def paged_int8(q, k_pages, v_pages, lengths, pages):
    """Paged attention with pages in eight bits."""
    k, v = (quantize_to_int8(array) for array in (k_pages, v_pages))
    return paged(q, k, v, lengths, pages)


def paged_plain(q, k_pages, v_pages, lengths, pages):
    """Paged attention without a kernel: it scales nothing."""
    batch, heads, depth = q.shape
    groups = k_pages.shape[0]
    k, v = (
        jnp.moveaxis(array[:, pages], 0, 1).reshape(batch, groups, -1, depth).repeat(heads // groups, axis=1)
        for array in (k_pages, v_pages)
    )
    seen = jnp.arange(k.shape[2]) < lengths[:, None, None, None]
    return attention_plain(q[:, :, None], k, v, seen=seen, scale=1.0)[:, :, 0]


def ragged(q, kv_pages, lengths, pages, starts, count, *, window=None):
    """q [tokens, heads, depth], pages [pages, page size, 2 · groups of heads, depth]."""
    return ragged_paged_attention(
        q,
        kv_pages,
        lengths,
        pages,
        starts,
        count,
        sm_scale=q.shape[-1] ** -0.5,
        sliding_window=window,
        num_kv_pages_per_block=2,
        num_queries_per_block=8,
    )


def ragged_plain(q, kv_pages, lengths, pages, starts, count, *, window=None):
    """Ragged attention without a kernel, for sequences with equal numbers of tokens in q."""
    tokens, heads, depth = q.shape[0] // 2, q.shape[1], q.shape[2]
    outputs = []
    for index in range(2):
        queries = q[index * tokens : (index + 1) * tokens].swapaxes(0, 1)
        both = kv_pages[pages[index]].reshape(-1, kv_pages.shape[2], depth).swapaxes(0, 1)
        k, v = (both[at::2].repeat(2 * heads // kv_pages.shape[2], axis=0) for at in (0, 1))
        row = lengths[index] - tokens + jnp.arange(tokens)[:, None]
        column = jnp.arange(k.shape[1])[None, :]
        seen = (column <= row) & (column < lengths[index])
        seen &= True if window is None else row - column < window
        outputs.append(attention_plain(queries, k, v, seen=seen).swapaxes(0, 1))
    return jnp.concatenate(outputs)


def _pages(dtype):
    return (array(4, 16, 16, 128, dtype=dtype),) * 2


RAGGED = (array(16, 8, 128), array(16, 16, 8, 128), LENGTHS, PAGES, np.array([0, 8, 16], np.int32),
          np.array([2], np.int32))  # fmt: skip
SOUND: tuple[Case, ...] = (
    sound(paged, array(2, 4, 128, dtype="bfloat16"), *_pages("bfloat16"), LENGTHS, PAGES, reference=None,
          name="no reference"),
    sound(paged, array(2, 8, 128), *_pages("float32"), LENGTHS, PAGES, reference=paged_plain),
    sound(paged, array(2, 8, 128), *_pages("float32"), LENGTHS, PAGES, reference=paged_plain, inline=False),
    sound(paged_int8, array(2, 8, 128), *_pages("float32"), LENGTHS, PAGES, reference=None),
    sound(ragged, *RAGGED, reference=ragged_plain),
    sound(ragged, array(16, 8, 128, dtype="bfloat16"), array(16, 16, 8, 128, dtype="bfloat16"), *RAGGED[2:],
          reference=None, name="no reference"),
)  # fmt: skip
