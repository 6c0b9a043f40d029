"""A product of arrays whose types say how they are sharded, as on a mesh that `jax.make_mesh` makes.

Each device multiplies its parts. Rows, columns and the batch stay cut as they are; where k is cut, the parts' products
are summed over the devices, and what follows the sum is computed after that. An axis of the mesh that cuts two
dimensions of a product cuts the first of batch, rows, columns and k; the array that it cut elsewhere is gathered first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec, reshard

from systolic.kernels.functions import outputs
from systolic.ops.matmul.product import Product, output_shape, spec_of
from systolic.spec import Operands, Side

Run = Callable[[Product, Operands], tuple[Array, ...]]
Names = tuple[str, ...]  # of an array's dimensions: m, k, n, batch0 …; "" where it is never cut
Axes = tuple[str, ...]  # of a mesh


def sharded(run: Run, mesh: Any, product: Product, operands: Operands) -> tuple[Array, ...]:
    """The product by `run`, which gets on each device the parts that it has.

    Args:
      mesh: what `target.explicit_mesh` found.
    """
    names = operands.map(lambda array, side: _names(product, side, array.shape), operands.sides)
    cuts = _cuts(operands, names)
    specs = operands.map(lambda _, its: _spec(cuts, its), names)
    parts = operands.map(lambda array, spec: _as(array, mesh, spec), specs)
    made = _spec(cuts, _names(product, "out", output_shape(product, operands)))

    def compute(parts: Operands) -> tuple[Array, ...]:
        return _summed(run, product, parts, cuts["k"]) if "k" in cuts else run(product, parts)

    # Nothing is differentiated in here, for which it would have to be checked what varies.
    on_devices = jax.shard_map(
        compute,
        mesh=mesh,
        in_specs=(specs,),
        out_specs=made,  # of all outputs
        axis_names=frozenset(mesh.explicit_axes),
        check_vma=False,
    )
    return jax.jit(on_devices)(parts)  # by itself it takes no mesh without devices


def sharded_like(array: Array | None, like: Array) -> Array | None:
    """The array with the sharding in the other's type: what a cotangent has to have."""
    sharding = jax.typeof(like).sharding
    return array if array is None or not sharding.mesh.explicit_axes else _as(array, sharding.mesh, sharding.spec)


def _as(array: Array, mesh: Any, spec: PartitionSpec) -> Array:
    return array if jax.typeof(array).sharding.spec == spec else reshard(array, NamedSharding(mesh, spec))


def _names(product: Product, side: Side, shape: Sequence[int]) -> Names:
    matrix = {"lhs": ("m", "k"), "rhs": ("k", "n"), "out": ("m", "n")}[side]
    if (side == "lhs" and product.transpose_lhs) or (side == "rhs" and product.transpose_rhs):
        matrix = matrix[::-1]
    # Columns of two products that are stored as one are not those of either; and two sums cannot be finished apart.
    uncut = {"n"} if product.side_by_side else set()
    uncut |= {"k"} if product.pairing is not None else set()
    names = (*(f"batch{number}" for number in range(len(shape) - 2)), *matrix)
    return tuple("" if size == 1 or name in uncut else name for name, size in zip(names, shape, strict=True))


def _cuts(operands: Operands, names: Operands) -> dict[str, Axes]:
    """The axes that cut each dimension."""
    wanted: dict[str, Axes] = {}
    for array, its in zip(operands.present(), names.present(), strict=True):
        for name, axes in zip(its, _axes(array), strict=True):
            if name and axes:
                wanted.setdefault(name, axes)
    cuts: dict[str, Axes] = {}
    for name in sorted(wanted, key=lambda name: (name == "k", name == "n", name == "m", name)):
        taken = {axis for axes in cuts.values() for axis in axes}
        if left := tuple(axis for axis in wanted[name] if axis not in taken):
            cuts[name] = left
    return cuts


def _axes(array: Array) -> Iterator[Axes]:
    spec = jax.typeof(array).sharding.spec
    for each in (*spec, *(None for _ in range(array.ndim - len(spec)))):
        yield (each,) if isinstance(each, str) else tuple(each or ())


def _spec(cuts: dict[str, Axes], names: Names) -> PartitionSpec:
    return PartitionSpec(*(cuts.get(name) for name in names))


def _summed(run: Run, product: Product, operands: Operands, axes: Axes) -> tuple[Array, ...]:
    """The product of parts of k, summed over the devices, and finished then."""
    spec = spec_of(product, operands)
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
