"""Check the arguments of `linear_cross_entropy`, and bring them into canonical form."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from systolic.ops.cross_entropy.loss import Loss
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.dtypes import common_dtype, fused_array, given_dtype, operand
from systolic.ops.engine.precision import precision_named
from systolic.ops.engine.shapes import broadcasts_to
from systolic.spec import SpecError, dtype_bytes
from systolic.support.choices import unknown_name

REDUCTIONS = ("none", "sum", "mean")
KEPT_BYTES = {"recompute": 0, "keep": sys.maxsize}  # of logits that may stay in memory for the gradients


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """A call in canonical form: tokens are rows."""

    loss: Loss
    x: Array  # [m, k]
    w: Array  # [k, n]
    labels: Array  # [m] int32
    weights: Array | None  # [m] float32
    shape: tuple[int, ...]  # of the tokens


def canonical(
    x: Any,
    w: Any,
    labels: Any,
    *,
    weights: Any,
    soft_cap: Any,
    with_total: bool,
    logits: Any,
    precision: Any,
    backend: Backend,
) -> Call:
    """Check the arrays; raise SpecError if they do not match."""
    rows, columns = operand(x, "x"), operand(w, "w")
    for name, array in (("x", rows), ("w", columns)):
        if jnp.issubdtype(array.dtype, jnp.integer):
            raise SpecError(
                f"{name} is {array.dtype}, and a loss has derivatives; use floats, as {name}.astype(jnp.bfloat16)"
            )
    if columns.ndim != 2:
        raise SpecError(f"w of shape {list(columns.shape)} has to be a matrix, [features, vocabulary]")
    if rows.shape[-1] != columns.shape[0]:
        raise SpecError(
            f"x{list(rows.shape)} has {rows.shape[-1]} features, w{list(columns.shape)} has {columns.shape[0]}: they "
            "have to agree; for a table [vocabulary, features] of embeddings use w.T"
        )
    tokens = rows.shape[:-1]
    label_dtype = given_dtype(labels, "labels")
    if not np.issubdtype(np.dtype(label_dtype), np.integer):
        raise SpecError(f"labels are {label_dtype}; they have to be integers, the columns of w")
    if labels.shape != tokens:
        raise SpecError(f"labels of shape {list(labels.shape)}; there is one for each row of x, so use {list(tokens)}")
    if weights is not None:
        weights = fused_array(weights, "weights")
        if not broadcasts_to(weights.shape, tokens):
            raise SpecError(f"weights of shape {list(weights.shape)} do not broadcast to the labels' {list(tokens)}")
        weights = jnp.broadcast_to(weights, tokens).reshape(-1).astype(jnp.float32)
    dtype = common_dtype(rows.dtype.name, columns.dtype.name)
    if dtype_bytes(dtype) == 1:
        dtype = "bfloat16"  # gradients are products of errors, and eight bits would lose most of an error
    loss = Loss(
        backend=backend,
        precision=precision_named(precision),
        soft_cap=None if soft_cap is None else _positive_soft_cap(soft_cap),
        total=with_total,
        kept_bytes=_kept_bytes(logits),
    )
    return Call(
        loss=loss,
        x=rows.reshape(-1, rows.shape[-1]).astype(dtype),
        w=columns.astype(dtype),
        labels=jnp.asarray(labels).reshape(-1).astype(jnp.int32),
        weights=weights,
        shape=tokens,
    )


def check_options(reduction: Any, label_smoothing: Any, z_loss: Any, ignore_index: Any) -> None:
    """Raise SpecError if an option has an illegal value."""
    if reduction not in REDUCTIONS:
        raise SpecError(unknown_name("reduction=", reduction, REDUCTIONS))
    if not _is_number(label_smoothing) or not 0 <= label_smoothing <= 1:
        raise SpecError(f"label_smoothing={label_smoothing!r}; use a number from 0 to 1")
    if not _is_number(z_loss) or z_loss < 0:
        raise SpecError(f"z_loss={z_loss!r}; use a number from 0 on, such as 1e-4")
    if ignore_index is not None and (isinstance(ignore_index, bool) or not isinstance(ignore_index, (int, np.integer))):
        raise SpecError(f"ignore_index={ignore_index!r}; use an integer, or None where every token has a label")


def _kept_bytes(logits: Any) -> int:
    if isinstance(logits, str) and logits in KEPT_BYTES:
        return KEPT_BYTES[logits]
    if isinstance(logits, bool) or not isinstance(logits, (int, np.integer)) or logits < 0:
        names = " or ".join(f'"{name}"' for name in KEPT_BYTES)
        raise SpecError(f"logits={logits!r}; use {names}, or the bytes that they may take, such as 4 * 2**30")
    return int(logits)


def _positive_soft_cap(value: Any) -> float:
    if not _is_number(value) or value <= 0:
        raise SpecError(f"soft_cap={value!r}; use a number above 0, or None")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and math.isfinite(value)
