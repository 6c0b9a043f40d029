"""Check the arguments of products across chips, and bring them into canonical form."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import get_abstract_mesh

from systolic.compat import varying_alike
from systolic.compat.mesh_values import concrete_mesh
from systolic.ops.collective.axis_ring import AxisRing
from systolic.ops.collective.product import Kind, RingProduct
from systolic.ops.collective.slices import slice_of
from systolic.ops.collective.wire import LARGEST
from systolic.ops.engine.activations import activation_of
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.dtypes import common_dtype, fused_array, given_dtype, operand, result_dtype, stored_dtype
from systolic.ops.engine.precision import precision_named
from systolic.ops.quantized.arguments import is_quantized
from systolic.ops.quantized.array import Quantized, from_qwix, require_quantized
from systolic.spec import QuantizationError, SpecError

# Kernels of other authors count from 0. Each axis of a mesh has a number of its own; calls over one axis can share it,
# because no device leaves a kernel before all have passed its barrier: it needs what they send.
_FIRST_COLLECTIVE_ID = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    product: RingProduct
    x: Array  # [rows, k]
    w: Array | Quantized  # [k, columns]
    bias: Array | None  # [columns]
    shape: tuple[int, ...]  # of the result that the caller expects
    dtype: str

    @property
    def is_plain(self) -> bool:
        return self.bias is None and not self.product.activation


def canonical(
    kind: Kind,
    x: Any,
    w: Any,
    *,
    axis_name: Any,
    bias: Any,
    activation: str | Callable[..., Any] | None,
    precision: Any,
    preferred_element_type: Any,
    ring: Any,
    collective_id: int | None,
    backend: Backend,
    wire_dtype: Any = None,
) -> Call:
    """Check the arguments; raise SpecError for an unknown axis, or for shapes or dtypes that do not match."""
    devices = axis_size(axis_name)
    rows, weights = operand(x, "x"), _quantized(w, kind, devices) if is_quantized(w) else operand(w, "w")
    shapes = f"x{list(rows.shape)}, w{list(weights.shape)}"
    if rows.ndim < 2 or weights.ndim != 2:
        raise SpecError(f"{shapes}: x is [rows, k], perhaps with dimensions between them, and w is [k, columns]")
    if rows.shape[-1] != weights.shape[0]:
        raise SpecError(f"{shapes}: k={rows.shape[-1]} and {weights.shape[0]}; the inner sizes have to agree")
    first, *between = rows.shape[:-1]
    if kind == "scatter" and first % devices:
        raise SpecError(
            f"{shapes}: {first} rows do not divide among the {devices} devices of {axis_name!r}; pad x to "
            f"{-(-first // devices) * devices} rows"
        )
    columns = weights.shape[1]
    if bias is not None:
        bias = fused_array(bias, "bias")
        if bias.shape != (columns,):
            raise SpecError(f"bias of shape {list(bias.shape)}; it has to be [{columns}], as the columns of w")
    original_dtypes = (given_dtype(x, "x"), given_dtype(x if isinstance(weights, Quantized) else w, "w"))
    if not isinstance(weights, Quantized):
        dtype = common_dtype(rows.dtype.name, weights.dtype.name)
        weights = weights.astype(dtype)
    elif (dtype := rows.dtype.name) not in ("float32", "bfloat16"):
        raise SpecError(f"x is {dtype}; with a quantized w it has to be bfloat16 or float32")
    dtype_out = result_dtype((dtype, dtype), original_dtypes, preferred_element_type)
    name, function = activation_of(activation, in_kernel=backend.in_kernel)
    product = RingProduct(
        backend=backend,
        kind=kind,
        axis_name=axis_name,
        devices=devices,
        ring=_ring(ring, axis_name, devices),
        collective_id=barrier_number(axis_name, collective_id),
        precision=precision_named(precision),
        dtype_out=stored_dtype(dtype_out),
        activation=name,
        function=function,
        wire_dtype=wire_dtype_named(wire_dtype, dtype),
        slice_mesh=slice_of(concrete_mesh(), axis_name),
    )
    flat = rows.astype(dtype).reshape(math.prod(rows.shape[:-1]), rows.shape[-1])
    # Where JAX checks what varies over the mesh, the axis index varies over the axis, so all operands are made to.
    leaves, structure = jax.tree.flatten((flat, weights, bias))
    x, w, bias = structure.unflatten(varying_alike([*leaves, lax.axis_index(axis_name)])[:-1])
    all_rows = first // devices if kind == "scatter" else first * devices
    return Call(
        product=product,
        x=x,
        w=w,
        bias=bias,
        shape=(all_rows, *between, columns),
        dtype=dtype_out,
    )


def axis_size(axis_name: Any) -> int:
    """Return the devices along a mesh axis; raise SpecError if the surrounding `jax.shard_map` has no such axis."""
    mesh = get_abstract_mesh()
    if not isinstance(axis_name, str):
        raise SpecError(f"axis_name={axis_name!r}; use the name of one axis of the mesh")
    if axis_name not in mesh.manual_axes:
        manual = ", ".join(map(str, mesh.manual_axes))
        where = f"the axes of the surrounding `jax.shard_map` are {manual}" if manual else "call it in `jax.shard_map`"
        raise SpecError(f"axis_name={axis_name!r} is not known here; {where}")
    return int(lax.axis_size(axis_name))


def axis_ring(axis_name: str, devices: int) -> tuple[int, ...] | None:
    """Return the ring of a mesh axis; None if the mesh is known only when the program is lowered."""
    mesh = concrete_mesh()
    return None if mesh is None else AxisRing(axis_name=axis_name, size=devices)(mesh)


def barrier_number(axis_name: str, collective_id: int | None = None) -> int:
    """Return the `collective_id` of kernels over an axis of the surrounding `jax.shard_map`, unless the caller has one.

    Raises:
      SpecError: the caller's is not a whole number from 0 up.
    """
    if collective_id is None:
        return _FIRST_COLLECTIVE_ID + get_abstract_mesh().axis_names.index(axis_name)
    if not isinstance(collective_id, int) or isinstance(collective_id, bool) or collective_id < 0:
        raise SpecError(f"collective_id={collective_id!r}; use a whole number from 0 up")
    return collective_id


def wire_dtype_named(dtype: Any, operand_dtype: str) -> str | None:
    """Return the name of the dtype in which rows and sums travel; raise SpecError unless it is None or known."""
    if dtype is None:
        return None
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = dtype
    if name not in LARGEST:
        raise SpecError(f"wire_dtype={name!r}; use {', '.join(map(repr, LARGEST))}, or leave it out")
    if not jnp.issubdtype(operand_dtype, jnp.floating):
        raise SpecError(f"wire_dtype={name!r} with operands of {operand_dtype}; it rounds, so use it for floats")
    return name


def _quantized(w: Any, kind: Kind, devices: int) -> Quantized:
    """Return a quantized weight; raise QuantizationError if scales do not go with the values of this device."""
    array, fix = from_qwix(w) if not isinstance(w, Quantized) else w, "in `jax.shard_map` cut scales as their values"
    try:
        require_quantized(array)
    except QuantizationError as error:
        raise QuantizationError(f"w: {error}; {fix}") from error
    columns = array.shape[-1]
    if kind == "scatter" and array.scales.shape[-1] == columns // devices > 1:
        raise QuantizationError(
            f"w: scales {list(array.scales.shape)} are a part of the columns of values {list(array.shape)}, whose rows "
            f"the {devices} devices cut; {fix}, or leave scales [1, {columns}] uncut"
        )
    return array


def _ring(ring: Any, axis_name: str, devices: int) -> tuple[int, ...] | None:
    if ring is None:
        return axis_ring(axis_name, devices)
    try:
        order = tuple(map(operator.index, ring))
    except TypeError as error:
        raise SpecError(f"ring={ring!r}; use a sequence of axis indices") from error
    if sorted(order) != list(range(devices)):
        raise SpecError(f"ring={order} is not an order of the {devices} devices of the axis, 0 to {devices - 1}")
    return order
