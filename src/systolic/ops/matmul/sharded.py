"""A product of arrays whose types say how they are sharded, as on a mesh that `jax.make_mesh` makes.

Each device multiplies its parts. Rows, columns and the batch stay cut as they are; if k is cut, the parts' products are
summed over the devices, and the epilogue follows that sum. An axis of the mesh that cuts two dimensions of a product
cuts the first of batch, rows, columns and k; the array that it cut elsewhere is gathered first. Where the caller says
how the result is cut, rows and columns are cut so. `across_chips` sends and multiplies in one kernel where that is
faster; `part_choice` leaves the product of a device's parts to XLA where that is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from systolic.kernels.epilogue import outputs
from systolic.ops.collective.noted import noted
from systolic.ops.engine.cuts import Axes, Names, axes_of, cut_as, cuts_of, on_devices, parts_of
from systolic.ops.matmul.across_chips import across_chips, choice_of, cut_of
from systolic.ops.matmul.part_choice import choice_of_part
from systolic.ops.matmul.product import Product, output_shape, spec_of
from systolic.ops.matmul.xla import by_xla
from systolic.spec import Operands, Side

Run = Callable[[Product, Operands], tuple[Array, ...]]


def sharded(run: Run, mesh: Any, product: Product, operands: Operands) -> tuple[Array, ...]:
    """Return the product by `run`, which on each device of the mesh gets the device's parts."""
    if (cut := cut_of(product, operands)) is not None:
        choice = choice_of(mesh, product, operands, cut)
        operands = operands._replace(lhs=noted(operands.lhs, choice))
        if choice.by_kernel:
            return across_chips(mesh, product, operands, cut)
    names = operands.map(lambda array, side: _names(product, side, array.shape), operands.sides)
    cuts = _cuts(product, operands, names)
    run = functools.partial(_faster, run)

    def compute(*parts: Any) -> tuple[Array, ...]:
        part_operands = Operands(*parts)
        return _summed(run, mesh, product, part_operands, cuts["k"]) if "k" in cuts else run(product, part_operands)

    out_names = _names(product, "out", output_shape(product, operands))  # of all outputs
    outs = on_devices(compute, mesh, cuts, tuple(operands), tuple(names), out_names)
    if product.out_cut is None:
        return outs
    # Rows whose axis cuts k too are cut after the sum: XLA makes one reduce-scatter of both.
    return tuple(cut_as(out, mesh, PartitionSpec(*(axes or None for axes in product.out_cut))) for out in outs)


def _faster(run: Run, product: Product, operands: Operands) -> tuple[Array, ...]:
    """Return the product of one device's parts, by `run` or by XLA."""
    choice = choice_of_part(product, operands)
    if choice is None:
        return run(product, operands)
    return by_xla(product, operands._replace(lhs=noted(operands.lhs, choice)))


def _cuts(product: Product, operands: Operands, names: Operands) -> dict[str, Axes]:
    """Return the axes that cut each dimension while the devices multiply."""
    cuts = cuts_of(operands, names, last=("m", "n", "k"))
    if product.out_cut is None:
        return cuts
    k_cuts = [
        axes
        for array, array_names in ((operands.lhs, names.lhs), (operands.rhs, names.rhs))
        for name, axes in zip(array_names, axes_of(array), strict=True)
        if name == "k"
    ]
    summed = set(k_cuts[0]).intersection(*k_cuts[1:]) if k_cuts else set()
    out_cut = [tuple(axis for axis in axes if axis not in summed) for axes in product.out_cut]
    used = {axis for axes in out_cut for axis in axes}
    k = tuple(axis for axis in max(k_cuts, key=len, default=()) if axis not in used)
    out_names = _names(product, "out", output_shape(product, operands))
    return {name: axes for name, axes in zip((*out_names, "k"), (*out_cut, k), strict=True) if name and axes}


def _names(product: Product, side: Side, shape: Sequence[int]) -> Names:
    matrix = {"lhs": ("m", "k"), "rhs": ("k", "n"), "out": ("m", "n")}[side]
    if (side == "lhs" and product.transpose_lhs) or (side == "rhs" and product.transpose_rhs):
        matrix = matrix[::-1]
    # Two products in one array do not have its columns; and two sums cannot be finished separately.
    uncut = {"n"} if product.side_by_side else set()
    uncut |= {"k"} if product.pairing is not None else set()
    names = (*(f"batch{number}" for number in range(len(shape) - 2)), *matrix)
    return tuple("" if size == 1 or name in uncut else name for name, size in zip(names, shape, strict=True))


def _summed(run: Run, mesh: Any, product: Product, operands: Operands, axes: Axes) -> tuple[Array, ...]:
    """Return the product of parts of k, summed over the devices and then finished."""
    spec = spec_of(product, operands)
    spec = replace(spec, k=spec.k * parts_of(mesh, axes))  # which decides if an int32 holds the sum
    # As XLA does: parts of a product that is only cast are sent in its own dtype.
    only_cast = spec.epilogue.is_identity and not spec.epilogue.kept_sum
    narrow = only_cast and jnp.issubdtype(product.dtype_out, jnp.floating)
    part = product.anew(
        dtype_out=product.dtype_out if narrow else spec.dtype_accumulator,
        functions=replace(product.functions, activation=None, primal=None),
        activation="",
        kept_sum=None,
    )
    (total,) = run(part, operands._replace(bias=None, residual=None, scale=None, primal=None))
    outs = outputs(
        (lax.psum(total, axes),), operands, spec.epilogue, product.functions, product.dtype_out, product.pairing
    )
    return tuple(out.astype(dtype) for out, dtype in zip(outs, spec.dtypes_out, strict=True))
