"""Grouped products · Scalar prefetch turns a matmul into products of groups of rows, each with its own matrix.

    out[rows of group g] = x[rows of group g] @ w[g]           as in a mixture of experts, rows sorted by expert

**Looked up.** Suppose that every group begins at a whole tile of rows. Then only the index map of w is new: `group[i]`
is the number of the matrix for tile i. If two tiles in a row belong to one group, they name the same block, which is
copied once. An empty group has no tile, so its matrix is never read.                                 `aligned_grouped`

**Visited.** A router does not fill tiles. A tile in which one group ends and another begins is visited once for each of
them. `visits` lists pairs of a tile and a group; both index maps read the list, which has at most one pair for each
tile and one more for each group. A visit writes the rows of its group and keeps the other rows as earlier visits left
them: the block of out stays in VMEM as long as its index does. Unused entries at the end of the list repeat the last
visit: the blocks are the same, so nothing is copied, and `pl.when` skips the work.                           `grouped`

The program computes the sizes of groups, but its grid is fixed when it is compiled. So the grid has the largest number
of visits that any sizes can need.

Grid: (j, visit), tiles of columns outside: a tile of rows is copied again for each tile of columns, a matrix once. In
VMEM a tile of rows [256, k], of w [k, 512] and of out [256, 512], twice each.

Waste: a visit multiplies all 256 rows, even if its group has only a few of them, and waits for the next matrix if its
rows are too few to hide the copy. `systolic.grouped_matmul` avoids both: it keeps whole panels of rows in VMEM, cuts
each group into blocks of fitting sizes, and copies several matrices ahead.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ROWS, COLUMNS = 256, 512  # of a tile


def visits(sizes: Array, m: int) -> tuple[Array, Array, Array]:
    """Return the tile of rows and the group of each visit, and the first row of each group, followed by m."""
    ends = jnp.cumsum(sizes)
    starts = ends - sizes
    tiles = jnp.where(sizes > 0, (ends - 1) // ROWS - starts // ROWS + 1, 0)  # tiles in which each group has rows
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
    """Compute one tile of the product."""
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
    """Compute one tile of the product, and keep only the rows of the group."""
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
    """Call a kernel on the grid (j, step); `tile` and `group` look up the tile and the group of a step."""
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
    """Multiply groups that begin at whole tiles: all rows have a group, and sizes are multiples of ROWS."""
    steps = x.shape[0] // ROWS
    group = jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(steps) * ROWS, side="right").astype(jnp.int32)
    return _grouped(looked_up_kernel, (group,), steps, lambda i, group: i, lambda i, group: group[i], x, w)


def grouped(sizes: Array, x: Array, w: Array) -> Array:
    """Multiply groups of any sizes whose sum is m, a multiple of ROWS."""
    listed = visits(sizes, x.shape[0])
    steps = len(listed[0])
    return _grouped(visit_kernel, listed, steps, lambda i, t, g, s: t[i], lambda i, t, g, s: g[i], x, w)
