"""Grouped products of arrays whose types say how they are sharded, as on a mesh that `jax.make_mesh` makes.

Each device multiplies its parts. Rows and columns stay cut as they are: a device has the rows of each group that lie in
its part. If k or the groups are cut (their matrices lie on several devices), the parts' products are summed over the
devices. An axis of the mesh that cuts two dimensions cuts the first of rows, groups, columns and k; the array that it
cut elsewhere is gathered first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from systolic.ops.engine.cuts import Axes, Cuts, cuts_of, on_devices, parts_of
from systolic.ops.grouped.product import Fused, GroupedProduct, Grouping
from systolic.ops.grouped.xla import finished, group_bounds, rows_of
from systolic.spec import accumulator_dtype

Multiply = Callable[[GroupedProduct, Array, Array, Grouping, Fused], Array]
Gradient = Callable[[GroupedProduct, int, Array, Array, Grouping], Array]

_LAST = ("m", "g", "n", "k")
_UNCUT = Grouping(sizes=("",), offset=("",))


def sharded_product(
    run: Multiply, mesh: Any, product: GroupedProduct, lhs: Array, rhs: Array, grouping: Grouping, fused: Fused
) -> Array:
    """Return the product by `run`, which on each device of the mesh gets the device's parts."""
    columns = _columns(product)
    matrices = ("g", columns, "k") if product.transpose_rhs else ("g", "k", columns)
    arrays = (lhs, rhs, grouping, fused)
    fused_names = Fused(
        bias=("g", columns),
        row_scale=("m",),
        up=matrices,
        residual=("m", columns),
        existing_out=("m", columns),
        rhs_scale=("g", "", columns),
        lhs_scale=("m",),
    )
    names = (("m", "k"), matrices, _UNCUT, fused_names)
    cuts = cuts_of(arrays, names, last=_LAST)

    def compute(lhs: Array, rhs: Array, grouping: Grouping, fused: Fused) -> Array:
        rows, matrices = _rows_here(grouping, mesh, lhs.shape[0], cuts), rhs.shape[0]
        part_product, part_grouping = _product_here(product, mesh, cuts), _groups_here(rows, matrices, cuts)
        if "k" in cuts:
            # A sum that is only cast is sent in the result's dtype, as in XLA.
            narrow = (
                part_product == part_product.plain
                and fused == Fused()
                and jnp.issubdtype(product.dtype_out, jnp.floating)
            )
            part = part_product.plain.anew(dtype_out=product.dtype_out if narrow else accumulator_dtype(lhs.dtype.name))
            summed = (*cuts["k"], *cuts.get("g", ()))

            def total_of(factor: Array, number: int) -> Array:
                scale = fused.rhs_scale
                if scale is not None:
                    scale = scale.reshape(matrices, 1, -1) if product.side_by_side else scale[:, number : number + 1]
                return lax.psum(run(part, lhs, factor, part_grouping, Fused(rhs_scale=scale)), summed)

            total, up = total_of(rhs, 0), None if fused.up is None else total_of(fused.up, 1)
            all_groups = matrices * parts_of(mesh, cuts.get("g", ()))
            whole_fused = (
                fused if fused.bias is None or "g" not in cuts else fused._replace(bias=_gathered(fused, cuts["g"]))
            )._replace(rhs_scale=None)
            return finished(product, total, up, rows_of(lhs.shape[0], all_groups, rows), whole_fused)
        out = run(
            part_product, lhs, rhs, part_grouping, fused if "g" not in cuts else fused._replace(existing_out=None)
        )
        if "g" not in cuts:
            return out
        # Each row is computed by one device, and zero on the others.
        out = lax.psum(out, cuts["g"])
        return rows_of(lhs.shape[0], matrices * parts_of(mesh, cuts["g"]), rows).owned(out, fused.existing_out)

    return on_devices(compute, mesh, cuts, arrays, names, ("m", columns))


def sharded_gradient(
    run: Gradient, mesh: Any, product: GroupedProduct, groups: int, lhs: Array, cotangent: Array, grouping: Grouping
) -> Array:
    """Return the gradient of the matrices. Parts of rows are summed; `product.group_axes` cut the groups."""
    arrays, names = (lhs, cotangent, grouping), (("m", "k"), ("m", "n"), _UNCUT)
    cuts = cuts_of(arrays, names, last=_LAST)
    cut_axes = {axis for axes in cuts.values() for axis in axes}
    if group_axes := tuple(axis for axis in product.group_axes if axis not in cut_axes):
        cuts["g"] = group_axes

    def compute(lhs: Array, cotangent: Array, grouping: Grouping) -> Array:
        matrices = groups // parts_of(mesh, cuts.get("g", ()))
        rows = _rows_here(grouping, mesh, lhs.shape[0], cuts)
        part_product = _product_here(product, mesh, cuts)
        if "m" not in cuts:
            return run(part_product, matrices, lhs, cotangent, _groups_here(rows, matrices, cuts))
        part = part_product.anew(dtype_out=accumulator_dtype(lhs.dtype.name))
        total = lax.psum(run(part, matrices, lhs, cotangent, _groups_here(rows, matrices, cuts)), cuts["m"])
        return total.astype(product.dtype_out)

    return on_devices(compute, mesh, cuts, arrays, names, ("g", "k", "n"))


def sharded_finish(
    mesh: Any, product: GroupedProduct, total: Array, up: Array | None, groups: int, grouping: Grouping, fused: Fused
) -> Array:
    sums = ("m", _columns(product))
    arrays = (total, up, grouping, fused._replace(up=None))
    fused_names = Fused(bias=("", sums[1]), row_scale=("m",), up=sums, residual=sums, existing_out=sums)
    names = (sums, sums, _UNCUT, fused_names)
    cuts = cuts_of(arrays, names, last=_LAST)

    def compute(total: Array, up: Array | None, grouping: Grouping, fused: Fused) -> Array:
        rows = rows_of(total.shape[0], groups, _rows_here(grouping, mesh, total.shape[0], cuts))
        return finished(product, total, up, rows, fused)

    return on_devices(compute, mesh, cuts, arrays, names, sums, differentiated=True)


def _columns(product: GroupedProduct) -> str:
    # If two products are stored as one array, its columns are not the columns of either product.
    return "" if product.side_by_side else "n"


def _rows_here(grouping: Grouping, mesh: Any, rows: int, cuts: Cuts) -> Grouping:
    """Return the groups' rows that lie in this device's part of the rows."""
    if "m" not in cuts:
        return grouping
    bounds = group_bounds(grouping.sizes, rows * parts_of(mesh, cuts["m"]))
    first = lax.axis_index(cuts["m"]) * rows
    return grouping._replace(sizes=jnp.diff(jnp.clip(bounds - first, 0, rows)))


def _groups_here(grouping: Grouping, matrices: int, cuts: Cuts) -> Grouping:
    if "g" not in cuts:
        return grouping
    first = (lax.axis_index(cuts["g"]) * matrices).astype(jnp.int32).reshape(1)
    return grouping._replace(offset=first if grouping.offset is None else grouping.offset + first)


def _product_here(product: GroupedProduct, mesh: Any, cuts: Cuts) -> GroupedProduct:
    """Return the product of a device's part, which has fewer rows of each group."""
    rows_per_group = max(product.rows_per_group // parts_of(mesh, cuts.get("m", ())), 1)
    return replace(product, rows_per_group=rows_per_group, group_axes=())


def _gathered(fused: Fused, axes: Axes) -> Array:
    return lax.all_gather(fused.bias, axes, axis=0, tiled=True)
