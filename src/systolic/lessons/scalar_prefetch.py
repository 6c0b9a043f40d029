"""Run the kernels of `kernels/scalar_prefetch.py`, and report the results."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, BFloat16, Int32

from systolic.chips import V5E, Chip
from systolic.lessons.kernels.block_sparse import block_list, sparse_matmul, sparse_reference
from systolic.lessons.kernels.output_mask import masked_matmul, masked_reference, next_needed
from systolic.lessons.kernels.scalar_prefetch import (
    ROWS,
    chosen_blocks,
    chosen_blocks_by_hand,
)
from systolic.lessons.lesson import Lesson, Part, Results
from systolic.lessons.runner import run_parts

SIDE = 512  # of a block, as in the docs
SIZE, COUNTS = 8192, (26, 64, 128, 256)  # blocks, of 16 × 16
# Wall clock of a v5e in bfloat16, in ms: outputs of the docs' notebook pallas/tpu/sparse.ipynb, as of September 2024.
PUBLISHED_MS = {
    "sparse 16384³, 86 blocks": 8.136,
    "sparse 16384³, 107 blocks": 8.136,
    "dense 16384³": 46.953,
    "triangle 16384³": 28.648,
    "triangle by XLA 16384³": 49.988,
}


def chosen_reference(order: Array, x: Array) -> Array:
    return x.reshape(-1, ROWS, x.shape[1])[order].reshape(-1, x.shape[1])


def sparse_from_nothing(
    rows: Int32[Array, " blocks"],
    columns: Int32[Array, " blocks"],
    blocks: BFloat16[Array, "blocks bm bk"],
    rhs: BFloat16[Array, "k n"],
) -> BFloat16[Array, "k n"]:
    """Return `sparse_matmul` of a square lhs into its own zeros: XLA writes them, and copies nothing."""
    return sparse_matmul(rows, columns, blocks, rhs, jnp.zeros(rhs.shape, rhs.dtype))


def _bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def _listed(count: int, size: int) -> tuple[Any, ...]:
    rows, columns = block_list(count, size // SIDE, size // SIDE)
    return rows, columns, _bf16(count, SIDE, SIDE), _bf16(size, size)


def _masked(mask: np.ndarray, masks: np.ndarray, kinds: np.ndarray, k: int) -> tuple[Any, ...]:
    m, n = (SIDE * count for count in mask.shape)
    mask = mask.astype(np.int32)
    return mask, *next_needed(mask), kinds.astype(np.int32), _bf16(m, k), _bf16(k, n), masks


def triangle(m: int, k: int, n: int) -> tuple[Any, ...]:
    """Return arguments of `masked_matmul` for the lower triangle: masks of the blocks on the diagonal and below."""
    mask = np.tri(m // SIDE, n // SIDE)
    masks = np.stack([np.tri(SIDE, dtype=np.int32), np.ones((SIDE, SIDE), np.int32)])
    return _masked(mask, masks, 1 - np.eye(*mask.shape), k)


def scattered(count: int, m: int, k: int, n: int) -> tuple[Any, ...]:
    mask = np.zeros((m // SIDE, n // SIDE))
    mask[block_list(count, *mask.shape)] = 1
    return _masked(mask, np.ones((1, SIDE, SIDE), np.int32), np.zeros_like(mask), k)


def xla_masked(mask: Array, lhs: Array, rhs: Array) -> Array:
    """Return the docs' reference: everything is computed, then masked."""
    return mask * (lhs @ rhs)


ORDER = np.random.default_rng(0).permutation(32).astype(np.int32)
CHOSEN = (ORDER, jax.ShapeDtypeStruct((32 * ROWS, 4096), jnp.float32))
CHOSEN_RUN = (np.array([2, 0, 3], np.int32), jax.ShapeDtypeStruct((4 * ROWS, 256), jnp.float32))
SPARSE_RUN = (np.array([0, 0, 2], np.int32), np.array([0, 2, 1], np.int32), _bf16(3, SIDE, SIDE), _bf16(1536, 1536))
without_copies_skipped = functools.partial(masked_matmul, skips_copies=False)

PARTS = (
    Part(name="chosen", fn=chosen_blocks, args=CHOSEN, run_args=CHOSEN_RUN, reference=chosen_reference),
    Part(name="chosen by hand", fn=chosen_blocks_by_hand, args=CHOSEN, run_args=CHOSEN_RUN, reference=chosen_reference),
    *(
        Part(
            name=f"sparse, {count} blocks",
            fn=sparse_from_nothing,
            args=_listed(count, SIZE),
            run_args=SPARSE_RUN if count == COUNTS[0] else (),
            reference=lambda rows, columns, blocks, rhs: sparse_reference(rows, columns, blocks, rhs, 0 * rhs),
        )
        for count in COUNTS
    ),
    Part(name="dense", fn=jnp.matmul, args=(_bf16(SIZE, SIZE),) * 2, run_args=()),
    *(
        Part(
            name=f"mask, {count} blocks",
            fn=masked_matmul,
            args=scattered(count, SIZE, SIZE, SIZE),
            run_args=scattered(3, 2048, 2048, 1024) if count == COUNTS[0] else (),
            reference=masked_reference,
        )
        for count in COUNTS
    ),
    *(
        Part(
            name=name,
            fn=fn,
            args=triangle(SIZE, SIZE, SIZE),
            run_args=triangle(2048, 2048, 1024),
            reference=masked_reference,
        )
        for name, fn in (
            ("triangle", masked_matmul),
            ("triangle, all copies", functools.partial(masked_matmul, skips_copies=False)),
        )
    ),
)

_LARGE = 16384
PUBLISHED = (
    *(
        Part(
            name=f"sparse 16384³, {blocks} blocks",
            fn=functools.partial(sparse_matmul, copies_zeros=True),
            args=(*_listed(blocks, _LARGE), _bf16(_LARGE, _LARGE)),
            run_args=(),
        )
        for blocks in (86, 107)
    ),
    Part(name="dense 16384³", fn=jnp.matmul, args=(_bf16(_LARGE, _LARGE),) * 2, run_args=()),
    Part(name="triangle 16384³", fn=masked_matmul, args=triangle(_LARGE, _LARGE, _LARGE), run_args=()),
    Part(
        name="triangle by XLA 16384³",
        fn=xla_masked,
        args=(jax.ShapeDtypeStruct((_LARGE, _LARGE), jnp.int32), *(_bf16(_LARGE, _LARGE),) * 2),
        run_args=(),
    ),
)


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Run products of blocks at four densities, a triangle with and without skipped copies, the docs' own on v5e."""
    results = run_parts(PARTS, chips)
    published = run_parts(PUBLISHED, [V5E]) if V5E in chips else Results()
    return Lesson(
        lines=(
            *(
                f"{chip.name}: of {COUNTS[-1]} blocks of lhs, {_of_all(results, 'sparse', chip)}; of the mask's, "
                f"{_of_all(results, 'mask', chip)}."
                for chip in chips
            ),
            "All blocks as a list against XLA's dense product: "
            f"{results.ratios(f'sparse, {COUNTS[-1]} blocks', 'dense', chips)} as fast.",
            "The lower triangle with copies skipped too, against work alone: "
            f"{results.ratios('triangle', 'triangle, all copies', chips)} as fast; against the whole: "
            f"{results.ratios('triangle', f'mask, {COUNTS[-1]} blocks', chips)}.",
            f"Indices fetched by hand against prefetched: {results.ratios('chosen by hand', 'chosen', chips)} as fast.",
            *(_beside_published(published, part.name) for part in PUBLISHED if published.parts),
        ),
        rows=(*results.rows, *published.rows),
        ok=results.ok and published.ok,
    )


def _of_all(results: Results, kind: str, chip: Chip) -> str:
    """Return in words: "26 take 13 % of the time of all, 64 …"."""
    sentences = []
    for count in COUNTS[:-1]:
        ratio = results.ratio(f"{kind}, {COUNTS[-1]} blocks", f"{kind}, {count} blocks", chip.name)
        sentences.append(f"{count} take " + ("–" if ratio is None else f"{100 * ratio:.0f} %"))
    return ", ".join(sentences) + " of the time of all"


def _beside_published(results: Results, part: str) -> str:
    time_us, published_ms = results[part, V5E.name].time_us, PUBLISHED_MS[part]
    if time_us is None:
        return f"{part}: no simulated time; published {published_ms:.1f} ms."
    return (
        f"{part} on v5e: simulated {time_us / 1e3:.1f} ms, published {published_ms:.1f} ms "
        f"({100 * (time_us / 1e3 / published_ms - 1):+.0f} %)."
    )
