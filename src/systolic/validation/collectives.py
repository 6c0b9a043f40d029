"""Rebuild published collectives: programs whose devices only communicate.

    all_gather …   along dimension 0, in groups of the chips of a slice
    psum …         over all devices
    ppermute …     to the next device, again and again, each time with what came in

A mesh has its devices in the order of `jax.make_mesh`, unless a row's note says otherwise, and except ppermute, whose
source names no order: its devices are in the order of `jax.devices()`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from systolic.chips import SliceError
from systolic.compiler import slice_devices, slice_mesh
from systolic.support.choices import unknown_name
from systolic.validation.errors import OpError, Rebuilt, chip_of
from systolic.validation.published import PublishedRow

_EXTENTS = re.compile(r"(?:^|\s)(\d{1,3}(?:x\d{1,3})+)\b", re.ASCII)
_SHAPE = re.compile(r"\b(f32|bf16)\[([\d,]{1,40})\]", re.ASCII)
_DTYPES = {"f32": "float32", "bf16": "bfloat16"}
_LANES = 128
_REPEATS = 32  # of a loop, so that what is around it counts for little
_ALL = "all"


def collective_program(row: PublishedRow) -> Rebuilt:
    """Return the program of a row of the kind `collective`.

    Raises:
      OpError: the op is not known, or the row names no slice or no arrays.
    """
    for beginning, of_op in _OPS.items():
        if row.op.startswith(beginning):
            try:
                return of_op(row, _topology(row))
            except SliceError as error:
                raise OpError(str(error)) from error
    raise OpError(unknown_name("collective", row.op, _OPS))


def _topology(row: PublishedRow) -> str:
    chip = chip_of(row)
    # Makers of accelerators call a slice of eight cores v5p-8, v6e-8.
    if f"{chip.generation}-{chip.ring_devices * chip.cores_per_device}" in row.topology:
        return chip.ring_topology.rpartition(":")[2]
    extents = _EXTENTS.search(row.topology)
    if extents is None:
        raise OpError(f"topology {row.topology!r} names no slice, such as 2x4 or 2x2x1")
    return extents[1]


def _permute(row: PublishedRow, topology: str) -> Rebuilt:
    if row.device_bytes is None:
        raise OpError("ppermute needs the bytes of a device, as in '16384 bytes per device', and the row has none")
    devices = slice_devices(chip_of(row), topology)
    mesh = Mesh(np.asarray(devices), (_ALL,))
    rows = row.device_bytes // (4 * _LANES)
    return Rebuilt(
        what=f"ppermute {row.device_bytes} bytes to the next of {len(devices)} devices, in order of jax.devices()",
        function=functools.partial(permuted, mesh=mesh, repeats=_REPEATS),
        arguments=_placed((rows * len(devices), _LANES), "float32", mesh, PartitionSpec(_ALL)),
        topology=topology,
        repeats=_REPEATS,
    )


def permuted(x: Array, *, mesh: Mesh, repeats: int) -> Array:
    """Pass each device's part to the next one, `repeats` times."""
    count = mesh.size
    to_next = [(device, (device + 1) % count) for device in range(count)]

    def passed(_: Any, x: Array) -> Array:
        return lax.optimization_barrier(lax.ppermute(x, _ALL, to_next))

    return _sharded(lambda x: lax.fori_loop(0, repeats, passed, x), mesh, PartitionSpec(_ALL))(x)


def _gather(row: PublishedRow, topology: str) -> Rebuilt:
    chip, shape, dtype = chip_of(row), *_array(row)
    if "same core of each" not in row.shape_note:
        raise OpError("all_gather is known in groups of all chips, 'same core of each', and the row has no such note")
    devices = sorted(slice_devices(chip, topology), key=lambda device: device.id)
    mesh = Mesh(np.asarray(devices).reshape(-1, chip.devices_per_chip), (_ALL, "core"))
    chips = mesh.shape[_ALL]
    return Rebuilt(
        what=f"all_gather {row.shape_note.partition(' ->')[0]} over the {chips} chips of {topology}",
        function=functools.partial(gathered, mesh=mesh),
        arguments=_placed((shape[0] * chips, *shape[1:]), dtype, mesh, PartitionSpec(_ALL)),
        topology=topology,
    )


def gathered(x: Array, *, mesh: Mesh) -> Array:
    """Return all parts of an array that is cut along dimension 0, on every device."""
    return _sharded(lambda x: lax.all_gather(x, _ALL, tiled=True), mesh, PartitionSpec(_ALL), PartitionSpec())(x)


def _sum(row: PublishedRow, topology: str) -> Rebuilt:
    chip, shape, dtype = chip_of(row), *_array(row)
    mesh = slice_mesh(chip, topology, **{_ALL: len(slice_devices(chip, topology))})
    return Rebuilt(
        what=f"psum {dtype}{list(shape)} over {mesh.size} devices of {topology}",
        function=functools.partial(summed, mesh=mesh),
        arguments=_placed(shape, dtype, mesh, PartitionSpec()),
        topology=topology,
    )


def summed(x: Array, *, mesh: Mesh) -> Array:
    """Return the sum over all devices."""
    return _sharded(lambda x: lax.psum(x, _ALL), mesh, PartitionSpec())(x)


def _sharded(body: Callable[[Array], Array], mesh: Mesh, spec: PartitionSpec, out: PartitionSpec | None = None) -> Any:
    # What `psum` gives of equal arrays is not known to be equal, and does not have to be.
    return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec if out is None else out, check_vma=False)


def _placed(shape: tuple[int, ...], dtype: str, mesh: Mesh, spec: PartitionSpec) -> tuple[jax.ShapeDtypeStruct]:
    return (jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=NamedSharding(mesh, spec)),)


def _array(row: PublishedRow) -> tuple[tuple[int, ...], str]:
    match = _SHAPE.search(row.shape_note)
    if match is None:
        raise OpError(f"{row.op} needs the array of a device, as in f32[64,8,128], and the row has none")
    return tuple(map(int, match[2].split(","))), _DTYPES[match[1]]


_OPS: dict[str, Callable[[PublishedRow, str], Rebuilt]] = {"all_gather": _gather, "psum": _sum, "ppermute": _permute}
