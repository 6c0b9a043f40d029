"""Kernels of tokamax, which MaxText's newer recipes use: splash attention, and products of grouped rows.

tokamax has to be installed, and needs Python 3.12 or later.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import jax

from .config import Config


def for_another_machine(config: Config) -> contextlib.AbstractContextManager[None]:
    """Let tokamax' kernels be traced on a machine without a TPU, if the configuration has one."""
    if "tokamax" not in (config.attention, config.grouped if config.experts else ""):
        return contextlib.nullcontext()
    return _tokamax("tokamax").config.cross_compile(True)


def tokamax_splash() -> tuple[Any, Any]:
    """Return the modules of splash attention's kernel and of its masks."""
    package = "tokamax._src.ops.experimental.tpu.splash_attention.splash_attention"
    return _tokamax(f"{package}_kernel"), _tokamax(f"{package}_mask")


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
