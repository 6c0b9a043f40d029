"""Kernels of tokamax, which needs Python 3.12: grouped products of both generations, and its splash attention.

Where it is not installed there are none, and `MISSING` says so.
"""

from __future__ import annotations

import importlib
import importlib.util

import jax
import jax.numpy as jnp
from checked.case import Case, array, sound
from checked.public.plain import attention_plain
from checked.public.products import SIZES, TILES, grouped_plain
from checked.public.products import columns_plain as grouped_by_columns_plain

_HIGHEST = jax.lax.Precision.HIGHEST


def tokamax_gmm(lhs, rhs, sizes, *, transposed=False):
    """Groups of rows, each times its group's matrix."""
    kernel = importlib.import_module("tokamax._src.ops.ragged_dot.pallas_mosaic_tpu_kernel")

    # For bfloat16 the compiler accepts only the default.
    precision = _HIGHEST if lhs.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    return kernel.gmm(lhs, rhs, sizes, precision, jnp.float32, TILES, transpose_rhs=transposed)


def tokamax_tgmm(lhs, rhs, sizes):
    """Groups of columns of lhs, each times the rows of rhs of its group: one matrix per group."""
    kernel = importlib.import_module("tokamax._src.ops.ragged_dot.pallas_mosaic_tpu_kernel")

    return kernel.tgmm(lhs, rhs, sizes, _HIGHEST, jnp.float32, TILES)


def tokamax_gmm_v2(lhs, rhs, sizes):
    """`tokamax_gmm` by the second generation, which starts its own copies."""
    kernel = importlib.import_module("tokamax._src.ops.gmm_v2.gmm_v2")
    return kernel.gmm_v2(lhs, rhs, sizes, preferred_element_type=jnp.float32, maybe_quantize_lhs=False)


def tokamax_splash(q, k, v, *, causal=True):
    """Splash attention over [heads, length, depth], unscaled."""
    splash = "tokamax._src.ops.experimental.tpu.splash_attention"
    kernels, masks = (importlib.import_module(f"{splash}.splash_attention_{module}") for module in ("kernel", "mask"))
    mask = (masks.CausalMask if causal else masks.FullMask)((q.shape[1], k.shape[1]))
    return kernels.make_splash_mha(mask=mask, q_seq_shards=1)(q, k, v)


def _splash_plain(q, k, v):
    return attention_plain(q, k, v, seen="causal", scale=1.0)


HEADS = (array(2, 256, 128),) * 3
MISSING = "" if importlib.util.find_spec("tokamax") else "tokamax is not installed: its kernels are left out"
SOUND: tuple[Case, ...] = () if MISSING else (
    sound(tokamax_gmm, array(256, 256), array(4, 256, 128), SIZES, reference=grouped_plain),
    sound(tokamax_gmm, array(256, 256, dtype="bfloat16"), array(4, 256, 128, dtype="bfloat16"), SIZES, reference=None,
          name="no reference"),
    sound(tokamax_gmm, array(256, 256), array(4, 128, 256), SIZES, transposed=True,
          reference=lambda *given: grouped_plain(*given, transposed=True)),
    sound(tokamax_tgmm, array(256, 256), array(256, 128), SIZES, reference=grouped_by_columns_plain),
    sound(tokamax_gmm_v2, array(256, 256, dtype="bfloat16"), array(4, 256, 256, dtype="bfloat16"), SIZES,
          reference=grouped_plain),
    sound(tokamax_splash, *HEADS, reference=_splash_plain),
    sound(tokamax_splash, *HEADS, causal=False, reference=lambda q, k, v: attention_plain(q, k, v, scale=1.0)),
)  # fmt: skip
