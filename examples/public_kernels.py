"""Kernels that come with JAX, with their block sizes as keyword arguments, for `systolic tune`.

    systolic tune examples/public_kernels.py:splash --arg "bf16[32,4096,128]" --arg "bf16[8,4096,128]" \
        --arg "bf16[8,4096,128]" --over block_q=512,1024 --over block_kv=512,1024 --chip v6e
"""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import splash_attention as splash_kernels
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel as ragged_kernel


def splash(
    q: jax.Array, k: jax.Array, v: jax.Array, *, block_q: int = 128, block_kv: int = 128, block_kv_compute: int = 128
) -> jax.Array:
    """Causal attention of q [heads, length, depth] to k and v [groups of heads, length, depth], not scaled.

    The blocks are those that JAX's splash attention takes by default.
    """
    heads, groups = q.shape[0], k.shape[0]
    mask = splash_kernels.MultiHeadMask([splash_kernels.CausalMask((q.shape[1], k.shape[1]))] * (heads // groups))
    sizes = splash_kernels.BlockSizes(block_q=block_q, block_kv=block_kv, block_kv_compute=block_kv_compute)
    kernel = splash_kernels.make_splash_mqa(mask=mask, head_shards=1, q_seq_shards=1, block_sizes=sizes)
    out: Any = jax.vmap(kernel)(q.reshape(groups, heads // groups, *q.shape[1:]), k, v)
    return out.reshape(q.shape)


def paged(
    q: jax.Array, k_pages: jax.Array, v_pages: jax.Array, lengths: jax.Array, *, pages_per_compute_block: int = 4
) -> jax.Array:
    """One step of decoding: q [batch, heads, depth], pages [groups of heads, pages, page size, depth].

    All sequences have equal numbers of pages, stored one after another.
    """
    batch, pages = q.shape[0], k_pages.shape[1]
    indices = jnp.arange(pages, dtype=jnp.int32).reshape(batch, pages // batch)
    return paged_attention(q, k_pages, v_pages, lengths, indices, pages_per_compute_block=pages_per_compute_block)


def ragged_paged(
    q: jax.Array,
    kv_pages: jax.Array,
    lengths: jax.Array,
    *,
    num_kv_pages_per_block: int = 128,
    num_queries_per_block: int = 32,
    vmem_limit_bytes: int | None = None,
) -> jax.Array:
    """Attention of q [tokens, heads, depth], equally many tokens of each sequence, to pages of both keys and values.

    Args:
      kv_pages: [pages, page size, 2 · groups of heads, depth].
      lengths: of each sequence, including the tokens of q.
      num_kv_pages_per_block: pages of a block; the kernel's default, as the next; for shapes not in JAX's table.
      num_queries_per_block: tokens of a block.
      vmem_limit_bytes: None: the compiler's own.
    """
    sequences, pages = lengths.shape[0], kv_pages.shape[0]
    indices = np.arange(pages, dtype=np.int32).reshape(sequences, pages // sequences)
    starts = np.arange(sequences + 1, dtype=np.int32) * (q.shape[0] // sequences)
    return ragged_kernel.ragged_paged_attention(
        q,
        kv_pages,
        lengths,
        jnp.asarray(indices),
        jnp.asarray(starts),
        jnp.full(1, sequences, jnp.int32),
        sm_scale=q.shape[-1] ** -0.5,
        num_kv_pages_per_block=min(num_kv_pages_per_block, indices.shape[1]),
        num_queries_per_block=num_queries_per_block,
        vmem_limit_bytes=vmem_limit_bytes,
    )


def megablox(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    *,
    tile_m: int = 128,
    tile_k: int = 128,
    tile_n: int = 128,
) -> jax.Array:
    """Groups of rows of lhs [m, k], each times its matrix of rhs [groups, k, n], in megablox' default tiles."""
    return gmm(lhs, rhs, group_sizes, lhs.dtype, tiling=(tile_m, tile_k, tile_n))


def tokamax_gmm(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    *,
    tile_m: int = 128,
    tile_k: int = 128,
    tile_n: int = 128,
) -> jax.Array:
    """Compute `megablox` by tokamax' kernel, which has to be installed and needs Python 3.12."""
    kernel = importlib.import_module("tokamax._src.ops.ragged_dot.pallas_mosaic_tpu_kernel")
    tiles = (tile_m, tile_k, tile_n)
    return kernel.gmm(lhs, rhs, group_sizes, jax.lax.Precision.DEFAULT, lhs.dtype, tiles)
