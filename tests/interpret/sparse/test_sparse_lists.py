"""Lists of blocks that are cut into several calls, and batches of sparse matrices."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sparse_products import CAREFUL, MASK, check_all, integers, padded

import systolic
from systolic import BlockMask, BlockSparse
from systolic.compat import races_found
from systolic.ops.sparse import call_lists as sparse_lists
from systolic.ops.sparse.spec import SparseSpec


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> systolic.Chip:
    """A chip whose SMEM holds lists of 16 blocks, of 8 where they are sorted anew."""
    monkeypatch.setattr(sparse_lists, "_ALIGNED_WORDS", 8)
    words = 2 * 8 + 4 * 8
    return dataclasses.replace(systolic.chip("v5e"), name="short", aliases=(), usable_smem_bytes_per_core=4 * words)


LONG = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [1, 1, 0, 1, 1]], bool)


@pytest.mark.exhaustive
def test_a_list_that_is_cut_into_several_calls(short: systolic.Chip) -> None:
    more = 14  # also a call that has nothing but padding
    most = int(LONG.sum()) + more
    plain = SparseSpec(
        kind="dsd", m=640, k=640, n=128, block_rows=128, block_columns=128, blocks=18, most_blocks=most,
        dtype="float32", dtype_out="float32",
    )  # fmt: skip
    for kind, turned, length in (("dsd", False, 16), ("dsd", True, 8), ("dds", False, 8), ("dds", True, 16)):
        spec = dataclasses.replace(plain, kind=kind, m=640, n=640, transpose_sparse=turned)
        call = sparse_lists.one_call(spec, short)
        assert call.most_blocks == length
        assert sparse_lists.calls_of(spec, call) == -(-most // length) > 1
    begins = np.searchsorted(np.nonzero(LONG)[0], np.arange(6))
    assert not {8, 16} & set(begins), "rows go over the cuts"
    check_all(LONG, 128, "float32", 130, CAREFUL, more=more, chip=short)
    assert not races_found()


@pytest.mark.exhaustive
def test_gradients_of_a_list_that_is_cut(short: systolic.Chip) -> None:
    matrix, dense = padded(LONG, (128, 128), "float32")
    matrix = matrix.with_blocks(jnp.nan_to_num(matrix.blocks))
    x, bias = integers((640, 128)), integers((128,))
    places = np.kron(LONG, np.ones((128, 128)))

    def ours(blocks: Any, x: Any, bias: Any) -> Any:
        left = systolic.sparse_matmul(
            matrix.with_blocks(blocks), x, bias=bias, activation="relu", implementation="interpret", chip=short
        )
        masked = systolic.sparse_matmul(
            x, x, mask=matrix, dense_out=True, transpose_rhs=True, implementation="interpret", chip=short
        )
        return (left**2).sum() + (masked**2).sum()

    def plain(dense: Any, x: Any, bias: Any) -> Any:
        return (jax.nn.relu(dense @ x + bias) ** 2).sum() + ((x @ x.T * places) ** 2).sum()

    with jax.default_matmul_precision("highest"):
        expected = jax.grad(plain, (0, 1, 2))(jnp.asarray(dense, jnp.float32), x, bias)
        found = jax.jit(jax.grad(ours, (0, 1, 2)))(matrix.blocks, x, bias)
    np.testing.assert_allclose(matrix.with_blocks(found[0]).to_dense(), expected[0] * places, rtol=1e-5)
    for one, other in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_batches(implementation: Any) -> None:
    block = (128, 128) if implementation == "interpret" else (8, 16)
    matrix, dense = padded(MASK[:2, :2], block, "float32")
    x, y = integers((2, dense.shape[1], 128)), integers((2, 3, 16, dense.shape[0]))
    np.testing.assert_array_equal(systolic.sparse_matmul(matrix, x, implementation=implementation), dense @ x)
    np.testing.assert_array_equal(systolic.sparse_matmul(y, matrix, implementation=implementation), y @ dense)
    z = integers((128, dense.shape[1]))
    mask = BlockMask.causal(dense.shape, block)
    out = systolic.sparse_matmul(y[:, 0].mT, z[:16], mask=mask, dense_out=True, implementation=implementation)
    np.testing.assert_array_equal(out, np.tril(y[:, 0].mT @ z[:16]))


MASKS = np.array([[[1, 0], [1, 1]], [[0, 0], [0, 1]]], bool)


@pytest.mark.parametrize("implementation", ["xla", pytest.param("interpret", marks=pytest.mark.exhaustive)])
def test_a_batch_of_sparse_matrices(implementation: Any) -> None:
    """Each has blocks of its own at places of its own; dense operands have one each, or one for all."""
    block = (128, 128) if implementation == "interpret" else (8, 16)
    dense = integers((2, 2 * block[0], 2 * block[1])) * np.kron(MASKS, np.ones((1, *block)))
    matrix = BlockSparse.from_dense(dense.astype("float32"), block, MASKS)
    assert (matrix.batch, matrix.most_blocks) == ((2,), 3)
    multiply: Any = functools.partial(systolic.sparse_matmul, implementation=implementation)
    rows, columns = matrix.shape
    x, y = integers((2, columns, 128)), integers((3 if implementation == "xla" else 1, 1, 16, rows))
    np.testing.assert_array_equal(multiply(matrix, x), dense @ x)
    z = integers((rows, 128))
    np.testing.assert_array_equal(multiply(matrix, z, transpose_lhs=True), dense.mT @ z)
    np.testing.assert_array_equal(multiply(y, matrix), y @ dense)
    # Beside a mask: one for each, or one for all and a sparse result.
    left, right = integers((2, rows, 128)), integers((128, columns))
    at = np.kron(MASKS, np.ones((1, *block)))
    masked = multiply(left, right, mask=matrix, dense_out=True)
    np.testing.assert_array_equal(masked, left @ right * at)
    found = multiply(left, right, mask=BlockMask.from_mask(MASKS[0], block))
    assert found.batch == (2,)
    np.testing.assert_array_equal(found.to_dense(), left @ right * at[0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_gradients_of_a_batch_of_sparse_matrices(implementation: Any) -> None:
    block = (128, 128) if implementation == "interpret" else (8, 16)
    at = np.kron(MASKS, np.ones((1, *block)))
    dense = (integers((2, 2 * block[0], 2 * block[1])) * at).astype("float32")
    matrix = BlockSparse.from_dense(dense, block, MASKS)
    x = integers((dense.shape[2], 128))  # one for both: its gradient is a sum over them

    def ours(blocks: Any, x: Any) -> Any:
        return (systolic.sparse_matmul(matrix.with_blocks(blocks), x, implementation=implementation) ** 2).sum()

    with jax.default_matmul_precision("highest"):
        expected = jax.grad(lambda dense, x: ((dense @ x) ** 2).sum(), (0, 1))(dense, x)
        found = jax.jit(jax.grad(ours, (0, 1)))(matrix.blocks, x)
    np.testing.assert_array_equal(matrix.with_blocks(found[0]).to_dense(), expected[0] * at)
    np.testing.assert_array_equal(found[1], expected[1])
