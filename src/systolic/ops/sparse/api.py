"""`systolic.sparse_matmul`. JAX is imported by its first call, so that `import systolic` stays quick."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from systolic.chips import Chip
from systolic.schedule import KernelConfig, Tiles

if TYPE_CHECKING:
    import numpy as np
    from jax import Array
    from jax.typing import ArrayLike, DTypeLike
    from jaxtyping import Shaped

    from systolic.ops.engine.backend import Implementation
    from systolic.ops.sparse.array import BlockSparse
    from systolic.ops.sparse.mask import BlockMask


def sparse_matmul(
    lhs: Shaped[Array | np.ndarray, "*batch m k"] | BlockSparse,
    rhs: Shaped[Array | np.ndarray, "*batch k n"] | BlockSparse,
    *,
    mask: BlockMask | BlockSparse | None = None,
    dense_out: bool = False,
    transpose_lhs: bool = False,
    transpose_rhs: bool = False,
    bias: Shaped[Array, " n"] | ArrayLike | None = None,
    activation: str | Callable[[Array], Array] | None = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    implementation: Implementation = None,
    chip: str | Chip | None = None,
    tiles: Tiles | KernelConfig | tuple[int, int, int] | None = None,
) -> Any:  # Shaped[Array, "*batch m n"], or with a mask and without dense_out a BlockSparse
    """Return `activation(lhs @ rhs + bias)` with one block-sparse matrix: lhs (dsd), rhs (dds), or the result (sdd).

    Only existing or wanted blocks are read and multiplied: a NaN elsewhere does no harm. It is differentiable in both
    modes and to any order, and works under `jit`, `vmap` (one after another), `checkpoint` and `scan`. To differentiate
    in a sparse matrix, do so in its blocks: `matrix.with_blocks(blocks)`.

    On a TPU a Pallas kernel runs, whose tiles `systolic.plan` chooses for a `SparseSpec`; elsewhere XLA computes the
    same. The kernel takes blocks of multiples of 128; with other blocks XLA computes it on a TPU too, with a warning.

    Args:
      lhs: [..., m, k]; dtypes as in `systolic.matmul`. Batches broadcast, also of sparse matrices and masks.
      rhs: [..., k, n]; as lhs.
      mask: the wanted blocks of the result, if neither operand is sparse. The result is a `BlockSparse` with the same
        batch.
      dense_out: with a mask, the result is a whole matrix, zero where no block is wanted and outside of the mask's
        diagonals.
      transpose_lhs, transpose_rhs: that operand is given as [k, m] or [n, k]. A dense one is transposed before the
        kernel, except rhs with a mask.
      bias: [n]; not with a mask.
      activation: relu, gelu (tanh approximation), silu, sigmoid, tanh, softplus, or an elementwise function of float32;
        not with a mask.
      precision: of float32 operands, as in `systolic.matmul`.
      preferred_element_type: of the result. Default: the operands' dtype, int32 for int8.
      implementation: None: Pallas on a TPU, else XLA. "pallas", "xla", or "interpret": the Pallas kernel on a CPU, in
        TPU interpret mode, or your own `pltpu.InterpretParams`.
      chip: whose tiles to use. None: the chip of the program being traced.
      tiles: (m, k, n) of one stretch of work in place of the planner's, a block along lines; or a whole configuration.

    Raises:
      SpecError: shapes or dtypes that do not match; both operands are sparse, or none is and there is no mask.
      BlockSparseError: the mask is of another size than the result.
      UnsupportedDtypeError: the chip does not multiply this dtype.
      IllegalTilesError: `tiles` break rules; the message has each of them.
    """
    import jax

    from systolic.ops.engine.backend import backend_of
    from systolic.ops.sparse.arguments import canonical
    from systolic.ops.sparse.array import BlockSparse
    from systolic.ops.sparse.batches import each_of, sparse_batch
    from systolic.ops.sparse.derivative import multiply, multiply_fused, sample

    options = {
        "dense_out": dense_out,
        "transpose_lhs": transpose_lhs,
        "transpose_rhs": transpose_rhs,
        "bias": bias,
        "activation": activation,
        "precision": precision,
        "preferred_element_type": preferred_element_type,
    }
    batch = sparse_batch(lhs, rhs, mask)
    if batch:
        call_options = {"implementation": implementation, "chip": chip, "tiles": tiles}

        def one_product(lhs: Any, rhs: Any, mask: Any) -> Any:
            return sparse_matmul(lhs, rhs, mask=mask, **options, **call_options)

        return each_of(one_product, batch, lhs, rhs, mask)
    call = canonical(lhs, rhs, mask=mask, backend=backend_of(implementation, chip, tiles), **options)
    product, places = call.product, call.places
    first, second = call.operands
    with jax.named_scope("systolic"):
        if product.kind == "sdd":
            out: Any = sample(product, first, second, places)
            if not product.dense_out:
                return BlockSparse.of_sorted(out.astype(call.dtype), places.rows, places.columns, product.shape)
            return out.astype(call.dtype)
        if product.kind == "dds":
            second = second.reshape(math.prod(second.shape[:-1]), second.shape[-1])  # rows of a batch are rows

        def of_dense(dense: Array) -> Any:
            if call.bias is None and product.function is None:
                return multiply(product, first, dense, places)
            return multiply_fused(product, first, dense, call.bias, places)

        for _ in call.batch if product.kind == "dsd" else ():
            of_dense = jax.vmap(of_dense)
        return of_dense(second).reshape(call.shape).astype(call.dtype)
