"""The programs of sharded products: ours on a mesh with explicit axes, XLA's on one whose axes are left to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from systolic.bench.layer_programs import in_a_row, plain
from systolic.bench.layers import LayersSpec
from systolic.bench.sharded import ShardedSpec
from systolic.chips import Chip
from systolic.compiler.slice_devices import explicit_axes, slice_mesh
from systolic.ops.gated import gated_matmul
from systolic.ops.matmul import matmul
from systolic.ops.op import RacedPrograms


def raced(spec: ShardedSpec, chip: Chip, implementation: Any = "pallas") -> RacedPrograms:
    """Both programs, of the same arrays that are cut the same way, and with results that are.

    Raises:
      SliceError: the chip has no such slice, or the mesh does not hold its devices.
    """
    mesh = slice_mesh(chip, spec.topology, **dict(spec.mesh))
    shardings = [NamedSharding(mesh, PartitionSpec(*cuts)) for _, cuts in spec.arguments]
    made = NamedSharding(mesh, PartitionSpec(*spec.result))
    out = (made, tuple(shardings[:-1])) if spec.backward else made
    ours, xla = functools.partial(_ours, implementation, chip), plain
    if spec.kind != "mlp":
        ours, xla = functools.partial(matmul, implementation=implementation, chip=chip), jnp.matmul
    return RacedPrograms(
        spec=spec,
        arguments=_arguments(spec, explicit_axes(mesh)),
        ours=functools.partial(_network, spec, ours),
        xla=jax.jit(functools.partial(_network, spec, xla), out_shardings=out),
        xla_arguments=_arguments(spec, mesh),
    )


def _arguments(spec: ShardedSpec, mesh: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(
        jax.ShapeDtypeStruct(shape, jnp.dtype(spec.dtype), sharding=NamedSharding(mesh, PartitionSpec(*cuts)))
        for shape, cuts in spec.arguments
    )


def _network(spec: ShardedSpec, layer: Callable[..., Array], x: Array, *given: Array) -> Any:
    part = spec.part
    return in_a_row(part, layer, x, *given) if isinstance(part, LayersSpec) else layer(x, *given)


def _ours(implementation: Any, chip: Chip, x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Array:
    # x is added behind the sum over devices: as the product's residual it would have the parts summed in float32.
    h = gated_matmul(x, w_gate, w_up, implementation=implementation, chip=chip)
    return x + matmul(h, w_down, implementation=implementation, chip=chip)
