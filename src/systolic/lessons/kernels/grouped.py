"""Grouped products · Scalar prefetch turns a matmul into one of rows in groups, each with a matrix of its own.

    out[rows of group g] = x[rows of group g] @ w[g]           as in a mixture of experts, rows sorted by expert

**Looked up.** Let every group begin at a whole tile of rows. Then nothing but the index map of w is new: `group[i]`
says whose matrix a tile of rows is multiplied by. Two tiles of one group in a row ask for the same block, and it is
copied once. Empty groups are in no tile, so nobody reads their matrices.                             `aligned_grouped`

**Visited.** A router does not fill tiles. A tile in which a group ends and another one begins is visited once for each:
`visits` lists pairs of a tile and a group, at most one a tile and one more a group, and both index maps look them up. A
visit keeps its own rows and leaves the others as the visit before made them: the block of out stays in VMEM as long as
its index stays. What remains of the list repeats the last visit: the same blocks, so no copies, and `pl.when` skips
the work.                                                                                               `grouped`

The sizes are values that the program computes; the grid is not. So it has as many visits as the sizes can ever need.

Grid: (j, visit), tiles of columns outside: a tile of rows comes anew for each, a matrix once. In VMEM a tile of rows
[256, k], of w [k, 512] and of out [256, 512], twice each.

What it wastes: a visit multiplies all 256 rows for the few that are its own, and waits for the next matrix where it has
too few rows to hide the copy. `systolic.grouped_matmul` goes on from here: whole panels of rows in VMEM, each of
whose groups is cut into blocks of fitting sizes, and several matrices on their way ahead.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ROWS, COLUMNS = 256, 512  # of a tile


def visits(sizes: Array, m: int) -> tuple[Array, Array, Array]:
    """For each visit its tile of rows and its group; and the first row of each group, with m behind the last."""
    ends = jnp.cumsum(sizes)
    starts = ends - sizes
    tiles = jnp.where(sizes > 0, (ends - 1) // ROWS - starts // ROWS + 1, 0)  # that each group has rows in
    listed = jnp.cumsum(tiles)
    number = jnp.minimum(jnp.arange(m // ROWS + len(sizes) - 1), listed[-1] - 1)
    group = jnp.searchsorted(listed, number, side="right").astype(jnp.int32)
    tile = starts[group] // ROWS + number - (listed - tiles)[group]
    return tile.astype(jnp.int32), group, jnp.append(starts, m).astype(jnp.int32)


def looked_up_kernel(
    group_smem,  # [tiles] int32, read by the index map
    x_vmem,  # [rows, k] bfloat16
    w_vmem,  # [k, columns] bfloat16, of the tile's group
    out_vmem,  # [rows, columns] bfloat16
):
    """A tile of a matmul."""
    del group_smem
    out_vmem[...] = jnp.dot(x_vmem[...], w_vmem[...], preferred_element_type=jnp.float32).astype(out_vmem.dtype)


def visit_kernel(
    tile_smem,  # [visits] int32
    group_smem,  # [visits] int32
    starts_smem,  # [groups + 1] int32
    x_vmem,  # [rows, k] bfloat16
    w_vmem,  # [k, columns] bfloat16, of the visit's group
    out_vmem,  # [rows, columns] bfloat16, the same for all visits of a tile
):
    """A tile of a matmul, of which only the group's rows are kept."""
    visit = pl.program_id(1)
    last = jnp.maximum(visit - 1, 0)
    tile, group = tile_smem[visit], group_smem[visit]
    is_new = (visit == 0) | (tile != tile_smem[last])

    @pl.when(is_new | (group != group_smem[last]))
    def _visit():
        product = jnp.dot(x_vmem[...], w_vmem[...], preferred_element_type=jnp.float32)
        row = tile * ROWS + jax.lax.broadcasted_iota(jnp.int32, product.shape, 0)
        is_mine = (row >= starts_smem[group]) & (row < starts_smem[group + 1])
        before = jnp.where(is_new, 0, out_vmem[...].astype(jnp.float32))
        out_vmem[...] = jnp.where(is_mine, product, before).astype(out_vmem.dtype)


def _grouped(kernel, prefetched: tuple[Array, ...], steps: int, tile, group, x: Array, w: Array) -> Array:
    """A kernel over (j, step); `tile` and `group` say what a step works on, from its number and what is prefetched."""
    (m, k), n = x.shape, w.shape[2]
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(prefetched),
            grid=(n // COLUMNS, steps),
            in_specs=[
                pl.BlockSpec((ROWS, k), lambda j, i, *smem: (tile(i, *smem), 0)),
                pl.BlockSpec((None, k, COLUMNS), lambda j, i, *smem: (group(i, *smem), 0, j)),
            ],
            out_specs=pl.BlockSpec((ROWS, COLUMNS), lambda j, i, *smem: (tile(i, *smem), j)),
        ),
        name=kernel.__name__.removesuffix("_kernel"),
    )(*prefetched, x, w)


def aligned_grouped(sizes: Array, x: Array, w: Array) -> Array:
    """Groups that begin at whole tiles: all rows have a group, and sizes are multiples of a tile's."""
    steps = x.shape[0] // ROWS
    group = jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(steps) * ROWS, side="right").astype(jnp.int32)
    return _grouped(looked_up_kernel, (group,), steps, lambda i, group: i, lambda i, group: group[i], x, w)


def grouped(sizes: Array, x: Array, w: Array) -> Array:
    """Groups of any sizes whose sum is m, which is a multiple of a tile's rows."""
    listed = visits(sizes, x.shape[0])
    steps = len(listed[0])
    return _grouped(visit_kernel, listed, steps, lambda i, t, g, s: t[i], lambda i, t, g, s: g[i], x, w)
