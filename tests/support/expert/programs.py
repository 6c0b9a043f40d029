"""The programs that `bench` and `tune` compile."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from expert.kernel import by_pallas
from expert.spec import ExpertSpec
from systolic.ops.op_programs import Programs, Shardings
from systolic.schedule import KernelConfig


def programs_of(spec: ExpertSpec) -> Programs:
    weights = jax.ShapeDtypeStruct((spec.experts, spec.k, spec.n), jnp.dtype(spec.dtype))
    rows = jax.ShapeDtypeStruct((spec.m, spec.k), jnp.dtype(spec.dtype))
    shardings = None
    if spec.slice_mesh is not None:
        whole, cut = PartitionSpec(), PartitionSpec(None, None, tuple(spec.slice_mesh.sizes))
        shardings = Shardings(arguments=(whole, whole, cut, cut), result=whole)
    return Programs(
        computed=spec,
        arguments=(jax.ShapeDtypeStruct((1,), jnp.int32), rows, weights, weights),
        pallas=_configured,
        xla=by_xla,
        shardings=shardings,
    )


def _configured(config: KernelConfig, *operands: Array) -> Array:
    return by_pallas(*operands, tiles=config.tiles)


def by_xla(expert: Array, lhs: Array, gate: Array, up: Array) -> Array:
    gated, raised = (jnp.matmul(lhs, weight[expert[0]], preferred_element_type=jnp.float32) for weight in (gate, up))
    return (jax.nn.relu(gated) * raised).astype(lhs.dtype)
