"""Block multiplication in NumPy: a large product from small ones.

    out[rows, columns] = Σ_blocks lhs[rows, block] @ rhs[block, columns]

Suppose that the only multiplier takes matrices of up to 256 × 256, as the matrix unit of a newer TPU does. Any product
is a sum of such small ones: cut the three matrices into blocks of bm × bk, bk × bn and bm × bn, and loop over the
blocks of m, n and k. These three loops are the grid of every Pallas kernel on the ladder, and the slices are its
`BlockSpec`s.

The edge: with m // bm blocks, the last m % bm rows are in no block, without any error. Here the number of blocks is
rounded up, and the last slices end where the matrix ends: NumPy cuts a slice short that runs past the end. The blocks
of a TPU all have one size, so a kernel must refuse, pad or mask instead.

Order: i over m, j over n, kk over k innermost, so that each block of the result is summed without interruption.
"""

from __future__ import annotations

import itertools

import numpy as np

LARGEST_SMALL = 256


def multiply_small(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Multiply two small matrices: the only multiplier that there is.

    Raises:
      ValueError: a side above 256.
    """
    if max(*lhs.shape, *rhs.shape) > LARGEST_SMALL:
        raise ValueError(
            f"blocks {list(lhs.shape)} and {list(rhs.shape)}: the small multiplier takes up to {LARGEST_SMALL}"
        )
    return np.matmul(lhs, rhs)


def block_matmul(lhs: np.ndarray, rhs: np.ndarray, *, bm: int = 256, bk: int = 256, bn: int = 256) -> np.ndarray:
    """`lhs @ rhs` by blocks, right for sizes that the blocks do not divide; float32 sums, or int32 for integers.

    Raises:
      ValueError: the shapes do not match or are empty, or a side of a block is not from 1 to 256.
    """
    if lhs.ndim != 2 or rhs.ndim != 2 or lhs.shape[1] != rhs.shape[0] or 0 in (*lhs.shape, *rhs.shape):
        raise ValueError(f"lhs{list(lhs.shape)} @ rhs{list(rhs.shape)} needs lhs[m, k], rhs[k, n], none zero")
    if min(bm, bk, bn) < 1:
        raise ValueError(f"{bm=}, {bk=}, {bn=}: a block has at least one element")
    (m, k), n = lhs.shape, rhs.shape[1]
    sum_dtype = np.dtype("int32" if np.issubdtype(lhs.dtype, np.integer) else "float32")
    out = np.zeros((m, n), sum_dtype)
    for i, j, kk in itertools.product(range(-(-m // bm)), range(-(-n // bn)), range(-(-k // bk))):
        rows = slice(i * bm, (i + 1) * bm)
        columns = slice(j * bn, (j + 1) * bn)
        terms = slice(kk * bk, (kk + 1) * bk)
        out[rows, columns] += multiply_small(lhs[rows, terms].astype(sum_dtype), rhs[terms, columns].astype(sum_dtype))
    return out


def lost_share(m: int, k: int, n: int, *, bm: int, bk: int, bn: int) -> float:
    """Return the share of the m·k·n products that a grid of `m // bm`, `n // bn`, `k // bk` blocks would leave out."""
    return 1 - (m // bm * bm) * (k // bk * bk) * (n // bn * bn) / (m * k * n)
