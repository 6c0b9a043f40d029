"""What `matmul` was given: checked, and brought into the one form that the rest works on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu

from systolic.chips import Chip
from systolic.chips import chip as chip_named
from systolic.ops.dtypes import beside, given_dtype, multiplied_dtype, operand, result_dtype
from systolic.ops.epilogue import activation_of
from systolic.ops.functions.elementwise import elementwise
from systolic.ops.matmul.jvp import Formula, Operands
from systolic.ops.matmul.product import Implementation, Where
from systolic.ops.shapes import broadcast_shapes
from systolic.ops.target import target_chip
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import PrecisionName, SpecError

Fn = Callable[..., Any]
_IMPLEMENTATIONS = (None, "pallas", "xla", "interpret")
_PRECISIONS: dict[Any, PrecisionName] = {
    None: "default",
    "default": "default",
    "fastest": "default",
    "bfloat16": "default",
    "high": "high",
    "bfloat16_3x": "high",
    "highest": "highest",
    "float32": "highest",
    lax.Precision.DEFAULT: "default",
    lax.Precision.HIGH: "high",
    lax.Precision.HIGHEST: "highest",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call in canonical form, and the shape and dtype that its caller expects."""

    formula: Formula
    operands: Operands
    shape: tuple[int, ...]
    dtype: str


def canonical(
    lhs: Any,
    rhs: Any,
    *,
    bias: Any,
    activation: str | Callable[..., Any] | None,
    residual: Any,
    out_scale: Any,
    transpose_lhs: bool,
    transpose_rhs: bool,
    lhs_fn: Callable[..., Any] | None,
    lhs_args: Sequence[Any],
    rhs_fn: Callable[..., Any] | None,
    rhs_args: Sequence[Any],
    precision: Any,
    preferred_element_type: Any,
    implementation: Implementation,
    chip: str | Chip | None,
    tiles: Tiles | KernelConfig | tuple[int, int, int] | None,
) -> Call:
    """Checks everything, makes matrices of vectors and gives all arrays the same number of dimensions.

    Raises:
      SpecError: shapes or dtypes that do not go together, functions that are not elementwise.
      UnknownChipError: no such chip.
    """
    where = _where(implementation, chip, tiles)
    stored = given_dtype(lhs, "lhs"), given_dtype(rhs, "rhs")
    lhs, rhs = operand(lhs, "lhs"), operand(rhs, "rhs")
    lhs_args, rhs_args = _arguments(lhs_args, "lhs_args"), _arguments(rhs_args, "rhs_args")
    row, column = lhs.ndim == 1, rhs.ndim == 1
    given = f"lhs{list(lhs.shape)}{_marked(transpose_lhs)}", f"rhs{list(rhs.shape)}{_marked(transpose_rhs)}"
    if (row and transpose_lhs) or (column and transpose_rhs):
        raise SpecError(f"a vector has no transpose: {', '.join(given)}; leave it out")
    lhs = lhs[None] if row else lhs
    rhs = rhs[:, None] if column else rhs
    m, k = lhs.shape[-2:][:: -1 if transpose_lhs else 1]
    inner, n = rhs.shape[-2:][:: -1 if transpose_rhs else 1]
    if k != inner:
        raise SpecError(
            f"{given[0]} has k={k}, {given[1]} has k={inner}: the inner sizes have to agree; "
            "check transpose_lhs and transpose_rhs"
        )
    try:
        batch = broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2])
    except ValueError as error:
        raise SpecError(
            f"batch dimensions of {given[0]} and {given[1]} do not broadcast: each pair has to be equal, "
            "or one of them 1"
        ) from error
    shape = (*batch, *(() if row else (m,)), *(() if column else (n,)))
    in_kernel = where.implementation != "xla" and bool(where.chip)
    lhs_fn, dtype_lhs = _function(lhs_fn, "lhs_fn", lhs, lhs_args, in_kernel)
    rhs_fn, dtype_rhs = _function(rhs_fn, "rhs_fn", rhs, rhs_args, in_kernel)
    unmade = stored[0] if lhs_fn is None else dtype_lhs, stored[1] if rhs_fn is None else dtype_rhs
    dtype_out = result_dtype((dtype_lhs, dtype_rhs), unmade, preferred_element_type)
    name, function = activation_of(activation, in_kernel=in_kernel)
    rank = len(batch)
    operands = Operands(
        lhs=_ranked(lhs, rank),
        rhs=_ranked(rhs, rank),
        bias=_beside(bias, "bias", (n,), rank, row=False, column=column, out=shape),
        residual=_beside(residual, "residual", shape, rank, row=row, column=column, out=shape),
        scale=_beside(out_scale, "out_scale", shape, rank, row=row, column=column, out=shape),
        lhs_args=tuple(_argument(arg, f"lhs_args[{i}]", lhs, rank) for i, arg in enumerate(lhs_args)),
        rhs_args=tuple(_argument(arg, f"rhs_args[{i}]", rhs, rank) for i, arg in enumerate(rhs_args)),
    )
    formula = Formula(
        where=where,
        precision=_precision(precision),
        dtype_out="float32" if dtype_out == "float16" else dtype_out,
        transpose_lhs=transpose_lhs,
        transpose_rhs=transpose_rhs,
        lhs_fn=lhs_fn,
        rhs_fn=rhs_fn,
        activation=function,
        activation_name=name,
    )
    return Call(formula=formula, operands=operands, shape=shape, dtype=dtype_out)


def _marked(transposed: bool) -> str:
    return " transposed" if transposed else ""


def _function(fn: Fn | None, what: str, array: Array, args: Sequence[Array], in_kernel: bool) -> tuple[Fn | None, str]:
    """An operand's function, and the dtype that is multiplied: of the operand, or of what the function makes of it."""
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
    return tuple(beside(value, f"{name}[{i}]") for i, value in enumerate(values))


def _argument(array: Array, name: str, operand: Array, rank: int) -> Array:
    try:
        fits = broadcast_shapes(array.shape, operand.shape) == operand.shape
    except ValueError:
        fits = False
    if not fits:
        raise SpecError(f"{name} of shape {list(array.shape)} does not broadcast to its operand's {operand.shape}")
    return _ranked(array, rank)


def _beside(
    value: Any, name: str, wanted: tuple[int, ...], rank: int, *, row: bool, column: bool, out: tuple[int, ...]
) -> Array | None:
    """What has to broadcast to the shape `wanted`, in its canonical form [*batch or 1, m or 1, n or 1]."""
    if value is None:
        return None
    array = beside(value, name)
    try:
        fits = broadcast_shapes(array.shape, wanted) == tuple(wanted)
    except ValueError:
        fits = False
    if not fits:
        raise SpecError(
            f"{name} of shape {list(array.shape)} does not go with an output of {list(out)}; "
            + (f"it needs shape {list(wanted)} or one element" if name == "bias" else "it has to broadcast to that")
        )
    # The output of a vector lacks an axis: [*batch, m] without columns, [*batch, n] without rows, or [*batch].
    if name != "bias" and array.ndim:
        array = array[..., None] if column else array
        array = array[..., None, :] if row else array
    return _ranked(array, rank)


def _precision(precision: Any) -> PrecisionName:
    if precision is None:
        precision = getattr(jax.config, "jax_default_matmul_precision", None)
    if isinstance(precision, (tuple, list)) and len(set(precision)) == 1:
        precision = precision[0]
    if isinstance(precision, str):
        precision = precision.lower()
    try:
        return _PRECISIONS[precision]
    except (KeyError, TypeError) as error:
        raise SpecError(f"precision={precision!r} is not known; use default, high or highest") from error


def _where(implementation: Implementation, chip: str | Chip | None, tiles: Any) -> Where:
    if implementation not in _IMPLEMENTATIONS and not isinstance(implementation, pltpu.InterpretParams):
        raise SpecError(f"implementation={implementation!r} is not known; use pallas, xla or interpret, or None")
    if chip is not None and not isinstance(chip, (str, Chip)):
        raise SpecError(f"chip={chip!r} is not known; use a name such as v5e, or a systolic.Chip")
    known = chip_named(chip) if isinstance(chip, str) else chip
    if known is None and implementation != "xla":
        known = target_chip()
    if known is None and implementation not in (None, "xla"):
        known = chip_named("v5e")  # to be interpreted, some chip's tiles will do
    if tiles is not None and not isinstance(tiles, (Tiles, KernelConfig)):
        try:
            tile_m, tile_k, tile_n = map(operator.index, tiles)
        except (TypeError, ValueError) as error:
            raise SpecError(f"tiles={tiles!r}; use three whole numbers: (tile_m, tile_k, tile_n)") from error
        tiles = Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n)
    return Where(implementation=implementation, chip=known, tiles=tiles)
