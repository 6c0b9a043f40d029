"""Check the arguments of `matmul`, and bring them into canonical form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array

from systolic.kernels.epilogue import Functions
from systolic.ops.engine.activations import activation_of
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.dtypes import fused_array, given_dtype, multiplied_dtype, operand, result_dtype, stored_dtype
from systolic.ops.engine.precision import precision_named
from systolic.ops.engine.shapes import broadcast_shapes, broadcasts_to
from systolic.ops.functions.elementwise import elementwise
from systolic.ops.matmul.product import Product
from systolic.spec import Operands, Side, SpecError

Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Given:
    """An operand of the caller, with its function and that function's arguments."""

    name: Side
    value: Any
    transposed: bool = False
    fn: Fn | None = None
    args: Sequence[Any] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Factor:
    """A checked operand: its matrices, its function, the function's dtype, and the multiplied dtype."""

    matrices: Array  # [*batch, rows, columns]
    args: tuple[Array, ...]
    fn: Fn | None
    dtype_given: str
    dtype_multiplied: str
    is_vector: bool
    description: str

    @classmethod
    def of(cls, argument: Given, *, in_kernel: bool) -> _Factor:
        name = argument.name
        stored = given_dtype(argument.value, name)
        array = operand(argument.value, name)
        args = _arguments(argument.args, f"{name}_args")
        description = f"{name}{list(array.shape)}{' transposed' if argument.transposed else ''}"
        is_vector = array.ndim == 1
        if is_vector:
            array = array[None] if name == "lhs" else array[:, None]
        fn, dtype = _function(argument.fn, f"{name}_fn", array, args, in_kernel)
        return cls(
            matrices=array,
            args=args,
            fn=fn,
            dtype_given=stored if fn is None else dtype,
            dtype_multiplied=dtype,
            is_vector=is_vector,
            description=description,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """A call in canonical form, and the shape and dtype that its caller expects."""

    product: Product
    operands: Operands
    shape: tuple[int, ...]
    dtype: str


def canonical(
    left: Given,
    right: Given,
    *,
    bias: Any = None,
    residual: Any = None,
    out_scale: Any = None,
    activation: str | Fn | None = None,
    precision: Any,
    preferred_element_type: Any,
    backend: Backend,
) -> Call:
    """Check the arguments, make matrices of vectors, all of one rank; raise SpecError for those that do not fit."""
    lhs, rhs = (_Factor.of(factor, in_kernel=backend.in_kernel) for factor in (left, right))
    if (lhs.is_vector and left.transposed) or (rhs.is_vector and right.transposed):
        raise SpecError(f"a vector has no transpose: {lhs.description}, {rhs.description}; leave it out")
    m, k = lhs.matrices.shape[-2:][:: -1 if left.transposed else 1]
    inner, n = rhs.matrices.shape[-2:][:: -1 if right.transposed else 1]
    if k != inner:
        raise SpecError(
            f"{lhs.description} has k={k}, {rhs.description} has k={inner}: the inner sizes have to agree; "
            "check transpose_lhs and transpose_rhs"
        )
    try:
        batch = broadcast_shapes(lhs.matrices.shape[:-2], rhs.matrices.shape[:-2])
    except ValueError as error:
        raise SpecError(
            f"batch dimensions of {lhs.description} and {rhs.description} do not broadcast: each pair has to be equal, "
            "or one of them 1"
        ) from error
    row, column = lhs.is_vector, rhs.is_vector
    shape = (*batch, *(() if row else (m,)), *(() if column else (n,)))
    dtypes_given = lhs.dtype_given, rhs.dtype_given
    dtype_out = result_dtype((lhs.dtype_multiplied, rhs.dtype_multiplied), dtypes_given, preferred_element_type)
    name, function = activation_of(activation, in_kernel=backend.in_kernel)
    rank = len(batch)
    operands = Operands(
        lhs=_ranked(lhs.matrices, rank),
        rhs=_ranked(rhs.matrices, rank),
        lhs_args=tuple(_argument(arg, f"lhs_args[{i}]", lhs.matrices, rank) for i, arg in enumerate(lhs.args)),
        rhs_args=tuple(_argument(arg, f"rhs_args[{i}]", rhs.matrices, rank) for i, arg in enumerate(rhs.args)),
        bias=_fused(bias, "bias", (n,), rank, row=False, column=column, out=shape),
        residual=_fused(residual, "residual", shape, rank, row=row, column=column, out=shape),
        scale=_fused(out_scale, "out_scale", shape, rank, row=row, column=column, out=shape),
    )
    product = Product(
        backend=backend,
        precision=precision_named(precision),
        dtype_out=stored_dtype(dtype_out),
        transpose_lhs=left.transposed,
        transpose_rhs=right.transposed,
        functions=Functions(lhs=lhs.fn, rhs=rhs.fn, activation=function),
        activation=name,
    )
    return Call(product=product, operands=operands, shape=shape, dtype=dtype_out)


def _function(fn: Fn | None, what: str, array: Array, args: Sequence[Array], in_kernel: bool) -> tuple[Fn | None, str]:
    if fn is None:
        if args:
            raise SpecError(f"{what.replace('fn', 'args')} without {what}: there is nothing to give them to")
        return None, array.dtype.name
    shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in (array, *args)]
    fn = elementwise(fn, what, shapes, in_kernel=in_kernel)
    name = getattr(fn, "__name__", type(fn).__name__)
    return fn, multiplied_dtype(jax.eval_shape(fn, *shapes).dtype.name, f"{what} {name}")


def _ranked(array: Array, rank: int) -> Array:
    return array.reshape(*(1,) * (rank + 2 - array.ndim), *array.shape)


def _arguments(values: Any, name: str) -> tuple[Array, ...]:
    if not isinstance(values, (tuple, list)):
        raise SpecError(f"{name} is a {type(values).__name__}; use a tuple of arrays")
    return tuple(fused_array(value, f"{name}[{i}]") for i, value in enumerate(values))


def _argument(array: Array, name: str, operand: Array, rank: int) -> Array:
    if not broadcasts_to(array.shape, operand.shape):
        raise SpecError(f"{name} of shape {list(array.shape)} does not broadcast to its operand's {operand.shape}")
    return _ranked(array, rank)


def _fused(
    value: Any, name: str, shape: tuple[int, ...], rank: int, *, row: bool, column: bool, out: tuple[int, ...]
) -> Array | None:
    """Return an array that broadcasts to `shape`, in its canonical form [*batch or 1, m or 1, n or 1]."""
    if value is None:
        return None
    array = fused_array(value, name)
    if not broadcasts_to(array.shape, shape):
        raise SpecError(
            f"{name} of shape {list(array.shape)} does not go with an output of {list(out)}; "
            + (f"it needs shape {list(shape)} or one element" if name == "bias" else "it has to broadcast to that")
        )
    # The output of a vector lacks an axis: [*batch, m] without columns, [*batch, n] without rows, or [*batch].
    if name != "bias" and array.ndim:
        array = array[..., None] if column else array
        array = array[..., None, :] if row else array
    return _ranked(array, rank)
