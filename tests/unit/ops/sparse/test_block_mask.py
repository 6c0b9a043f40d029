"""Arguments of the constructors of `BlockMask` and `BlockSparse`: places in any order, traced, and hostile."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic import BlockMask, BlockSparse
from systolic.ops.sparse.spec import BlockSparseError

ROWS, COLUMNS = np.array([1, 2, 0, 1]), np.array([2, 0, 1, 0])  # of 2 × 3 blocks; one is padding
SHAPE, BLOCK = (4, 9), (2, 3)


def wanted_by(mask: BlockMask) -> np.ndarray:
    """Return the blocks that a mask selects, computed with a product."""
    lhs, rhs = np.ones((SHAPE[0], 1), "float32"), np.ones((1, SHAPE[1]), "float32")
    out = systolic.sparse_matmul(lhs, rhs, mask=mask, dense_out=True, implementation="xla")
    return np.asarray(out)[:: BLOCK[0], :: BLOCK[1]]


def test_places_in_any_order() -> None:
    mask = BlockMask(ROWS, COLUMNS, SHAPE, BLOCK)
    assert (mask.rows.tolist(), mask.columns.tolist()) == ([0, 1, 1, 2], [1, 0, 2, 0])
    np.testing.assert_array_equal(wanted_by(mask), [[0, 1, 0], [1, 0, 1]])
    lhs, rhs = np.arange(4.0, dtype="float32")[:, None], np.arange(9.0, dtype="float32")[None]
    out = systolic.sparse_matmul(lhs, rhs, mask=mask, implementation="xla")
    np.testing.assert_array_equal(out.to_dense(), lhs @ rhs * np.kron([[0, 1, 0], [1, 0, 1]], np.ones(BLOCK)))


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint32"])
def test_traced_places(dtype: str) -> None:
    """Blocks outside are padding, and so is the second block of a place: nothing else is read or written."""
    rows = np.array([1, -1, 0, 120, 1, 0, 1]).astype(dtype)
    columns = np.array([2, 0, 9, 0, 2, 1, -1]).astype(dtype)
    blocks = np.arange(1.0, 8)[:, None, None] * np.ones(BLOCK)
    mask: Any = jax.jit(lambda rows, columns: BlockMask(rows, columns, SHAPE, BLOCK))(rows, columns)
    np.testing.assert_array_equal(mask.rows, [0, 1, 2, 2, 2, 2, 2])
    np.testing.assert_array_equal(mask.columns, [1, 2, 0, 0, 0, 0, 0])
    matrix: Any = jax.jit(BlockSparse, static_argnums=3)(blocks, rows, columns, SHAPE)
    np.testing.assert_array_equal(matrix.to_dense(), np.kron([[0, 6, 0], [0, 0, 1]], np.ones(BLOCK)))
    x = np.arange(18.0, dtype="float32").reshape(9, 2)
    out = systolic.sparse_matmul(matrix, x, implementation="xla")
    np.testing.assert_array_equal(out, np.asarray(matrix.to_dense()) @ x)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rows": [0, 1, 1, 2]}, "rows is a list"),
        ({"rows": ROWS[:2]}, r"rows \[2\], columns \[4\]"),
        ({"rows": ROWS - 1}, "row -1 and column 1 of a matrix of 2 × 3"),
        ({"columns": COLUMNS + 7}, "column 9"),
        ({"columns": COLUMNS - 1}, "column -1"),
        ({"columns": 0 * COLUMNS}, "two blocks are at row 1 and column 0"),
        ({"columns": COLUMNS.astype(float)}, "float64; use int32"),
        ({"columns": jax.ShapeDtypeStruct((4,), jnp.int32)}, "ShapeDtypeStruct"),
        ({"block": (0, 3)}, "rows of block=0"),
        ({"block": 2}, "block is a int; use a pair"),
        ({"block": (2, 4)}, "2 × 4 do not tile"),
        ({"shape": (4.0, 9.0)}, "rows of shape is a float"),
        ({"shape": (-4, 9)}, "rows of shape=-4"),
        ({"shape": (4, 9, 1)}, "shape has 3 numbers"),
        ({"shape": (10**5000, 9)}, "a number of 16610 bits"),
        ({"lower": 1.5}, "lower is a float"),
        ({"upper": "0"}, "upper is a str"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], says: str) -> None:
    given = {"rows": ROWS, "columns": COLUMNS, "shape": SHAPE, "block": BLOCK, **changes}
    with pytest.raises(BlockSparseError, match=says):
        BlockMask(**given)
    if not {"block", "lower", "upper"} & set(changes):
        with pytest.raises(BlockSparseError, match=says):
            BlockSparse(np.ones((4, *BLOCK)), given["rows"], given["columns"], given["shape"])


def test_what_makers_refuse() -> None:
    mask_of: Any = BlockMask  # of arguments that pyright refuses as well
    matrix_of: Any = BlockSparse
    makers: list[tuple[Any, str]] = [
        (lambda: mask_of.from_mask([[True]], BLOCK), "mask is a list"),
        (lambda: mask_of.from_mask(np.ones((2, 2), bool), BLOCK, most_blocks=-1), "most_blocks=-1"),
        (lambda: mask_of.from_mask(np.ones((2, 2), bool), (2, -3)), "columns of block=-3"),
        (lambda: mask_of.of(np.ones((2, 2))), "ndarray is not a BlockSparse"),
        (lambda: mask_of.banded(SHAPE, BLOCK, None, 0.5), "upper is a float"),
        (lambda: matrix_of.from_dense("ab", BLOCK), "dense is a str"),
        (lambda: matrix_of.from_dense(np.ones(SHAPE), BLOCK, [[True] * 3] * 2), "mask is a list"),
        (lambda: matrix_of.from_dense(np.ones(SHAPE), (384.0, 384.0)), "rows of block is a float"),
        (lambda: matrix_of.from_bcoo(np.ones(SHAPE)), "ndarray is not a BCOO"),
        (lambda: matrix_of.from_dense(np.ones(SHAPE), BLOCK).with_blocks([1]), "blocks is a list"),
    ]
    for make, says in makers:
        with pytest.raises(BlockSparseError, match=says):
            make()


def test_a_mask_is_a_pytree_of_anything() -> None:
    lowest: Any = np.int8(-1)
    mask = BlockMask(ROWS, COLUMNS, SHAPE, BLOCK, lowest, 2**40)
    assert (type(mask.lower), mask.lower, mask.upper) == (int, -1, 2**40)
    for other in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask), dataclasses.replace(mask, upper=2**40)):
        assert (other.shape, other.block, other.lower, other.upper) == (SHAPE, BLOCK, -1, 2**40)
        np.testing.assert_array_equal(other.rows, mask.rows)
    assert jax.tree.map(lambda leaf: object(), mask).block == BLOCK
    assert jax.eval_shape(lambda one: one, mask).rows.shape == (4,)
    batch: Any = jax.vmap(lambda rows: BlockMask(rows, COLUMNS, SHAPE, BLOCK))(np.stack([ROWS, 2 + 0 * ROWS]))
    assert batch.batch == (2,)
    np.testing.assert_array_equal(batch.rows, [[0, 1, 1, 2], [2, 2, 2, 2]])
