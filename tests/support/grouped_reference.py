"""Grouped products in float64, and sizes of groups to try."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st


def product(lhs: np.ndarray, rhs: np.ndarray, sizes: Sequence[int], offset: int = 0) -> np.ndarray:
    """`lhs[rows of g] @ rhs[g - offset]`; zeros in rows that none of these groups has."""
    out, start = np.zeros((lhs.shape[0], rhs.shape[2])), 0
    for group, size in enumerate(sizes):
        if offset <= group < offset + rhs.shape[0]:
            rows = slice(start, start + size)
            out[rows] = lhs[rows].astype(np.float64) @ rhs[group - offset].astype(np.float64)
        start += size
    return out


def gradient(lhs: np.ndarray, cotangent: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """`lhs[rows of g]ᵀ @ cotangent[rows of g]`."""
    starts = np.cumsum([0, *sizes])
    return np.stack(
        [
            lhs[start:end].astype(np.float64).T @ cotangent[start:end].astype(np.float64)
            for start, end in itertools.pairwise(starts)
        ]
    )


def small_integers(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Numbers whose products and sums float32 holds exactly."""
    return random.integers(-4, 5, shape).astype(dtype)


@st.composite
def group_sizes(draw: st.DrawFn, groups: int, most_rows: int) -> list[int]:
    """Sizes of so many groups, many of them empty or of a few rows, and no more rows together than there are."""
    sizes, left = list[int](), most_rows
    for _ in range(groups):
        size = draw(st.one_of(st.just(0), st.integers(0, 9), st.integers(0, most_rows)))
        sizes.append(min(size, left))
        left -= sizes[-1]
    return sizes
