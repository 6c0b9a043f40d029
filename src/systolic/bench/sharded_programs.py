"""The programs of sharded products: ours on a mesh with explicit axes, XLA's on a mesh of automatic axes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from systolic.bench.layer_programs import in_a_row, plain
from systolic.bench.sharded import ShardedSpec
from systolic.chips import Chip
from systolic.ops.gated import gated_matmul
from systolic.ops.matmul import matmul
from systolic.ops.op_programs import RacedPrograms, Shardings


def raced(spec: ShardedSpec, chip: Chip, implementation: Any = None) -> RacedPrograms:
    """Return both programs of the same arrays, with arguments and results cut the same way."""
    cuts = [PartitionSpec(*cuts) for _, cuts in spec.arguments]
    result = PartitionSpec(*spec.result)
    ours, xla = functools.partial(_ours, implementation, chip), plain
    if spec.kind != "mlp":
        out_sharding = result if spec.kind == "tokens" else None
        ours = functools.partial(matmul, implementation=implementation, chip=chip, out_sharding=out_sharding)
        xla = jnp.matmul
    return RacedPrograms(
        spec=spec,
        arguments=tuple(jax.ShapeDtypeStruct(shape, jnp.dtype(spec.dtype)) for shape, _ in spec.arguments),
        ours=functools.partial(_network, spec, ours),
        xla=functools.partial(_network, spec, xla),
        shardings=Shardings(arguments=tuple(cuts), result=(result, tuple(cuts[:-1])) if spec.backward else result),
    )


def _network(spec: ShardedSpec, layer: Callable[..., Array], x: Array, *operands: Array) -> Any:
    part: Any = spec.part
    return in_a_row(part, layer, x, *operands) if spec.kind == "mlp" else layer(x, *operands)


def _ours(implementation: Any, chip: Chip, x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Array:
    # x is added after the sum over devices: as the product's residual it would have the parts summed in float32.
    h = gated_matmul(x, w_gate, w_up, implementation=implementation, chip=chip)
    return x + matmul(h, w_down, implementation=implementation, chip=chip)
