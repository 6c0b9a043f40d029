"""tpu-inference's kernel for rows that are quantized in the call, as vLLM calls it on TPUs, with its own tuned tiles.

The kernel is not part of this package; install it for the race by `python -m pip install --no-deps tpu-inference`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from systolic.chips import Chip
from systolic.ops.op_programs import Peer
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.support.bugs import runs_user_code
from systolic.support.tpu_inference import PACKAGE, is_installed, kernel_module, version_of

_KERNEL = "quantized_matmul.kernel"
_TUNED = "quantized_matmul.tuned_block_sizes"


def peers(spec: QuantizedSpec, chip: Chip) -> Iterator[Peer]:
    """Yield the kernel for products that it has tiles for on the chip: its default tiles take many times as long."""
    if spec.quantize_lhs is None or spec.blocks > 1 or spec.gated:
        return  # it has no tiles for rows of floats, and takes no scales of blocks
    if not is_installed():
        yield Peer(name="tpu-inference", program=None, reason=f"{PACKAGE} is not installed")
        return
    tiles = _tiles(spec, chip)
    shapes = (((spec.m, spec.k), spec.dtype_lhs), ((spec.n, spec.k), spec.dtype_rhs), ((spec.n,), spec.dtype_scale))
    yield Peer(
        name="tpu-inference",
        config="" if tiles is None else "tiles " + "/".join(map(str, tiles[:3])),
        program=None if tiles is None else functools.partial(_product, spec, chip),
        arguments=tuple(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in shapes),
        reason="" if tiles is not None else f"it has no tuned tiles for this product on {chip.name}",
    )


def _tiles(spec: QuantizedSpec, chip: Chip) -> Any:
    tuned = kernel_module(_TUNED)
    key = tuned.TunedKey(version_of(chip.generation), spec.m, spec.n, spec.k, spec.quantize_lhs, spec.dtype_rhs)
    return tuned.TUNED_BLOCK_SIZES.get(key)


@runs_user_code  # any error of a public kernel is its result
def _product(spec: QuantizedSpec, chip: Chip, rows: Array, weight: Array, scales: Array) -> Array:
    # The kernel asks the first device for the chip; there is no TPU here, and the kernel is for another machine.
    kernel_module(_TUNED).get_tpu_version = lambda: version_of(chip.generation)
    multiply = kernel_module(_KERNEL).quantized_matmul_kernel.__wrapped__  # jit would keep the kernel of another chip
    return multiply(rows, weight, scales, x_q_dtype=jnp.dtype(spec.quantize_lhs), tuned_value=_tiles(spec, chip))
