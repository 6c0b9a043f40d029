"""SMEM and scalar prefetch · Blocks that are looked up, and steps that copy and compute nothing.

The scalar unit decides what happens, and it reads SMEM: 32 bits at a time, in any order. What `PrefetchScalarGridSpec`
prefetches lies there before the first step, so also the index maps can read it: which block a step copies is looked up.

    out[i] = x[order[i]]           chosen blocks                                                  `chosen_blocks`
    out = lhs @ rhs                lhs block-sparse: a list of blocks, with their rows and columns `block_sparse`
    out = mask · (lhs @ rhs)       both dense; the mask says which blocks of out are wanted        `output_mask`

The time of the second follows the number of blocks, that of the third the number of wanted blocks. It takes two things:
`pl.when` skips the work of a step, and an index map that repeats the previous index skips its copies. With the first
alone a step that does nothing still waits for its operands. Where two cores share a device, they halve the rows of
blocks, and of a triangle one half is three quarters: v5p gains less. Blocks of 512 are the docs'; they suit v5e, and
leave v6e and v7x waiting for copies.

Where the docs give times, of a v5e at 16384³, the same programs are simulated. Their list of blocks is drawn at p = 0.1
with JAX's random numbers: that makes 86 blocks of 1024 by the stream of then and 107 by today's, and they do not say
which. So many are placed here at random. Their times are a host's wall clock around each call, so a simulated time
should be shorter. Each call also copies the array of zeros, since it is not donated: that is XLA's, and in both.

Grid of `chosen_blocks`: (i,) over the chosen blocks; in VMEM a block of x and out, twice each.

The pages that this follows: Pallas TPU, "Scalar Prefetch and Block-Sparse Computation". And notes on `pl.kernel` that
copy indices to SMEM inside the kernel and leave it there: `chosen_blocks_by_hand`, at the end, goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, BFloat16, Float32, Int32

from systolic.chips import V5E, Chip
from systolic.lessons.block_sparse import block_list, sparse_matmul, sparse_reference
from systolic.lessons.lesson import Lesson, Part, Results
from systolic.lessons.output_mask import masked_matmul, masked_reference, next_wanted
from systolic.lessons.showing import show

SIDE = 512  # of a block, as in the docs
ROWS = 256  # of a chosen block
SIZE, COUNTS = 8192, (26, 64, 128, 256)  # blocks, of 16 × 16
# Wall clock of a v5e in bfloat16, in ms: outputs of the docs' notebook pallas/tpu/sparse.ipynb, as of September 2024.
PUBLISHED_MS = {
    "sparse 16384³, 86 blocks": 8.136,
    "sparse 16384³, 107 blocks": 8.136,
    "dense 16384³": 46.953,
    "triangle 16384³": 28.648,
    "triangle by XLA 16384³": 49.988,
}


def chosen_kernel(
    order_smem,  # [chosen] int32, read by the index map
    x_vmem,  # [rows, n] float32
    out_vmem,  # the same
):
    """Passes the block on that has been copied."""
    del order_smem
    out_vmem[...] = x_vmem[...]


def chosen_blocks(order: Int32[Array, " chosen"], x: Float32[Array, "m n"]) -> Float32[Array, "chosen_m n"]:
    """The blocks of 256 rows of x that `order` names, in its order."""
    n = x.shape[1]
    return pl.pallas_call(
        chosen_kernel,
        out_shape=jax.ShapeDtypeStruct((len(order) * ROWS, n), x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(len(order),),
            in_specs=[pl.BlockSpec((ROWS, n), lambda i, order: (order[i], 0))],
            out_specs=pl.BlockSpec((ROWS, n), lambda i, order: (i, 0)),
        ),
        name="chosen_blocks",
    )(order, x)


def chosen_by_hand_kernel(
    order_hbm,  # [chosen] int32
    x_hbm,  # [m, n] float32
    out_hbm,  # [chosen·rows, n] float32
    order_smem,  # [chosen] int32, scratch
    sem,  # of the copies
):
    """Fetches the indices, then has every block copied within HBM: nothing of x enters VMEM."""
    pltpu.sync_copy(order_hbm, order_smem)

    def block(i):
        chosen = pl.ds(pl.multiple_of(order_smem[i] * ROWS, ROWS), ROWS)
        return pltpu.make_async_copy(x_hbm.at[chosen], out_hbm.at[pl.ds(i * ROWS, ROWS)], sem)

    for i in range(order_smem.shape[0]):
        block(i).start()
    for i in range(order_smem.shape[0]):
        block(i).wait()


def chosen_blocks_by_hand(order: Int32[Array, " chosen"], x: Float32[Array, "m n"]) -> Float32[Array, "chosen_m n"]:
    """The same, by a kernel that fetches `order` itself: the indices could be its own result."""
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        chosen_by_hand_kernel,
        out_shape=jax.ShapeDtypeStruct((len(order) * ROWS, x.shape[1]), x.dtype),
        in_specs=[hbm, hbm],
        out_specs=hbm,
        scratch_shapes=[pltpu.SMEM(order.shape, jnp.int32), pltpu.SemaphoreType.DMA],
        name="chosen_blocks_by_hand",
    )(order, x)


def chosen_reference(order: Array, x: Array) -> Array:
    """The same by indexing."""
    return x.reshape(-1, ROWS, x.shape[1])[order].reshape(-1, x.shape[1])


def sparse_from_nothing(
    rows: Int32[Array, " blocks"],
    columns: Int32[Array, " blocks"],
    blocks: BFloat16[Array, "blocks bm bk"],
    rhs: BFloat16[Array, "k n"],
) -> BFloat16[Array, "k n"]:
    """`sparse_matmul` of a square lhs, into zeros of its own: XLA writes them, and copies nothing."""
    return sparse_matmul(rows, columns, blocks, rhs, jnp.zeros(rhs.shape, rhs.dtype))


def _bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def _listed(count: int, size: int) -> tuple[Any, ...]:
    rows, columns = block_list(count, size // SIDE, size // SIDE)
    return rows, columns, _bf16(count, SIDE, SIDE), _bf16(size, size)


def _masked(wanted: np.ndarray, masks: np.ndarray, kinds: np.ndarray, k: int) -> tuple[Any, ...]:
    m, n = (SIDE * count for count in wanted.shape)
    wanted = wanted.astype(np.int32)
    return wanted, *next_wanted(wanted), kinds.astype(np.int32), _bf16(m, k), _bf16(k, n), masks


def triangle(m: int, k: int, n: int) -> tuple[Any, ...]:
    """Arguments of `masked_matmul` for the lower triangle: masks of the blocks on the diagonal, and of those below."""
    wanted = np.tri(m // SIDE, n // SIDE)
    masks = np.stack([np.tri(SIDE, dtype=np.int32), np.ones((SIDE, SIDE), np.int32)])
    return _masked(wanted, masks, 1 - np.eye(*wanted.shape), k)


def scattered(count: int, m: int, k: int, n: int) -> tuple[Any, ...]:
    """The same for `count` whole blocks at random places."""
    wanted = np.zeros((m // SIDE, n // SIDE))
    wanted[block_list(count, *wanted.shape)] = 1
    return _masked(wanted, np.ones((1, SIDE, SIDE), np.int32), np.zeros_like(wanted), k)


def xla_masked(mask: Array, lhs: Array, rhs: Array) -> Array:
    """The docs' reference: everything is computed, then masked."""
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
    """Products of blocks at four densities, of a triangle with and without its copies skipped; the docs' own on v5e."""
    found = show(PARTS, chips)
    published = show(PUBLISHED, [V5E]) if V5E in chips else Results()
    return Lesson(
        name="scalar_prefetch",
        title=f"Blocks that are looked up and steps that are skipped: {SIZE}³ bfloat16 in blocks of {SIDE}",
        lines=(
            *(
                f"{chip.name}: of {COUNTS[-1]} blocks of lhs, {_of_all(found, 'sparse', chip)}; of the mask's, "
                f"{_of_all(found, 'mask', chip)}."
                for chip in chips
            ),
            "All blocks as a list against XLA's dense product: "
            f"{found.ratios(f'sparse, {COUNTS[-1]} blocks', 'dense', chips)} as fast.",
            "The lower triangle with copies skipped too, against work alone: "
            f"{found.ratios('triangle', 'triangle, all copies', chips)} as fast; against the whole: "
            f"{found.ratios('triangle', f'mask, {COUNTS[-1]} blocks', chips)}.",
            f"Indices fetched by hand against prefetched: {found.ratios('chosen by hand', 'chosen', chips)} as fast.",
            *(_beside_published(published, part.name) for part in PUBLISHED if published.shown),
        ),
        rows=(*found.rows, *published.rows),
        ok=found.ok and published.ok,
    )


def _of_all(found: Results, kind: str, chip: Chip) -> str:
    """In words: "26 take 13 % of the time of all, 64 …"."""
    said = []
    for count in COUNTS[:-1]:
        ratio = found.ratio(f"{kind}, {COUNTS[-1]} blocks", f"{kind}, {count} blocks", chip.name)
        said.append(f"{count} take " + ("–" if ratio is None else f"{100 * ratio:.0f} %"))
    return ", ".join(said) + " of the time of all"


def _beside_published(found: Results, part: str) -> str:
    time_us, published_ms = found[part, V5E.name].time_us, PUBLISHED_MS[part]
    if time_us is None:
        return f"{part}: no simulated time; published {published_ms:.1f} ms."
    return (
        f"{part} on v5e: simulated {time_us / 1e3:.1f} ms, published {published_ms:.1f} ms "
        f"({100 * (time_us / 1e3 / published_ms - 1):+.0f} %)."
    )


if __name__ == "__main__":
    import sys

    from systolic.cli import main

    sys.exit(main(["lessons", "scalar_prefetch", *sys.argv[1:]]))
