"""Check the arguments of `sparse_matmul`, and bring them into canonical form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from systolic.ops.engine.activations import activation_of
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.dtypes import common_dtype, fused_array, given_dtype, operand, result_dtype, stored_dtype
from systolic.ops.engine.precision import precision_named
from systolic.ops.sparse.array import BlockSparse
from systolic.ops.sparse.batches import common_batch
from systolic.ops.sparse.mask import BlockMask
from systolic.ops.sparse.places import is_known
from systolic.ops.sparse.product import Places, SparseProduct
from systolic.ops.sparse.spec import BlockSparseError, SparseKind
from systolic.spec import SpecError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """A call in canonical form."""

    product: SparseProduct
    # Blocks and the dense matrix of dsd and dds, lhs and rhs of sdd; a dense one may have a batch.
    operands: tuple[Array, Array]
    bias: Array | None
    places: Places
    batch: tuple[int, ...]
    shape: tuple[int, ...]  # of a dense result
    dtype: str  # the dtype that the caller expects


def canonical(
    lhs: Any,
    rhs: Any,
    *,
    mask: Any,
    dense_out: bool,
    transpose_lhs: bool,
    transpose_rhs: bool,
    bias: Any,
    activation: Any,
    precision: Any,
    preferred_element_type: Any,
    backend: Backend,
) -> Call:
    """Check the arguments.

    Raises:
      SpecError: shapes or dtypes that do not match; no operand is sparse and there is no mask, or both are sparse.
      BlockSparseError: the sparse matrix or the mask is of another size than the product.
    """
    kind, sparse = _kind(lhs, rhs, mask, dense_out)
    lhs_is_sparse, rhs_is_sparse = kind == "dsd", kind == "dds"
    left, lhs_given = _operand(lhs, "lhs", sparse=lhs_is_sparse, transposed=transpose_lhs)
    native = kind == "sdd" and transpose_rhs  # its kernel reads rhs as it is stored
    right, rhs_given = _operand(rhs, "rhs", sparse=rhs_is_sparse, transposed=transpose_rhs and not native)
    turned = transpose_lhs if kind == "dsd" else transpose_rhs and kind == "dds"
    (m, k), (inner, n) = left.shape[-2:], right.shape[-2:]
    m, k = (k, m) if turned and kind == "dsd" else (m, k)
    inner, n = (n, inner) if native or (turned and kind == "dds") else (inner, n)
    if k != inner:
        raise SpecError(
            f"lhs{list(left.shape)} has k={k}, rhs{list(right.shape)} has k={inner}: they have to agree; check "
            "transpose_lhs and transpose_rhs"
        )
    if kind == "sdd" and sparse.shape != (m, n):
        raise BlockSparseError(f"the mask is of a matrix of shape {list(sparse.shape)}, the product's is {[m, n]}")
    if kind == "sdd" and (bias is not None or activation is not None):
        raise SpecError("bias and activation do not go with a mask; apply them to the result")
    dtype = common_dtype(left.dtype.name, right.dtype.name)
    dtype_out = result_dtype((dtype, dtype), (lhs_given, rhs_given), preferred_element_type)
    name, function = activation_of(activation, in_kernel=backend.in_kernel)
    matrix = {"dsd": left, "dds": right, "sdd": sparse}[kind]
    rows = matrix.rows
    expected = int(np.sum(np.asarray(rows) < matrix.grid[0])) if is_known(rows) else rows.shape[0]
    product = SparseProduct(
        backend=backend,
        kind=kind,
        shape=matrix.shape,
        block=matrix.block,
        expected=expected,
        precision=precision_named(precision),
        dtype_out=stored_dtype(dtype_out),
        transpose_sparse=turned,
        transpose_rhs=native,
        dense_out=dense_out,
        lower=_diagonal(sparse, "lower"),
        upper=_diagonal(sparse, "upper"),
        activation=name,
        function=function,
    )
    dense = [side for side in (left, right) if not isinstance(side, BlockSparse)]
    batch = common_batch([array.shape[:-2] for array in dense])
    first, second = _arrays(kind, left, right)
    return Call(
        product=product,
        operands=(first.astype(dtype), second.astype(dtype)),
        bias=None if bias is None else _bias(bias, n),
        places=Places(rows, matrix.columns),
        batch=batch,
        shape=(*batch, m, n),
        dtype=dtype_out,
    )


def _kind(lhs: Any, rhs: Any, mask: Any, dense_out: bool) -> tuple[SparseKind, Any]:
    sides = [name for name, operand in (("lhs", lhs), ("rhs", rhs)) if isinstance(operand, BlockSparse)]
    if len(sides) == 2:
        raise SpecError("lhs and rhs are both sparse; make one dense with .to_dense()")
    if sides and mask is not None:
        raise SpecError(f"{sides[0]} is sparse, and there is a mask; make {sides[0]} dense with .to_dense()")
    if sides:
        if dense_out:
            raise SpecError(f"{sides[0]} is sparse, so the result is dense anyway; leave out dense_out")
        return ("dsd", lhs) if sides == ["lhs"] else ("dds", rhs)
    if isinstance(mask, BlockSparse):
        mask = BlockMask.of(mask)
    if not isinstance(mask, BlockMask):
        described = "no mask" if mask is None else f"mask is a {type(mask).__name__}"
        raise SpecError(
            f"neither lhs nor rhs is a BlockSparse, and {described}; use systolic.BlockMask, or systolic.matmul"
        )
    if not dense_out and (mask.lower is not None or mask.upper is not None):
        raise SpecError("diagonals of a mask are zeroed in a dense result; use dense_out=True, or BlockMask.from_mask")
    return "sdd", mask


def _operand(value: Any, name: str, *, sparse: bool, transposed: bool) -> tuple[Any, str]:
    if sparse:
        dtype = given_dtype(value.blocks, f"{name}.blocks")
        return value.with_blocks(operand(value.blocks, f"{name}.blocks")), dtype
    dtype, array = given_dtype(value, name), operand(value, name)
    if array.ndim < 2:
        raise SpecError(f"{name} of shape {list(array.shape)} has to be a matrix")
    return (array.mT if transposed else array), dtype


def _diagonal(sparse: Any, name: str) -> int | None:
    """Return a limit of the band, clipped to an int32 that keeps the same elements on the same side."""
    limit, (rows, columns) = getattr(sparse, name, None), sparse.shape
    return None if limit is None else max(-rows, min(limit, columns))


def _arrays(kind: SparseKind, left: Any, right: Any) -> tuple[Array, Array]:
    if kind == "dsd":
        return left.blocks, right
    return (right.blocks, left) if kind == "dds" else (left, right)


def _bias(value: Any, n: int) -> Array:
    array = fused_array(value, "bias")
    if array.shape not in ((n,), ()):
        raise SpecError(f"bias of shape {list(array.shape)}; it has to be [{n}]")
    return jnp.broadcast_to(array, (n,))
