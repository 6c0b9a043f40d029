"""The choice of a product across chips for arrays that are cut over a mesh with explicit axes.

For an axis of the mesh, and operands and a result that are cut so, one kernel sends and multiplies:

    x[axis, -] @ w[-, axis]  to  [-, axis]        all-gather × matmul
    x[-, axis] @ w[axis, -]  to  [axis, -]        matmul × reduce-scatter
    x[-, axis] @ w[axis, -]  to  [-, -]           the same, whose rows XLA then gathers
    x[axis, -] @ w[axis, -]  to  [axis, -]        matmul × all-gathered weight, as FSDP cuts it
    x[axis, -] @ w[-, axis]  to  [axis, -]        the same with a weight that is cut by n

Rows may be cut over other axes in addition, and so may columns in all forms but the first. Rows may have several
dimensions, such as a batch and a sequence; one of them is gathered or scattered. Arithmetic decides between the kernel
and XLA's collective with our product.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.compat.mesh_values import concrete_mesh
from systolic.kernels.epilogue import outputs
from systolic.ops.collective.arguments import axis_ring, axis_size, barrier_number
from systolic.ops.collective.choice import RingChoice, chosen
from systolic.ops.collective.derivative import results
from systolic.ops.collective.product import WEIGHT_CUTS, Kind, RingProduct
from systolic.ops.collective.sizes import RingSizes, WeightSizes
from systolic.ops.collective.slices import slice_of
from systolic.ops.collective.weight_schedule import WeightCut
from systolic.ops.engine.cuts import Axes, Names, axes_of, on_devices, parts_of
from systolic.ops.engine.shapes import is_symbolic
from systolic.ops.matmul.product import Product, spec_of
from systolic.spec import Operands, dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The cuts of a product that one kernel can compute across chips, and the axis that it sends over."""

    kind: Literal["gather", "scatter", "reduce", "weight by k", "weight by n"]
    axis: str
    rows: tuple[Axes, ...]  # of lhs: for each dimension of its rows
    out_rows: tuple[Axes, ...]
    columns: Axes  # of the result
    dimension: int = 0  # of the rows that are gathered or scattered

    @property
    def ring_kind(self) -> Kind:
        """The kind of the kernel's product."""
        return "scatter" if self.kind == "reduce" else self.kind

    @property
    def weight_cut(self) -> WeightCut | None:
        return WEIGHT_CUTS.get(self.ring_kind)

    @property
    def by_dimension(self) -> dict[str, Axes]:
        """The axes of each dimension: rows m0 and M0 of lhs and of the result, k and K of lhs and of the weight, …"""
        k = (self.axis,) if self.ring_kind == "scatter" else ()
        cuts = {"k": k, "K": k, "n": self.columns, "N": self.columns}
        cuts |= dict(zip(self.row_names("m"), self.rows, strict=True))
        cuts |= dict(zip(self.row_names("M"), self.out_rows, strict=True))
        if self.kind == "weight by k":
            cuts["K"] = (self.axis,)
        elif self.kind == "weight by n":
            cuts["N"] = (*self.columns, self.axis)
        return {name: axes for name, axes in cuts.items() if axes}

    def row_names(self, letter: str) -> Names:
        return tuple(f"{letter}{number}" for number in range(len(self.rows)))


def across_chips(mesh: Any, product: Product, operands: Operands, cut: Cut) -> tuple[Array, ...]:
    """Return the product by a kernel that sends and multiplies."""
    rows, out_rows = cut.row_names("m"), cut.row_names("M")
    lead = ("",) * (len(rows) - 1)  # of arrays that all rows share
    weight = (*lead, "N", "K") if product.transpose_rhs else (*lead, "K", "N")
    names = Operands(
        lhs=(*rows, "k"),
        rhs=weight,
        up=weight,
        lhs_args=((*rows, "k"),) * len(operands.lhs_args),
        bias=(*lead, "", "n"),
        residual=(*out_rows, "n"),
    )
    names = operands.map(lambda _, array_names: array_names, names)
    outs = len(spec_of(product, operands).dtypes_out)
    return on_devices(
        lambda *parts: _computed(product, Operands(*parts), cut),
        mesh,
        cut.by_dimension,
        tuple(operands),
        tuple(names),
        (*((*out_rows, "n"),) * outs, *([(*out_rows, "k")] if product.keeps_lhs else [])),
    )


def gathers(product: Product, operands: Operands) -> bool:
    """True if a kernel gathers lhs, so that it can store all rows for a derivative."""
    sharding = jax.typeof(operands.lhs).sharding
    if not sharding.mesh.explicit_axes or product.functions.lhs is not None or operands.lhs.ndim > 2:
        return False
    cut = cut_of(product, operands)
    return (
        cut is not None
        and cut.kind == "gather"
        and operands.residual is None
        and choice_of(sharding.mesh, product, operands, cut).by_kernel
    )


def cut_of(product: Product, operands: Operands) -> Cut | None:
    """Return the form of a product, by the cuts of its arrays and of its result; None for any other."""
    lhs, rhs, functions = operands.lhs, operands.rhs, product.functions
    if lhs.ndim < 2 or is_symbolic(operands) or any(arg.shape != lhs.shape for arg in operands.lhs_args):
        return None
    if product.transpose_lhs or product.side_by_side or functions.rhs or functions.primal or operands.scale is not None:
        return None
    shared = (rhs, operands.up, operands.bias)  # by all rows
    if any(array is not None and math.prod(array.shape[:-2]) != 1 for array in shared):
        return None
    spec = spec_of(product, operands)
    # `residual` of one row, or of one column, is not cut as the result.
    if operands.bias is not None and operands.bias.shape[-2:] != (1, spec.n):
        return None
    if operands.residual is not None and operands.residual.shape != (*lhs.shape[:-1], spec.n):
        return None
    *row_axes, k = axes_of(lhs)
    rows = tuple(row_axes)
    other_k, columns = tuple(axes_of(rhs))[-2:][:: -1 if product.transpose_rhs else 1]
    *out_axes, out_columns = (*rows, columns) if product.out_cut is None else product.out_cut
    out_rows = tuple(out_axes)
    all_rows = tuple(axis for axes in rows for axis in axes)
    changed = [number for number, axes in enumerate(rows) if axes != out_rows[number]]
    dimension = changed[0] if len(changed) == 1 else 0
    before, after = rows[dimension], out_rows[dimension]
    of_rows = functools.partial(Cut, rows=rows, out_rows=out_rows, columns=columns, dimension=dimension)
    gathers_rows = len(changed) == 1 and (*after, *columns) == before and len(columns) == 1
    if gathers_rows and columns == out_columns and not k and not other_k and product.pairing in (None, "gated"):
        return of_rows(kind="gather", axis=columns[0])
    if not changed and not k and product.pairing in (None, "gated"):
        return _gathered_weight(rows, other_k, columns, None if product.out_cut is None else out_columns)
    distinct = len({*all_rows, *k, *columns}) == len((*all_rows, *k, *columns))
    if len(k) != 1 or k != other_k or columns != out_columns or not distinct or product.pairing not in (None, "added"):
        return None
    if len(changed) == 1 and after == (*before, *k):
        return of_rows(kind="scatter", axis=k[0])
    return of_rows(kind="reduce", axis=k[0]) if not changed else None


def _gathered_weight(rows: tuple[Axes, ...], k: Axes, columns: Axes, out_columns: Axes | None) -> Cut | None:
    """Return the form of a product whose weight is cut over an axis of its rows; None for any other."""
    axes, rest = (k, columns) if k else (columns[-1:], columns[:-1])
    all_rows = {axis for axes_of_rows in rows for axis in axes_of_rows}
    if len(axes) != 1 or axes[0] not in all_rows or out_columns not in (None, rest) or all_rows & {*rest}:
        return None
    kind = "weight by k" if k else "weight by n"
    return Cut(kind=kind, axis=axes[0], rows=rows, out_rows=rows, columns=rest)


def choice_of(mesh: Any, product: Product, operands: Operands, cut: Cut) -> RingChoice:
    """Return the choice between the kernel and XLA, with its reason."""
    if product.backend.implementation == "xla" or product.backend.chip is None:
        return _no_kernel("the product is left to XLA")
    if product.backend.tiles is not None:
        return _no_kernel("the call has tiles of its own, for the product alone")
    if product.precision == "high":
        return _no_kernel("the kernel has no precision `high`")
    finishes = _finishes(product, operands, cut)
    if finishes and product.kept_sum not in (None, product.dtype_out):
        return _no_kernel("the result and what is kept for the derivative have different dtypes")
    spec, devices = spec_of(product, operands), mesh.shape[cut.axis]
    all_rows = math.prod(operands.lhs.shape[:-1])
    rows = all_rows // math.prod(parts_of(mesh, axes) for axes in cut.rows)
    scatters = cut.ring_kind == "scatter"
    sizes_of = functools.partial(
        WeightSizes if cut.weight_cut else RingSizes,
        devices=devices,
        k=spec.k // devices * spec.products if scatters else spec.k,
        columns=spec.n // parts_of(mesh, cut.by_dimension.get("N", ())),
        dtype=spec.dtype_multiplied,
        dtype_out=product.dtype_out if finishes else "float32",
        weights=spec.products,
        outs=len(spec.dtypes_out) if finishes else 1,
        transpose_rhs=product.transpose_rhs,
        precision=product.precision,
        slice_mesh=slice_of(concrete_mesh(), cut.axis),
    )
    if cut.weight_cut is not None:
        return chosen(sizes_of(rows=rows, cut=cut.weight_cut), product.backend.chip)
    sizes, turned_bytes = sizes_of(rows=rows, scatters=scatters), 0
    if cut.kind != "reduce" and any(
        size > parts_of(mesh, axes)
        for size, axes in zip(operands.lhs.shape[: cut.dimension], cut.rows[: cut.dimension], strict=True)
    ):
        # A copy of lhs before a scatter, or of the results after a gather, reads and writes every row.
        width = sizes.k * dtype_bytes(sizes.dtype) if scatters else sizes.columns * dtype_bytes(sizes.dtype_out)
        all_rows = rows if scatters else devices * rows
        turned_bytes = 2 * all_rows * width * sizes.outs
    # Rows of a chunk: of lhs before an all-gather, of the result after a reduce-scatter.
    sizes = replace(sizes, rows=-(-rows // devices)) if scatters else sizes
    return chosen(
        sizes,
        product.backend.chip,
        turned_bytes=turned_bytes,
        all_reduces=cut.kind == "reduce",
        in_ring_order=axis_ring(cut.axis, devices) == tuple(range(devices)),
    )


def _no_kernel(reason: str) -> RingChoice:
    return RingChoice(by_kernel=False, reason=reason)


def _finishes(product: Product, operands: Operands, cut: Cut) -> bool:
    """True if the kernel makes the results of the sum, rather than XLA."""
    return operands.residual is None and (product.kept_sum is None or cut.ring_kind != "scatter")


def _computed(product: Product, operands: Operands, cut: Cut) -> tuple[Array, ...]:
    """Return the parts of the results on one device."""
    spec, functions, finishes = spec_of(product, operands), product.functions, _finishes(product, operands, cut)
    devices = axis_size(cut.axis)
    ring = RingProduct(
        backend=product.backend,
        kind=cut.ring_kind,
        axis_name=cut.axis,
        devices=devices,
        ring=axis_ring(cut.axis, devices),
        collective_id=barrier_number(cut.axis),
        precision=product.precision,
        dtype_out=product.dtype_out if finishes else "float32",
        activation=product.activation if finishes else "",
        function=functions.activation if finishes else None,
        transpose_rhs=product.transpose_rhs,
        pairing=product.pairing,
        kept_sum=product.kept_sum if finishes else None,
        keeps_x=product.keeps_lhs,
        slice_mesh=slice_of(concrete_mesh(), cut.axis),
    )
    lhs: Any = operands.lhs if functions.lhs is None else functions.lhs(operands.lhs, *operands.lhs_args)
    if product.pairing == "added":
        lhs = jnp.concatenate(lhs if isinstance(lhs, tuple) else (lhs, lhs), axis=-1)
    lhs = lhs.astype(spec.dtype_multiplied)
    weights = tuple(side.astype(spec.dtype_multiplied) for side in (operands.rhs, operands.up) if side is not None)
    weights = tuple(side.reshape(side.shape[-2:]) for side in weights)
    shape, dimension = lhs.shape[:-1], cut.dimension
    if cut.kind == "scatter":
        # A device's rows one after another: of several dimensions the scattered one is cut, and its parts come first.
        split = lhs.reshape(*shape[:dimension], devices, shape[dimension] // devices, *lhs.shape[dimension + 1 :])
        lhs, shape = jnp.moveaxis(split, dimension, 0), split.shape[:dimension] + split.shape[dimension + 1 : -1]
    lhs = lhs.reshape(-1, lhs.shape[-1])
    rows = lhs.shape[0]
    if cut.kind == "reduce":
        lhs = jnp.pad(lhs, [(0, -rows % devices), (0, 0)])
    bias = None if operands.bias is None or not finishes else operands.bias.reshape(-1)
    outs = results(ring, lhs, weights, bias)
    if cut.kind == "reduce":
        outs = tuple(lax.all_gather(out, cut.axis, tiled=True)[:rows] for out in outs)
    if cut.kind == "gather":
        parts = [jnp.moveaxis(out.reshape(devices, *shape, out.shape[-1]), 0, dimension) for out in outs]
        shape = (*shape[:dimension], devices * shape[dimension], *shape[dimension + 1 :])
        outs = tuple(part.reshape(*shape, part.shape[-1]) for part in parts)
    outs = tuple(out.reshape(*shape, out.shape[-1]) for out in outs)
    if finishes:
        return outs
    outs = outputs(outs, operands, spec.epilogue, functions, product.dtype_out, product.pairing)
    return tuple(out.astype(dtype) for out, dtype in zip(outs, spec.dtypes_out, strict=True))
