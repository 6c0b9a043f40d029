"""`sparse_matmul` in TPU interpret mode and by XLA, beside float64: any pattern, whatever lies where no block is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from selection import examples
from sparse_products import CAREFUL, MASK, RANDOM, check_all, integers, little, padded

import systolic
from systolic import BlockMask, BlockSparse
from systolic.compat import races_found
from systolic.ops.sparse.schedule import ProductSchedule, SampledSchedule
from systolic.ops.sparse.spec import BlockSparseError, SparseSpec
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import SpecError


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn"])
def test_each_dtype_by_xla(dtype: str) -> None:
    check_all(MASK, 16, dtype, 24, "xla")


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_each_dtype_by_the_kernels(dtype: str) -> None:
    check_all(MASK[::2, ::2], 128, dtype, 128, "interpret", chip="v5e")


def patterns(rows: int) -> st.SearchStrategy[np.ndarray]:
    """Masks of so many rows and columns, also empty, full, and of one row."""
    places = st.lists(st.booleans(), min_size=rows**2, max_size=rows**2)
    return places.map(lambda flat: np.array(flat).reshape(rows, rows))


UNHURRIED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@pytest.mark.exhaustive
@settings(max_examples=examples(6), derandomize=True, deadline=None, suppress_health_check=UNHURRIED)
@given(patterns(3))
def test_any_pattern(mask: np.ndarray) -> None:
    check_all(mask, 128, "float32", 128, CAREFUL, more=10 - int(mask.sum()))
    assert not races_found()


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=UNHURRIED)
@given(
    st.integers(1, 5).flatmap(patterns),
    st.sampled_from([128, 256]),
    st.sampled_from([96, 128, 200, 384]),
    st.sampled_from(["v4", "v5e", "v7x"]),
)
def test_many_patterns(mask: np.ndarray, block: int, sweep: int, chip: str) -> None:
    check_all(mask, block, "float32", sweep, CAREFUL, chip=chip)
    assert not races_found()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["v5e", "v4"])  # of v4 both cores work
def test_several_chunks_and_panels_of_products(name: str) -> None:
    mask = np.random.default_rng(1).random((5, 4)) < 0.6
    mask[1], mask[4] = False, False
    chip = little(name, 2 * 4 + 4 * 1 + 1 + 6)  # panels, lines of the result, sums, blocks
    tiles = Tiles(tile_m=128, tile_k=256, tile_n=128)
    config = KernelConfig(tiles=tiles, subtile_m=128, subtile_n=128, pipeline="manual")
    matrix, dense = padded(mask, (128, 128), "float32", 3)
    spec = SparseSpec(
        kind="dsd", m=640, k=512, n=384, block_rows=128, block_columns=128, blocks=int(mask.sum()),
        most_blocks=matrix.most_blocks, dtype="float32", dtype_out="float32",
    )  # fmt: skip
    schedule = ProductSchedule.of(spec, config, chip)
    assert schedule.capacity < mask.sum()
    assert (schedule.grid, schedule.joined) == (3, 2)
    for turned in (False, True):
        x = integers((512, 384))
        if turned:
            out = systolic.sparse_matmul(
                np.ascontiguousarray(x.T), matrix, transpose_rhs=True, implementation=CAREFUL, chip=chip, tiles=config
            )
            out = out.T
        else:
            out = systolic.sparse_matmul(matrix, x, implementation=CAREFUL, chip=chip, tiles=config)
        np.testing.assert_array_equal(out, dense @ x)
    assert not races_found()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["v5e", "v4"])
def test_several_chunks_and_panels_of_a_sampled_product(name: str) -> None:
    chip = little(name, 2 * 4 + 3 + 4 + 1 + 2 + 3)  # panels, rows, blocks of the result, zeros, sums
    config = KernelConfig(
        tiles=Tiles(tile_m=128, tile_k=128, tile_n=256), subtile_m=64, subtile_n=256, pipeline="manual"
    )
    mask = BlockMask.banded((640, 512), (128, 128), -200, 150)
    spec = SparseSpec(
        kind="sdd", m=640, k=384, n=512, block_rows=128, block_columns=128, blocks=len(mask.rows),
        most_blocks=len(mask.rows), dtype="float32", dtype_out="float32", dense_out=True,
    )  # fmt: skip
    schedule = SampledSchedule.of(spec, config, chip)
    assert 2 * schedule.slots < len(mask.rows)
    assert schedule.grid_k == 3
    lhs, rhs = integers((640, 384)), integers((384, 512))
    out = systolic.sparse_matmul(lhs, rhs, mask=mask, dense_out=True, implementation=CAREFUL, chip=chip, tiles=config)
    expected = lhs @ rhs
    row, column = np.indices(expected.shape)
    np.testing.assert_array_equal(out, np.where((column - row >= -200) & (column - row <= 150), expected, 0))
    assert not races_found()


@pytest.mark.exhaustive
def test_what_is_not_there_is_not_read() -> None:
    """NaN in every row of rhs that meets no block, and in rows and columns of which no block is wanted."""
    mask = np.array([[1, 0], [0, 0]], bool)
    matrix, dense = padded(mask, (128, 128), "float32")
    x = integers((256, 128))
    expected = dense @ x
    x[128:] = np.nan
    for implementation in ("xla", CAREFUL):
        out = systolic.sparse_matmul(matrix, x, implementation=implementation)
        np.testing.assert_array_equal(out, expected)
        lhs = integers((256, 128))
        lhs[128:] = np.nan
        rhs = x[:128].repeat(2, 1)
        rhs[:, 128:] = np.nan
        out = systolic.sparse_matmul(lhs, rhs, mask=matrix, dense_out=True, implementation=implementation)
        np.testing.assert_array_equal(out[:128, :128], lhs[:128] @ rhs[:, :128])
        assert not np.asarray(out)[128:].any()
        assert not np.asarray(out)[:, 128:].any()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["dsd", "dds"])
def test_bias_and_activation(kind: str) -> None:
    matrix, dense = padded(MASK, (128, 128), "float32")
    bias = integers((dense.shape[0] if kind == "dsd" else dense.shape[1],))
    for implementation in ("xla", CAREFUL):
        if kind == "dsd":
            x, bias = integers((dense.shape[1], 130)), integers((130,))
            given_sides, total = (matrix, x), dense @ x
        else:
            x, bias = integers((20, dense.shape[0])), integers((dense.shape[1],))
            given_sides, total = (x, matrix), x @ dense
        out = systolic.sparse_matmul(*given_sides, bias=bias, activation="relu", implementation=implementation)
        np.testing.assert_array_equal(out, np.maximum(total + bias, 0))


@pytest.mark.exhaustive
def test_gradients_close_over_the_three() -> None:
    """First and second derivatives are those of products of whole matrices, by the kernels and by XLA."""
    mask = MASK[::2, ::2] & [[True, True], [False, True]]
    matrix, dense = padded(mask, (128, 128), "float32")
    places = np.kron(mask, np.ones((128, 128)))
    x, y, z = integers((256, 128)), integers((128, 256)), integers((256, 256))

    def ours(blocks: Any, x: Any, y: Any, implementation: Any) -> Any:
        sparse = matrix.with_blocks(blocks)
        sampled = systolic.sparse_matmul(y.T, x.T, mask=sparse, implementation=implementation)
        left = systolic.sparse_matmul(sparse, x, implementation=implementation)
        right = systolic.sparse_matmul(y, sampled, implementation=implementation)
        masked = systolic.sparse_matmul(y.T, x.T, mask=matrix, dense_out=True, implementation=implementation)
        return (left**2).sum() + (right * 3).sum() + (masked * z).sum()

    def plain(dense: Any, x: Any, y: Any) -> Any:
        sampled = (y.T @ x.T) * places
        return ((dense * places @ x) ** 2).sum() + (y @ sampled * 3).sum() + (sampled * z).sum()

    with jax.default_matmul_precision("highest"):
        expected = jax.grad(plain, (0, 1, 2))(jnp.asarray(dense, jnp.float32), x, y)
        for implementation in ("xla", "interpret"):
            gradient = jax.jit(jax.grad(ours, (0, 1, 2)), static_argnums=3)
            found = gradient(jnp.nan_to_num(matrix.blocks), x, y, implementation)
            np.testing.assert_allclose(matrix.with_blocks(found[0]).to_dense(), expected[0] * places, rtol=1e-5)
            for one, other in zip(found[1:], expected[1:], strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5)

        def twice(fn: Any, first: Any, *more: Any) -> Any:
            return jax.grad(lambda x: (jax.grad(fn, 1)(first, x, y, *more) ** 2).sum())(x)

        np.testing.assert_allclose(
            twice(ours, jnp.nan_to_num(matrix.blocks), "xla"), twice(plain, jnp.asarray(dense, jnp.float32)), rtol=1e-5
        )


def test_gradient_of_a_fused_product() -> None:
    matrix, dense = padded(MASK, (16, 16), "float32")
    x, bias = RANDOM.normal(size=(48, 20)).astype("float32"), RANDOM.normal(size=20).astype("float32")

    def loss(x: Any, bias: Any, which: str) -> Any:
        if which == "ours":
            return systolic.sparse_matmul(matrix, x, bias=bias, activation="silu", implementation="xla").sum()
        return jax.nn.silu(jnp.asarray(dense, jnp.float32) @ x + bias).sum()

    for one, other in zip(*(jax.grad(loss, (0, 1))(x, bias, which) for which in ("ours", "plain")), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)


def test_how_many_blocks_may_change_under_jit() -> None:
    product: Any = jax.jit(lambda matrix, x: systolic.sparse_matmul(matrix, x, implementation="interpret"))
    x = integers((256, 128))
    for mask in ([[1, 0], [0, 1]], [[0, 0], [0, 0]], [[1, 1], [1, 1]]):
        its = np.array(mask, bool)
        matrix, dense = padded(its, (128, 128), "float32", 4 - int(its.sum()))
        np.testing.assert_array_equal(product(matrix, x), dense @ x)
    assert product._cache_size() == 1


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_nothing_at_all(implementation: Any) -> None:
    matrix = BlockSparse.from_dense(np.zeros((256, 128), "float32"), (128, 128))
    x, y = np.ones((128, 128), "float32"), np.ones((128, 256), "float32")
    assert matrix.most_blocks == 0
    assert not np.asarray(systolic.sparse_matmul(matrix, x, implementation=implementation)).any()
    assert not np.asarray(systolic.sparse_matmul(y, matrix, implementation=implementation)).any()
    out = systolic.sparse_matmul(y.T, x, mask=matrix, dense_out=True, implementation=implementation)
    np.testing.assert_array_equal(out, np.zeros((256, 128)))


def test_what_is_refused() -> None:
    matrix, _ = padded(MASK, (8, 16), "float32")
    dense = np.ones((24, 64), "float32")
    causal = BlockMask.causal((24, 24), (8, 8))
    with pytest.raises(SpecError, match="both sparse"):
        systolic.sparse_matmul(matrix, matrix)
    with pytest.raises(SpecError, match="no mask"):
        systolic.sparse_matmul(dense, dense.T)
    with pytest.raises(SpecError, match="k=48"):
        systolic.sparse_matmul(matrix, dense)
    with pytest.raises(SpecError, match="there is a mask"):
        systolic.sparse_matmul(matrix, dense.T, mask=causal)
    with pytest.raises(BlockSparseError, match=r"\[24, 24\]"):
        systolic.sparse_matmul(dense.T, dense, mask=causal, dense_out=True)
    with pytest.raises(SpecError, match="dense_out"):
        systolic.sparse_matmul(dense, dense.T, mask=causal)
    with pytest.raises(SpecError, match="bias"):
        systolic.sparse_matmul(dense, dense.T, mask=causal, dense_out=True, bias=np.ones(24))
    with pytest.raises(SpecError, match=r"bias of shape \[3\]"):
        systolic.sparse_matmul(matrix, dense[:, :48].T, bias=np.ones(3, "float32"))
    with pytest.raises(SpecError, match="dense anyway"):
        systolic.sparse_matmul(matrix, dense.T, dense_out=True)
    with pytest.raises(SpecError, match="do not broadcast"):
        systolic.sparse_matmul(np.stack([dense] * 3), np.stack([dense.T] * 2), mask=causal, dense_out=True)
