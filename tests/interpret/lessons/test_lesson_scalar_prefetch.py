"""Chosen blocks, block-sparse products and output masks in TPU interpret mode, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from systolic.bench.accuracy import operands, reference, tolerance
from systolic.lessons.kernels.block_sparse import block_list, sparse_matmul
from systolic.lessons.kernels.output_mask import masked_matmul, next_needed
from systolic.lessons.kernels.scalar_prefetch import ROWS, chosen_blocks, chosen_blocks_by_hand
from systolic.lessons.scalar_prefetch import PUBLISHED_MS
from systolic.spec import MatmulSpec

SIDE = 128


def assert_close(result, expected: np.ndarray, k: int) -> None:
    spec = MatmulSpec.of(expected.shape[0], k, expected.shape[1], "bfloat16")
    assert np.abs(np.asarray(result, np.float64) - expected).max() <= tolerance(spec, 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("choose", [chosen_blocks, chosen_blocks_by_hand])
@pytest.mark.parametrize("order", [[0], [3, 0, 0, 2], [1, 1]], ids=str)
def test_chosen_blocks(choose, order: list[int]) -> None:
    x = np.random.default_rng(0).standard_normal((4 * ROWS, 128), np.float32)
    with pltpu.force_tpu_interpret_mode():
        out = choose(jnp.asarray(order, jnp.int32), jnp.asarray(x))
    np.testing.assert_array_equal(out, np.concatenate([x[i * ROWS : (i + 1) * ROWS] for i in order]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("copies_zeros", [False, True])
@pytest.mark.parametrize(
    "places",
    [[(0, 0)], [(2, 1)], [(0, 1), (0, 2), (2, 0)], [(i, j) for i in range(3) for j in range(4)]],
    ids=["first", "last row", "a row without", "all"],
)
def test_sparse_matmul(places: list[tuple[int, int]], copies_zeros: bool) -> None:
    m, k, n = 3 * SIDE, 4 * SIDE, 2 * SIDE
    dense, rhs = operands(MatmulSpec.of(m, k, n, "bfloat16"))
    lhs = np.zeros_like(dense)
    blocks = []
    for i, j in places:
        at = np.s_[i * SIDE : (i + 1) * SIDE, j * SIDE : (j + 1) * SIDE]
        lhs[at] = dense[at]
        blocks.append(dense[at])
    rows, columns = np.array(places, np.int32).T
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
        out = sparse_matmul(
            jnp.asarray(rows),
            jnp.asarray(columns),
            jnp.asarray(np.stack(blocks)),
            jnp.asarray(rhs),
            jnp.zeros((m, n), jnp.bfloat16),
            bn=SIDE,
            copies_zeros=copies_zeros,
        )
    assert_close(out, reference(lhs, rhs), k)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("skips_copies", [False, True])
@pytest.mark.parametrize(
    "needed", [np.tri(3, 2), np.ones((2, 2)), [[0, 0, 1], [0, 0, 0]], [[1, 0, 0], [0, 0, 0]]], ids=str
)
def test_masked_matmul(needed, skips_copies: bool) -> None:
    needed = np.asarray(needed, np.int32)
    m, k, n = needed.shape[0] * SIDE, 3 * SIDE, needed.shape[1] * SIDE
    lhs, rhs = operands(MatmulSpec.of(m, k, n, "bfloat16"))
    masks = np.stack([np.tri(SIDE, dtype=np.int32), np.ones((SIDE, SIDE), np.int32)])
    kinds = np.arange(needed.size, dtype=np.int32).reshape(needed.shape) % 2
    whole = (masks[kinds] * needed[:, :, None, None]).swapaxes(1, 2).reshape(m, n)
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
        out = masked_matmul(
            *map(jnp.asarray, (needed, *next_needed(needed), kinds, lhs, rhs, masks)),
            skips_copies=skips_copies,
            bk=SIDE,
        )
    assert_close(out, whole * reference(lhs, rhs), k)
    np.testing.assert_array_equal(np.asarray(out, np.float64)[whole == 0], 0)


def test_next_needed() -> None:
    rows, columns = next_needed(np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]]))
    assert rows.tolist() == [[0, 0, 1], [1, 1, 1], [1, 1, 1]]
    assert columns.tolist() == [[1, 1, 2], [2, 2, 2], [2, 2, 2]]


@pytest.mark.parametrize("count", [1, 5, 32])
def test_block_lists_are_sorted_by_rows(count: int) -> None:
    rows, columns = block_list(count, 4, 8)
    places = list(zip(rows.tolist(), columns.tolist(), strict=True))
    assert places == sorted(set(places))
    assert len(places) == count
    assert rows.max() < 4
    assert columns.max() < 8


@pytest.mark.parametrize(("new_stream", "count"), [(False, 86), (True, 107)])
def test_so_many_blocks_have_the_docs(new_stream: bool, count: int) -> None:
    with jax.threefry_partitionable(new_stream):
        key, _ = jax.random.split(jax.random.key(0))
        assert int(jax.random.bernoulli(key, p=0.1, shape=(32, 32)).sum()) == count
    assert f"sparse 16384³, {count} blocks" in PUBLISHED_MS
