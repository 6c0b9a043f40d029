"""tpu-inference's all-gather with its product, as vLLM calls it on TPUs, with its own tuned tiles.

The kernel sends to the next device of the mesh's axis, so it gets a mesh in the order of our ring.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from systolic.bench.sharded import MODEL, ShardedSpec
from systolic.chips import Chip
from systolic.compiler.slice_devices import slice_mesh
from systolic.ops.collective.axis_ring import AxisRing
from systolic.ops.op_programs import Peer
from systolic.support.bugs import runs_user_code
from systolic.support.tpu_inference import PACKAGE, is_installed, kernel_module, version_of

_KERNEL = "collectives.all_gather_matmul"
_TUNED = "collectives.all_gather_matmul_tuned_block_sizes"


def peers(spec: ShardedSpec, chip: Chip) -> Iterator[Peer]:
    """Yield the kernel for products whose tokens are gathered; a reason if it has no tiles for it on the chip."""
    if spec.kind != "tokens":
        return
    if not is_installed():
        yield Peer(name="tpu-inference", program=None, reason=f"{PACKAGE} is not installed")
        return
    devices = dict(spec.mesh).get(MODEL, 1)
    key = (version_of(chip.generation), spec.m, spec.n, spec.k, spec.dtype, devices)
    tiles = kernel_module(_TUNED).TUNED_BLOCK_SIZES.get(key)
    if tiles is None or len(spec.mesh) > 1:
        reason = f"it has no tuned tiles for this product on {devices} devices of {chip.name}"
        yield Peer(name="tpu-inference", program=None, reason=reason)
        return
    made = slice_mesh(chip, spec.topology, **dict(spec.mesh))
    mesh = Mesh(np.take(made.devices, AxisRing(axis_name=MODEL, size=devices)(made)), made.axis_names)
    yield Peer(
        name="tpu-inference",
        config=f"tiles {tiles[0]}/{tiles[1]}, in the order of a ring",
        program=functools.partial(_product, mesh, tiles),
        arguments=tuple(
            jax.ShapeDtypeStruct(shape, jnp.dtype(spec.dtype), sharding=NamedSharding(mesh, PartitionSpec(*cuts)))
            for shape, cuts in spec.arguments
        ),
    )


@runs_user_code  # any error of a public kernel is its result
def _product(mesh: Any, tiles: tuple[int, int], x: Array, w: Array) -> Array:
    return kernel_module(_KERNEL).all_gather_matmul(x, w, mesh, MODEL, bn=tiles[0], bk=tiles[1])
