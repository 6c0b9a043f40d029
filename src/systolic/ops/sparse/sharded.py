"""Block-sparse products of arrays whose types say how they are sharded, as on a mesh that `jax.make_mesh` makes.

Blocks and their places are whole on each device. The dense matrix stays cut along the size that the sparse one does not
have, and so does the result. With a mask the size that is summed over stays cut, and the parts' products are summed
over the devices. Everything else is gathered first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array, lax
from jax.sharding import PartitionSpec

from systolic.ops.engine.cuts import cut_as, cuts_of, on_devices
from systolic.ops.engine.target import explicit_mesh
from systolic.ops.sparse.product import Places, SparseProduct
from systolic.ops.sparse.xla import finished
from systolic.spec import accumulator_dtype

Run = Callable[..., Array]

_BLOCKS = ("", "", "")
_PLACES = Places(rows=("",), columns=("",))


def sharded_product(run: Run, mesh: Any, product: SparseProduct, *operands: Any) -> Array:
    """Return the product by `run`, which on each device gets its parts of blocks, dense matrix, bias and places."""
    dense, bias, out = _dense_names(product)
    names = (_BLOCKS, dense, bias, _PLACES)
    return on_devices(
        lambda *parts: run(product, *parts), mesh, cuts_of(operands, names, last=()), operands, names, out
    )


def sharded_sample(run: Run, mesh: Any, product: SparseProduct, *operands: Any) -> Array:
    names = (("", "k"), ("", "k") if product.transpose_rhs else ("k", ""), _PLACES)
    cuts = cuts_of(operands, names, last=())

    def compute(*parts: Any) -> Array:
        if "k" not in cuts:
            return run(product, *parts)
        part = product.anew(dtype_out=accumulator_dtype(operands[0].dtype.name))
        return lax.psum(run(part, *parts), cuts["k"]).astype(product.dtype_out)

    return on_devices(compute, mesh, cuts, operands, names, ("", "") if product.dense_out else _BLOCKS)


def sharded_finish(mesh: Any, product: SparseProduct, total: Array, bias: Any) -> Array:
    _, bias_names, out = _dense_names(product)
    arrays, names = (total, bias), (out, bias_names)

    def compute(total: Array, bias: Any) -> Array:
        return finished(product, total, bias)

    return on_devices(compute, mesh, cuts_of(arrays, names, last=()), arrays, names, out, differentiated=True)


def whole(array: Array) -> Array:
    mesh = explicit_mesh([array])
    return array if mesh is None else cut_as(array, mesh, PartitionSpec(*(None for _ in array.shape)))


def _dense_names(product: SparseProduct) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the names of the dimensions of the dense matrix, the bias and the result."""
    return (("", "n"), ("n",), ("", "n")) if product.kind == "dsd" else (("m", ""), ("",), ("m", ""))
