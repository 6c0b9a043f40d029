"""`BlockSparse` and `BlockMask`: what they are made from and turned into, and what they refuse."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.sparse import BCOO
from scipy.sparse import bsr_array
from selection import examples

from systolic import BlockMask, BlockSparse
from systolic.ops.sparse.spec import BlockSparseError

BLOCK = (2, 3)


def matrix(mask: np.ndarray) -> np.ndarray:
    random = np.random.default_rng(0)
    return random.integers(1, 9, (mask.shape[0] * 2, mask.shape[1] * 3)) * np.kron(mask, np.ones(BLOCK, int))


@pytest.mark.exhaustive
@settings(max_examples=examples(8), deadline=None, derandomize=True)
@given(
    st.integers(1, 4).flatmap(
        lambda rows: st.integers(1, 4).flatmap(
            lambda columns: st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns).map(
                lambda flat: np.array(flat).reshape(rows, columns)
            )
        )
    ),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_there_and_back(mask: np.ndarray, more: int, random: Any) -> None:
    dense = matrix(mask)
    found = BlockSparse.from_dense(dense, BLOCK, most_blocks=int(mask.sum()) + more)
    assert found.most_blocks == mask.sum() + more
    np.testing.assert_array_equal(found.to_dense(), dense)
    np.testing.assert_array_equal(found.T.to_dense(), dense.T)
    np.testing.assert_array_equal(found.T.T.to_dense(), dense)
    np.testing.assert_array_equal(found.to_bsr().toarray(), dense)
    np.testing.assert_array_equal(BlockSparse.from_bsr(bsr_array(dense, blocksize=BLOCK)).to_dense(), dense)
    as_bcoo = found.to_bcoo()
    cut = dense.reshape(mask.shape[0], 2, mask.shape[1], 3).swapaxes(1, 2)
    np.testing.assert_array_equal(as_bcoo.todense(), cut)
    np.testing.assert_array_equal(BlockSparse.from_bcoo(as_bcoo).to_dense(), dense)
    # In any order.
    order = list(range(found.most_blocks))
    random.shuffle(order)
    rows, columns = (np.asarray(one)[order] for one in (found.rows, found.columns))
    again = BlockSparse(np.asarray(found.blocks)[order], rows, columns, found.shape)
    np.testing.assert_array_equal(again.rows, found.rows)
    np.testing.assert_array_equal(again.columns, found.columns)
    np.testing.assert_array_equal(again.to_dense(), dense)


def test_it_is_a_pytree_that_can_be_pickled() -> None:
    found = BlockSparse.from_dense(matrix(np.eye(2, dtype=bool)), BLOCK)
    double = jax.jit(lambda one: one.with_blocks(2 * one.blocks))(found)
    np.testing.assert_array_equal(double.to_dense(), 2 * found.to_dense())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(found)).to_dense(), found.to_dense())
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(found)] == [
        ".blocks",
        ".rows",
        ".columns",
    ]


def test_traced_places_are_sorted_too() -> None:
    blocks, rows, columns = np.ones((3, *BLOCK)), np.array([2, 1, 0]), np.array([0, 0, 1])
    found = jax.jit(lambda blocks, rows, columns: BlockSparse(blocks, rows, columns, (4, 6)))(blocks, rows, columns)
    assert np.asarray(found.rows).tolist() == [0, 1, 2]
    assert np.asarray(found.columns).tolist() == [1, 0, 0]


def test_a_traced_mask_with_room() -> None:
    mask = np.array([[True, False], [True, True]])
    dense = matrix(mask)
    found = jax.jit(lambda dense, mask: BlockSparse.from_dense(dense, BLOCK, mask, most_blocks=4))(dense, mask)
    assert np.asarray(found.rows).tolist() == [0, 1, 1, 2]
    np.testing.assert_array_equal(found.to_dense(), dense)


@pytest.mark.parametrize(
    ("rows", "columns", "shape", "says"),
    [
        ([0, 0], [1, 1], (4, 6), "row 0 and column 1"),
        ([0, 3], [1, 1], (4, 6), "row 3 and column 1"),
        ([0, 1], [1, 2], (4, 6), "row 1 and column 2"),
        ([-1, 1], [1, 1], (4, 6), "row -1"),
        ([0, 1], [1, 1], (5, 6), "2 × 3"),
        ([0, 1, 1], [1, 1, 0], (4, 6), r"rows \[3\]"),
        ([0.0, 1.0], [1, 1], (4, 6), "float64"),
    ],
)
def test_what_is_no_matrix(rows: list[Any], columns: list[int], shape: tuple[int, int], says: str) -> None:
    with pytest.raises(BlockSparseError, match=says):
        BlockSparse(np.ones((2, *BLOCK)), np.array(rows), np.array(columns), shape)


@pytest.mark.exhaustive
def test_other_refusals() -> None:
    with pytest.raises(BlockSparseError, match="most_blocks=1"):
        BlockSparse.from_dense(np.ones((4, 6)), BLOCK, most_blocks=1)
    with pytest.raises(BlockSparseError, match="1 × 1"):
        BlockSparse.from_dense(np.ones((2, 3)), BLOCK, np.ones((2, 2), bool))
    with pytest.raises(BlockSparseError, match="traced"):
        jax.jit(lambda dense: BlockSparse.from_dense(dense, BLOCK))(np.ones((2, 3)))
    with pytest.raises(BlockSparseError, match="n_dense=0"):
        BlockSparse.from_bcoo(BCOO.fromdense(jnp.ones((2, 3))))
    with pytest.raises(BlockSparseError, match="ndarray"):
        BlockSparse.from_bsr(np.ones((2, 3)))
    with pytest.raises(BlockSparseError, match="list"):
        BlockSparse([[[1.0]]], np.zeros(1, int), np.zeros(1, int), (1, 1))
    with pytest.raises(BlockSparseError, match=r"\[1, 2, 3\]"):
        BlockSparse.from_dense(np.ones((2, 3)), BLOCK).with_blocks(np.ones((2, 2, 3)))


@pytest.mark.exhaustive
def test_a_batch_of_matrices() -> None:
    random = np.random.default_rng(0)
    masks = random.random((2, 3, 2, 4)) < 0.5
    masks[0, 1], masks[1, 2] = False, True
    dense = np.stack([[matrix(one) for one in some] for some in masks])
    found = BlockSparse.from_dense(dense, BLOCK)
    assert (found.batch, found.shape, found.ndim, found.most_blocks) == ((2, 3), dense.shape[2:], 4, 8)
    np.testing.assert_array_equal(found.to_dense(), dense)
    np.testing.assert_array_equal(found.T.to_dense(), dense.mT)
    cut = dense.reshape(2, 3, 2, 2, 4, 3).swapaxes(3, 4)
    np.testing.assert_array_equal(found.to_bcoo().todense(), cut)
    np.testing.assert_array_equal(BlockSparse.from_bcoo(found.to_bcoo()).to_dense(), dense)
    order = np.argsort(random.random(found.rows.shape))
    rows, columns = (np.take_along_axis(np.asarray(one), order, -1) for one in (found.rows, found.columns))
    blocks = np.take_along_axis(np.asarray(found.blocks), order[..., None, None], 2)
    for again in (BlockSparse, jax.jit(BlockSparse, static_argnums=3)):
        its = again(blocks, rows, columns, found.shape)
        np.testing.assert_array_equal(its.rows, found.rows)
        np.testing.assert_array_equal(its.to_dense(), dense)
    one_mask = BlockSparse.from_dense(dense, BLOCK, masks[0, 0])
    np.testing.assert_array_equal(one_mask.to_dense(), dense * np.kron(masks[0, 0], np.ones(BLOCK)))
    of_one = jax.tree.map(lambda leaf: leaf[1, 2], found)
    np.testing.assert_array_equal(of_one.to_dense(), dense[1, 2])
    traced = jax.jit(lambda dense, masks: BlockSparse.from_dense(dense, BLOCK, masks, most_blocks=9))(dense, masks)
    np.testing.assert_array_equal(traced.to_dense(), dense)
    assert BlockMask.from_mask(masks, BLOCK).batch == (2, 3)
    with pytest.raises(BlockSparseError, match=r"batch of \[2, 3\]"):
        found.to_bsr()
    rows = np.array([[0, 1], [1, 1]])
    with pytest.raises(BlockSparseError, match="two blocks are at row 1 and column 0"):
        BlockSparse(np.ones((2, 2, *BLOCK)), rows, np.zeros_like(rows), (4, 6))
    with pytest.raises(BlockSparseError, match="block 1, 1 is at row 1 and column 2"):
        BlockSparse(np.ones((2, 2, *BLOCK)), rows, np.array([[0, 1], [0, 2]]), (4, 6))


def test_bands_hold_each_block_with_an_element_within() -> None:
    for shape, block in (((8, 12), (2, 3)), ((12, 6), (4, 2)), ((6, 6), (3, 3))):
        row, column = np.indices(shape)
        for lower, upper in ((None, 0), (-3, 2), (1, None), (4, 5), (None, None)):
            within = np.ones(shape, bool)
            within &= (column - row >= lower) if lower is not None else True
            within &= (column - row <= upper) if upper is not None else True
            grid = (shape[0] // block[0], shape[1] // block[1])
            wanted = within.reshape(grid[0], block[0], grid[1], block[1]).any((1, 3))
            found = BlockMask.banded(shape, block, lower, upper)
            assert (found.lower, found.upper, found.shape, found.grid) == (lower, upper, shape, grid)
            np.testing.assert_array_equal(np.stack([found.rows, found.columns]), np.nonzero(wanted))
    mask = BlockMask.causal((6, 6), (3, 3))
    assert list(zip(mask.rows, mask.columns, strict=True)) == [(0, 0), (1, 0), (1, 1)]
    other = jax.tree.map(lambda one: one, mask)
    assert (other.upper, other.block) == (0, (3, 3))
