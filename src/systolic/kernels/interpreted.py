"""What interpret mode lacks of a TPU's memory: there a matrix goes on to whole registers, with anything in them.

`emit_pipeline` copies the whole registers of an edge. Interpret mode's memory ends with the array and refuses that, or
with `buffer_bounds="padded"` asks for a TPU that is not there; so the kernel is given arrays that are longer.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from systolic.compat import shape_with_mesh_axes
from systolic.tiling import LANES

_ROWS = 32  # of the highest register, that of 8-bit types


def as_stored(array: Array, spec: pl.BlockSpec) -> Array:
    """An array with NaN, or the largest integer, behind each end that its blocks do not divide."""
    dtype = array.dtype
    garbage = jnp.nan if jnp.issubdtype(dtype, jnp.floating) else True
    if jnp.issubdtype(dtype, jnp.integer):
        garbage = jnp.iinfo(dtype).max
    grown = zip(_stored_size(array.shape, spec), array.shape, strict=True)
    return jnp.pad(array, [(0, stored - size) for stored, size in grown], constant_values=garbage)


def shape_as_stored(out: jax.ShapeDtypeStruct, spec: pl.BlockSpec, inputs: list[Array]) -> jax.ShapeDtypeStruct:
    """The shape of an output with room for whole registers."""
    return shape_with_mesh_axes(_stored_size(out.shape, spec), out.dtype, inputs)


def _stored_size(shape: tuple[int, ...], spec: pl.BlockSpec) -> tuple[int, ...]:
    blocks: Any = spec.block_shape
    ends = zip(shape[-2:], blocks[-2:], (_ROWS, LANES), strict=True)
    return *shape[:-2], *(-(-size // whole) * whole if size % block else size for size, block, whole in ends)
