"""Arrays padded for interpret mode, whose memory ends with the array; a TPU's goes on to whole registers.

`emit_pipeline` copies the whole registers of an edge. Interpret mode's memory ends with the array and refuses that, or
with `buffer_bounds="padded"` asks for a TPU that is not there; so the kernel is given arrays that are longer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.sharding import AbstractDevice, AbstractMesh, get_abstract_mesh, use_abstract_mesh

from systolic.chips import CHIPS, Chip
from systolic.compat import shape_with_mesh_axes
from systolic.schedule import LANES, KernelConfig

_ROWS = 32  # of the highest register, for 8-bit types


def as_stored(array: Array, spec: pl.BlockSpec) -> Array:
    """Return an array with NaN, or the largest integer, after each end that its blocks do not divide."""
    dtype = array.dtype
    garbage = jnp.nan if jnp.issubdtype(dtype, jnp.floating) else True
    if jnp.issubdtype(dtype, jnp.integer):
        garbage = jnp.iinfo(dtype).max
    grown = zip(_stored_size(array.shape, spec), array.shape, strict=True)
    return jnp.pad(array, [(0, stored - size) for stored, size in grown], constant_values=garbage)


def shape_as_stored(out: jax.ShapeDtypeStruct, spec: pl.BlockSpec, inputs: list[Array]) -> jax.ShapeDtypeStruct:
    """Return the shape of an output with room for whole registers."""
    return shape_with_mesh_axes(_stored_size(out.shape, spec), out.dtype, inputs)


def _stored_size(shape: tuple[int, ...], spec: pl.BlockSpec) -> tuple[int, ...]:
    blocks: Any = spec.block_shape
    ends = zip(shape[-2:], blocks[-2:], (_ROWS, LANES), strict=True)
    return *shape[:-2], *(-(-size // register) * register if size % block else size for size, block, register in ends)


@contextmanager
def tracing_for(chip: Chip) -> Iterator[None]:
    """Trace a kernel for a chip: with 32-bit numbers, and if no TPU is in sight, as if the device were one.

    A TPU's scalar unit has 32 bits, and so has every number in a kernel: the kernel's own, the numbers of Pallas'
    pipelines, and the results of users' functions of Python numbers.

    `emit_pipeline` asks for the device while it is traced, and some operations, `jnp.sign` among them, while they are
    lowered. Neither knows CPUs: not for interpret mode, and not for a program for TPUs that is made on a machine
    without one. Under `shard_map` over devices of a CPU nothing can be done: there all arrays are tied to the mesh of
    CPUs, and none can be taken for a TPU's.
    """
    device = AbstractDevice(device_kind=chip.device_kind, num_cores=chip.cores_per_device, platform="tpu")
    is_real = _tpu_in_sight() or get_abstract_mesh().axis_names
    mesh = nullcontext() if is_real else use_abstract_mesh(AbstractMesh((), (), abstract_device=device))
    with jax.enable_x64(False), mesh:
        yield


def as_traceable(config: KernelConfig) -> KernelConfig:
    """Return the auto pipeline in place of `emit_pipeline` if that cannot be traced: see `tracing_for`."""
    if config.pipeline != "emit" or _tpu_in_sight() or not get_abstract_mesh().axis_names:
        return config
    return dataclasses.replace(config, pipeline="auto", num_stages=2)


def _tpu_in_sight() -> bool:
    kind = getattr(get_abstract_mesh().abstract_device, "device_kind", None)
    return jax.default_backend() == "tpu" or any(kind == chip.device_kind for chip in CHIPS.values())
