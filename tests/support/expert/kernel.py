"""The Pallas kernel: the number of the expert is prefetched, and chooses the blocks of both weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from systolic.schedule import Tiles


def by_pallas(expert: Array, lhs: Array, gate: Array, up: Array, *, tiles: Tiles, interpret: Any = False) -> Array:
    mesh = jax.typeof(gate).sharding.mesh
    axes = mesh.explicit_axes
    if not axes:
        return one_device(expert, lhs, gate, up, tiles=tiles, interpret=interpret)

    def gathered(*operands: Array) -> Array:
        columns = one_device(*operands, tiles=tiles, interpret=interpret)
        return lax.all_gather(columns, axes, axis=1, tiled=True)

    weights = PartitionSpec(None, None, axes)
    whole = PartitionSpec()
    specs = (whole, whole, weights, weights)
    mapped = jax.shard_map(gathered, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=False)
    return mapped(expert, lhs, gate, up)


def one_device(expert: Array, lhs: Array, gate: Array, up: Array, *, tiles: Tiles, interpret: Any = False) -> Array:
    (m, k), n = lhs.shape, gate.shape[-1]

    def kernel(_: Any, lhs_vmem: Any, gate_vmem: Any, up_vmem: Any, out_vmem: Any) -> None:
        gated, raised = (
            jnp.dot(lhs_vmem[...], weight[...], preferred_element_type=jnp.float32) for weight in (gate_vmem, up_vmem)
        )
        out_vmem[...] = (jax.nn.relu(gated) * raised).astype(out_vmem.dtype)

    weights = pl.BlockSpec((None, k, tiles.tile_n), lambda i, j, expert_smem: (expert_smem[0], 0, j))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(m // tiles.tile_m, n // tiles.tile_n),
            in_specs=[pl.BlockSpec((tiles.tile_m, k), lambda i, j, _: (i, 0)), weights, weights],
            out_specs=pl.BlockSpec((tiles.tile_m, tiles.tile_n), lambda i, j, _: (i, j)),
        ),
        interpret=interpret,
    )(expert, lhs, gate, up)
