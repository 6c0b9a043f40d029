"""Products with sparse matrices beside float64, as tests of several files ask for them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
import numpy as np
from jax.experimental.pallas import tpu as pltpu

import systolic
from systolic import BlockSparse

CAREFUL = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
RANDOM = np.random.default_rng(0)


def integers(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return RANDOM.integers(-3, 4, shape).astype(dtype)


def padded(mask: np.ndarray, block: tuple[int, int], dtype: str, more: int = 1) -> tuple[BlockSparse, np.ndarray]:
    """A matrix with NaN, or the largest integer, as padding; and the whole of it in float64."""
    dense = integers((mask.shape[0] * block[0], mask.shape[1] * block[1]), dtype)
    dense = dense * np.kron(mask, np.ones(block)).astype(dtype)
    found = BlockSparse.from_dense(dense, block, mask, most_blocks=int(mask.sum()) + more)
    blocks = np.array(found.blocks)
    blocks[int(mask.sum()) :] = 127 if dtype == "int8" else np.nan
    return found.with_blocks(blocks), dense.astype(np.float64)


def everything(matrix: BlockSparse, lhs: Any, rhs: Any, **options: Any) -> dict[str, Any]:
    """All products of a square matrix with dense ones, and blocks of a product at its places."""

    def product(*sides: Any, **more: Any) -> Any:
        return systolic.sparse_matmul(*sides, **more, **options)

    return {
        "dsd": product(matrix, rhs),
        "dsd transposed": product(matrix, rhs, transpose_lhs=True),
        "dds": product(lhs, matrix),
        "dds transposed": product(lhs, matrix, transpose_rhs=True),
        "sdd": product(lhs.T, rhs.T, mask=matrix),
        "sdd transposed": product(lhs.T, rhs, mask=matrix, transpose_rhs=True),
        "masked": product(lhs.T, rhs, mask=matrix, transpose_rhs=True, dense_out=True),
    }


JITTED = jax.jit(everything, static_argnames=("implementation", "preferred_element_type", "chip"))


def check_all(
    mask: np.ndarray, block: int, dtype: str, sweep: int, implementation: Any, more: int = 1, chip: Any = None
) -> None:
    matrix, dense = padded(mask, (block, block), dtype, more)
    lhs, rhs = integers((sweep, dense.shape[0]), dtype), integers((dense.shape[0], sweep), dtype)
    preferred = "int32" if dtype == "int8" else "float32"
    found = JITTED(matrix, lhs, rhs, implementation=implementation, preferred_element_type=preferred, chip=chip)
    left, right = lhs.astype(np.float64), rhs.astype(np.float64)
    sampled = (left.T @ right.T) * np.kron(mask, np.ones((block, block)))
    expected = {
        "dsd": dense @ right,
        "dsd transposed": dense.T @ right,
        "dds": left @ dense,
        "dds transposed": left @ dense.T,
        "sdd": sampled,
        "sdd transposed": sampled,
        "masked": sampled,
    }
    for name, out in found.items():
        if isinstance(out, BlockSparse):
            assert not np.asarray(out.blocks)[int(mask.sum()) :].any(), "padding is zero"
            out = out.to_dense()
        np.testing.assert_array_equal(np.asarray(out, np.float64), expected[name], name)


MASK = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], bool)


def little(chip: str, blocks: float) -> systolic.Chip:
    """A chip with VMEM for so many blocks of 128 × 128 in float32."""
    found = systolic.chip(chip)
    usable = int(blocks * 128 * 128 * 4 / 0.88)
    return dataclasses.replace(found, name="little", aliases=(), usable_vmem_bytes_per_core=usable)
