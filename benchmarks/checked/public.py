"""Kernels that come with JAX, unchanged, with small arguments: attention of three kinds, megablox, a product."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from checked.case import Case, array, sound
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import matmul as pallas_matmul
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

SIZES = np.array([100, 0, 140, 16], np.int32)


def attention_plain(q, k, v, *, causal=True, scale=None):
    """Softmax attention over [batch, heads, length, depth], every score at once."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (scale or q.shape[-1] ** -0.5)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)


def flash_attention(q, k, v, *, causal=True):
    """JAX's flash attention in blocks of 128."""
    sizes = flash.BlockSizes(**dict.fromkeys(("block_q", "block_k_major", "block_k"), 128), block_b=1)
    return flash.flash_attention(q, k, v, causal=causal, block_sizes=sizes, sm_scale=q.shape[-1] ** -0.5)


def flash_gradient(q, k, v):
    """The gradient of its sum with weights that are not alike."""
    names = ("block_q", "block_k_major", "block_k", "block_q_major_dkv", "block_k_major_dkv", "block_k_dkv")
    names += ("block_q_dkv", "block_k_major_dq", "block_k_dq", "block_q_dq")
    sizes = flash.BlockSizes(**dict.fromkeys(names, 128), block_b=1)

    def loss(*operands):
        out = flash.flash_attention(*operands, causal=True, block_sizes=sizes, sm_scale=q.shape[-1] ** -0.5)
        return (out.astype(jnp.float32) * _weights(out)).sum()

    return jax.grad(loss, (0, 1, 2))(q, k, v)


def _weights(out):
    return jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)


def flash_gradient_plain(q, k, v):
    """The same."""
    return jax.grad(lambda *each: (attention_plain(*each) * _weights(q)).sum(), (0, 1, 2))(q, k, v)


def splash(q, k, v):
    """JAX's splash attention over [heads, length, depth], causal."""
    mask = splash_attention_mask.MultiHeadMask(
        [splash_attention_mask.CausalMask((q.shape[1], k.shape[1]))] * q.shape[0]
    )
    return splash_attention_kernel.make_splash_mha(mask=mask, head_shards=1, q_seq_shards=1)(q, k, v)


def splash_plain(q, k, v):
    """The same: it scales nothing."""
    return attention_plain(q[None], k[None], v[None], scale=1.0)[0]


def grouped(lhs, rhs, sizes):
    """Megablox' grouped product."""
    return gmm(lhs, rhs, sizes, jnp.float32, tiling=(128, 128, 128))


def grouped_plain(lhs, rhs, sizes):
    """The same."""
    group = jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(lhs.shape[0]), side="right")
    return sum(jnp.where((group == each)[:, None], lhs, 0) @ rhs[each] for each in range(rhs.shape[0]))


def product(lhs, rhs):
    """JAX's example of a product."""
    return pallas_matmul.matmul(lhs, rhs, block_shape=(128, 128), block_k=128)


def paged(q, k, v, lengths, pages):
    """JAX's paged attention."""
    return paged_attention(q, k, v, lengths, pages, pages_per_compute_block=2)


def _heads(dtype):
    return (array(1, 2, 256, 128, dtype=dtype),) * 3


FAULTS: tuple[Case, ...] = ()
SOUND: tuple[Case, ...] = (
    *(sound(flash_attention, *_heads(dtype), reference=attention_plain, name=dtype)
      for dtype in ("float32", "bfloat16")),
    sound(flash_attention, *_heads("float32"), reference=functools.partial(attention_plain, causal=False),
          causal=False),
    sound(flash_attention, *_heads("bfloat16"), reference=None, name="no reference"),
    sound(flash_gradient, *_heads("float32"), reference=flash_gradient_plain),
    sound(splash, *(array(2, 256, 128),) * 3, reference=splash_plain),
    *(sound(grouped, array(256, 256, dtype=dtype), array(4, 256, 128, dtype=dtype), SIZES, reference=grouped_plain,
            name=dtype) for dtype in ("float32", "bfloat16")),
    sound(product, array(256, 256, dtype="bfloat16"), array(256, 256, dtype="bfloat16"), reference=jnp.matmul),
    sound(paged, array(2, 4, 128, dtype="bfloat16"), *(array(4, 16, 16, 128, dtype="bfloat16"),) * 2,
          np.array([20, 60], np.int32), np.arange(16, dtype=np.int32).reshape(2, 8) % 16, reference=None),
)  # fmt: skip
