"""Kernels of tokamax, which MaxText's newer recipes use: splash attention, and products of grouped rows.

tokamax has to be installed, and needs Python 3.12 or later.
"""

from __future__ import annotations

import contextlib
import functools
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
    """Multiply the rows of each group by the group's matrix: (rows, columns).

    tokamax takes the tiles that it has tuned for the chip and the shapes, if it has, and else chooses some.
    """
    tokamax = _tokamax("tokamax")
    return tokamax.ragged_dot(
        lhs=rows,
        rhs=matrices,
        group_sizes=tokamax.RaggedDotGroupSizes(sizes, rows.shape[0]),
        precision=jax.lax.Precision.DEFAULT,
        implementation=(_grouped_kernel(),),
    )


@functools.cache
def _grouped_kernel() -> Any:
    """Return the kernel whose calls have the arguments for which tokamax has kept tuned tiles.

    Since jax 0.12, tokamax' own gradients state their manual axes, for which no tiles are kept. Here they have none.
    """
    package = "tokamax._src.ops.ragged_dot"
    kernel = _tokamax(f"{package}.pallas_mosaic_tpu").PallasMosaicTpuRaggedDot()

    def without_axes(*arrays: jax.Array, manual_axis_type: Any = None, **options: Any) -> jax.Array:
        del manual_axis_type
        return kernel(*arrays, **options)

    gradients = functools.partial(
        _tokamax(f"{package}.base").vjp, dlhs_ragged_dot=without_axes, drhs_ragged_dot=without_axes
    )
    return kernel.replace(vjp=gradients)


def _tokamax(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"this model's kernels are tokamax': pip install tokamax, with Python 3.12 or later ({error})"
        ) from error
