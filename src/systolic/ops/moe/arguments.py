"""Checks the arguments of `moe`."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from systolic.ops.engine.backend import Backend
from systolic.ops.engine.dtypes import given_dtype, operand
from systolic.ops.moe.choosing import chosen_experts
from systolic.ops.quantized.array import Quantized
from systolic.spec import SpecError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    x: Array  # [tokens, d]
    ids: Array  # [tokens, k], int32
    weights: Array  # [tokens, k], float32
    experts: int  # of all devices
    first_expert: Any  # of those whose weights are here; None: all are
    capacity: int | None
    repeats: bool  # True if a token may have chosen an expert more than once


def canonical(
    x: Any,
    routing: Any,
    w_gate: Any,
    w_up: Any,
    w_down: Any,
    *,
    top_k: Any,
    renormalize: bool,
    capacity: Any,
    axis: Any,
    backend: Backend,
) -> Call:
    """Check shapes, and choose experts by this backend; raise SpecError for what does not match."""
    rows = operand(x, "x")
    if rows.ndim < 2:
        raise SpecError(f"x of shape {list(rows.shape)}; use [tokens, d], or more dimensions before d")
    *tokens, d = rows.shape
    here = _check_matrices(d, w_gate, w_up, w_down)
    devices, first_expert = _axis(axis, here)
    experts = here * devices
    if isinstance(routing, (tuple, list)):
        ids, weights = _given(routing, tokens, experts, top_k)
    else:
        logits = operand(routing, "router_logits")
        if logits.shape != (*tokens, experts):
            raise SpecError(
                f"router_logits of shape {list(logits.shape)}; they have to be {[*tokens, experts]}, one for each "
                f"expert{f' of {devices} devices' if devices > 1 else ''}"
            )
        if top_k is None or not 1 <= operator.index(top_k) <= experts:
            raise SpecError(f"top_k={top_k}; use the number of experts of a token, from 1 to {experts}")
        ids, weights = chosen_experts(backend, logits.reshape(-1, experts), top_k, renormalize)
    if capacity is not None and operator.index(capacity) < 1:
        raise SpecError(f"capacity={capacity}; use a number of rows from 1 up, or leave it out")
    return Call(
        x=rows.reshape(-1, d),
        ids=ids,
        weights=weights,
        experts=experts,
        first_expert=first_expert,
        capacity=capacity,
        repeats=isinstance(routing, (tuple, list)),
    )


def _check_matrices(d: int, w_gate: Any, w_up: Any, w_down: Any) -> int:
    """Return the number of experts."""
    named = {"w_gate": w_gate, "w_up": w_up, "w_down": w_down}
    shapes = {
        name: tuple(value.shape if isinstance(value, Quantized) else operand(value, name).shape)
        for name, value in named.items()
        if value is not None
    }
    shown = ", ".join(f"{name}{list(shape)}" for name, shape in shapes.items())
    gate = shapes["w_gate"]
    if len(gate) != 3 or gate[1] != d:
        raise SpecError(f"{shown}; w_gate has to be [experts, {d}, f] for x[..., {d}]")
    experts, _, f = gate
    if shapes.get("w_up", gate) != gate or shapes["w_down"] != (experts, f, d):
        raise SpecError(f"{shown}; w_up has to be {list(gate)}, and w_down {[experts, f, d]}")
    if not experts:
        raise SpecError(f"{shown}; there has to be an expert")
    return experts


def _axis(axis: Any, here: int) -> tuple[int, Any]:
    if axis is None:
        return 1, None
    from jax import lax

    try:
        return lax.axis_size(axis), lax.axis_index(axis) * here
    except NameError as error:
        raise SpecError(
            f"axis_name={axis!r} is not an axis of the mesh here; call moe in jax.shard_map over it"
        ) from error


def _given(routing: Any, tokens: list[int], experts: int, top_k: Any) -> tuple[Array, Array]:
    if len(routing) != 2:
        raise SpecError(f"{len(routing)} arrays of routing; use (expert_ids, weights), or the router's logits")
    ids, weights = routing
    dtype = given_dtype(ids, "expert_ids")
    weights = operand(weights, "weights")
    shown = f"expert_ids {dtype}{list(ids.shape)} and weights {weights.dtype.name}{list(weights.shape)}"
    if ids.shape != weights.shape or ids.ndim != len(tokens) + 1 or list(ids.shape[:-1]) != tokens or not ids.shape[-1]:
        raise SpecError(f"{shown}; both have to be {[*tokens, 'k']}")
    if not jnp.issubdtype(dtype, jnp.integer) or not jnp.issubdtype(weights.dtype, jnp.floating):
        raise SpecError(f"{shown}; use integers and floats")
    if top_k is not None and top_k != ids.shape[-1]:
        raise SpecError(f"{shown}, but top_k={top_k}; leave it out where experts are given")
    if not isinstance(ids, Tracer) and ids.size:
        # Inside of jit a known array's own minimum would be traced; NumPy's is a number.
        id_values = np.asarray(ids)
        low, high = int(id_values.min()), int(id_values.max())
        if low < -1 or high >= experts:
            raise SpecError(
                f"expert_ids are from {low} to {high}; use numbers from 0 to {experts - 1}, and -1 for no expert"
            )
    k = ids.shape[-1]
    return jnp.asarray(ids).astype(jnp.int32).reshape(-1, k), weights.astype(jnp.float32).reshape(-1, k)
