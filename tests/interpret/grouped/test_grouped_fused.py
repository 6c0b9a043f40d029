"""Grouped products with a second right-hand side, and into an existing array."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import grouped_reference as reference
import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import systolic
from systolic.compat import races_found
from systolic.ops.grouped import code_blocks
from systolic.schedule import KernelConfig, Tiles

CAREFUL = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")


def config(panel: int, k: int, tile_n: int, rows: int, columns: int) -> KernelConfig:
    tiles = Tiles(tile_m=panel, tile_k=k, tile_n=tile_n)
    return KernelConfig(tiles=tiles, subtile_m=rows, subtile_n=columns, pipeline="manual")


def gated(
    lhs: Any, gate: Any, up: Any, sizes: list[int], *, transpose_rhs: bool = False, joined: bool = False, **rest: Any
) -> jax.Array:
    """The gated product of matrices that are given as [groups, k, n]."""
    if transpose_rhs:
        gate, up = (one.swapaxes(1, 2) for one in (gate, up))
    both: dict[str, Any] = {"side_by_side": True} if joined else {"up": up}
    rhs = jnp.concatenate([gate, up], axis=1 if transpose_rhs else 2) if joined else gate
    rest |= {"activation": "relu", "transpose_rhs": transpose_rhs}
    return systolic.grouped_matmul(lhs, rhs, np.array(sizes), **both, **rest)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("implementation", ["xla", CAREFUL])
@pytest.mark.parametrize(
    ("dtype", "n", "transpose_rhs", "joined"),
    [
        ("float32", 256, False, False),
        ("bfloat16", 256, True, True),
        ("int8", 256, False, True),
        ("float32", 100, True, True),
    ],
)
def test_gated(dtype: str, n: int, transpose_rhs: bool, joined: bool, implementation: Any) -> None:
    """Two products of the same rows, weights apart or in one array, of which some groups are here."""
    random, sizes = np.random.default_rng(0), [13, 0, 22, 5, 7]
    lhs = reference.small_integers(random, (48, 128), dtype)
    gate, up = (reference.small_integers(random, (3, 128, n), dtype) for _ in range(2))
    out = gated(
        lhs,
        gate,
        up,
        sizes,
        transpose_rhs=transpose_rhs,
        joined=joined,
        implementation=implementation,
        group_offset=1,
        preferred_element_type="float32",
    )
    one, other = (reference.product(lhs, matrices, sizes, 1) for matrices in (gate, up))
    np.testing.assert_allclose(out, np.maximum(one, 0) * other, rtol=2**-22)


def test_both_sums_over_k_in_several_stretches_of_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_blocks, "MAX_BUNDLES", 1)
    random, sizes = np.random.default_rng(0), [5, 0, 40, 3]
    lhs = reference.small_integers(random, (64, 256), "float32")
    gate, up = (reference.small_integers(random, (4, 256, 128), "float32") for _ in range(2))
    out = gated(lhs, gate, up, sizes, implementation=CAREFUL, tiles=config(64, 256, 128, 32, 128), chip="v5e")
    one, other = (reference.product(lhs, matrices, sizes) for matrices in (gate, up))
    np.testing.assert_array_equal(out, np.maximum(one, 0) * other)


@functools.cache
def into_an_array(dtype: str, implementation: Any) -> Callable[..., jax.Array]:
    def product(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, offset: jax.Array, existing: jax.Array) -> jax.Array:
        return systolic.grouped_matmul(
            lhs,
            rhs,
            sizes,
            group_offset=offset,
            existing_out=existing,
            implementation=CAREFUL if implementation == "interpret" else implementation,
            preferred_element_type=dtype,
        )

    return jax.jit(product)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("sizes", "offset"),
    [
        ([3, 9, 0, 21, 7], 1),
        ([0, 0, 0, 0, 70], 1),
        ([5, 0, 3, 2, 60], 1),
        ([16, 40, 0, 8, 0], 1),
        ([33, 1, 1, 1, 1], 2),
    ],
)
def test_rows_of_others_remain(sizes: list[int], offset: int, dtype: str, implementation: Any) -> None:
    """Rows before, behind and between: the first and the last group may begin and end within one register."""
    random = np.random.default_rng(0)
    lhs = reference.small_integers(random, (72, 128), dtype)
    rhs = reference.small_integers(random, (3, 128, 256), dtype)
    existing = random.integers(100, 200, (72, 256)).astype(dtype)
    starts = np.cumsum([0, *sizes])
    expected = existing.astype(np.float64)
    mine = slice(starts[offset], starts[offset + 3])
    expected[mine] = reference.product(lhs, rhs, sizes, offset).astype(dtype).astype(np.float64)[mine]
    run = into_an_array(dtype, implementation)
    out = run(lhs, rhs, np.array(sizes, np.int32), np.int32(offset), existing)
    np.testing.assert_array_equal(np.asarray(out, np.float64), expected)
    assert not races_found()
