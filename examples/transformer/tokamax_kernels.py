"""Kernels of tokamax, which MaxText's newer recipes use: splash attention, and products of grouped rows.

tokamax has to be installed, and needs Python 3.12 or later.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any

import jax

from .config import Config


def for_another_machine(config: Config) -> contextlib.AbstractContextManager[None]:
    """Let tokamax' kernels be traced on a machine without a TPU, if the configuration has one."""
    if "tokamax" not in (config.attention, config.grouped if config.experts else ""):
        return contextlib.nullcontext()
    return _tokamax("tokamax").config.cross_compile(True)


def attention_of_sequence(
    query: jax.Array, key: jax.Array, value: jax.Array, config: Config, blocks: Mapping[str, Any], name: str
) -> jax.Array:
    """Return causal attention, heads first and scores not scaled: (heads, sequence, head_dim).

    Args:
      blocks: rows of blocks, and layouts by the names of `QKVLayout`.
      name: of the results that a backward pass may keep.
    """
    package = "tokamax._src.ops.experimental.tpu.splash_attention"
    kernels, masks = (_tokamax(f"{package}.splash_attention_{module}") for module in ("kernel", "mask"))
    shape = (query.shape[1], key.shape[1])
    mask = masks.CausalMask(shape)
    if config.window is not None:
        mask = masks.LocalMask(shape, window_size=(config.window - 1, 0), offset=0)
    settings = {key: kernels.QKVLayout[value] if key.endswith("_layout") else value for key, value in blocks.items()}
    # The mask's blocks are computed now, even if the layers are traced as a loop.
    with jax.ensure_compile_time_eval():
        kernel = kernels.make_splash_mha(
            mask=mask, config=kernels.SplashConfig(**settings, residual_checkpoint_name=name), q_seq_shards=1
        )
    return kernel(query, key, value)


def grouped_product(rows: jax.Array, matrices: jax.Array, sizes: jax.Array) -> jax.Array:
    """Multiply the rows of each group by the group's matrix, in the tiles that tokamax chooses: (rows, columns)."""
    tokamax = _tokamax("tokamax")
    return tokamax.ragged_dot(
        lhs=rows,
        rhs=matrices,
        group_sizes=tokamax.RaggedDotGroupSizes(sizes, rows.shape[0]),
        precision=jax.lax.Precision.DEFAULT,
        preferred_element_type=rows.dtype,
        implementation="mosaic",
    )


def _tokamax(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"this model's kernels are tokamax': pip install tokamax, with Python 3.12 or later ({error})"
        ) from error
