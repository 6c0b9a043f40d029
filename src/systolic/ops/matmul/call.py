"""The result of a checked call, as its caller expects it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from systolic.ops.engine.cuts import cut_as, cut_of_spec
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.matmul.arguments import Call
from systolic.spec import Operands, SpecError


def result(
    multiply: Callable[[Any, Operands], Array], call: Call, out_sharding: NamedSharding | PartitionSpec | None
) -> Array:
    """Return `multiply` of a call, cut over the mesh as `out_sharding` says."""
    if out_sharding is None:
        return multiply(call.product, call.operands).reshape(call.shape).astype(call.dtype)
    mesh = explicit_mesh(call.operands.present())
    if mesh is None:
        raise SpecError(
            f"out_sharding={out_sharding}: no operand is on a mesh with explicit axes; leave it out, or make the mesh "
            "with `jax.make_mesh` and call it under `jit`"
        )
    spec = out_sharding.spec if isinstance(out_sharding, NamedSharding) else out_sharding
    if not isinstance(spec, PartitionSpec) or len(spec) > len(call.shape):
        raise SpecError(f"out_sharding={out_sharding}; it has to be a PartitionSpec of {len(call.shape)} dimensions")
    rank = len(call.shape)
    has_matrices = call.operands.lhs.ndim == rank  # else an operand is a vector
    product = replace(call.product, out_cut=cut_of_spec(spec, rank)) if has_matrices else call.product
    out = multiply(product, call.operands).reshape(call.shape).astype(call.dtype)
    return cut_as(out, mesh, spec)
