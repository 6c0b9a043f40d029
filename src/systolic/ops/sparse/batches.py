"""Products with a batch of sparse matrices, or of dense matrices with a mask: one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from systolic.ops.engine.shapes import broadcast_shapes
from systolic.ops.sparse.array import BlockSparse
from systolic.ops.sparse.mask import BlockMask
from systolic.spec import SpecError


def sparse_batch(lhs: Any, rhs: Any, mask: Any) -> tuple[int, ...]:
    """Return the batch of products whose sparse matrix or mask has a batch; () if none of them has."""
    batches = [_batch_of(operand) for operand in (lhs, rhs, mask)]
    sparse_batches = [
        batch for operand, batch in zip((lhs, rhs), batches, strict=False) if isinstance(operand, BlockSparse)
    ]
    return common_batch(batches) if mask is not None or any(sparse_batches) else ()


def each_of(call: Callable[..., Any], batch: tuple[int, ...], lhs: Any, rhs: Any, mask: Any) -> Any:
    """Call `call(lhs, rhs, mask)` for each element of a batch; an argument without a batch is the same for all."""
    axes, arrays = list[int | None](), list[Any]()
    for operand in (lhs, rhs, mask):
        own_batch = _batch_of(operand)
        axes.append(0 if own_batch else None)
        arrays.append(
            jax.tree.map(lambda leaf, leaf_batch=own_batch: _whole(leaf, leaf_batch, batch), operand)
            if own_batch
            else operand
        )
    for _ in batch:
        call = jax.vmap(call, axes)
    return call(*arrays)


def common_batch(batches: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape to which batches broadcast; raise SpecError if they do not."""
    try:
        return broadcast_shapes(*batches)
    except ValueError as error:
        raise SpecError(f"batch dimensions {' and '.join(map(str, batches))} do not broadcast") from error


def _batch_of(operand: Any) -> tuple[int, ...]:
    return operand.batch if isinstance(operand, BlockSparse | BlockMask) else tuple(getattr(operand, "shape", ())[:-2])


def _whole(leaf: Any, leaf_batch: tuple[int, ...], batch: tuple[int, ...]) -> Any:
    within = jnp.shape(leaf)[len(leaf_batch) :]
    ones = (1,) * (len(batch) - len(leaf_batch))
    return jnp.broadcast_to(jnp.reshape(leaf, (*ones, *leaf_batch, *within)), (*batch, *within))
