"""`systolic.dot_general` and `systolic.einsum`: the product under the names that models use."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from systolic.chips import Chip
from systolic.spec import MatmulSpec

if TYPE_CHECKING:
    from jax import Array
    from jax.typing import ArrayLike, DTypeLike

    from systolic.ops.engine.backend import Implementation

DimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DimensionNumbers,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    out_sharding: Any = None,
    implementation: Implementation = None,
    chip: str | Chip | None = None,
) -> Array:
    """Compute `jax.lax.dot_general` with `systolic.matmul`, such as for `dot_general=` of flax layers.

    Dimensions of an operand that lie as [batch, rows, k] or [batch, k, rows] are only reshaped; others are transposed
    first. JAX computes everything that the kernel does not: complex numbers, dtypes that a TPU does not multiply, an
    `out_sharding`, a precision for each operand.

    Args:
      lhs, rhs: arrays of any shape.
      dimension_numbers: ((contracted of lhs, of rhs), (batch of lhs, of rhs)).
      precision, preferred_element_type: as `systolic.matmul` takes them. The result's dtype is JAX's: int8 for int8.
      out_sharding: as JAX takes it.
      implementation, chip: as `systolic.matmul` takes them.

    Returns:
      The dimensions of the batch, the remaining ones of lhs, and the remaining ones of rhs.

    Raises:
      TypeError: as in JAX, dimensions that do not match.
      SpecError: a kernel requested without a TPU; see `systolic.matmul`.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    from systolic.ops.engine.dtypes import refuse_quantized
    from systolic.ops.matmul.api import matmul

    refuse_quantized(lhs, "lhs")
    refuse_quantized(rhs, "rhs")
    lhs, rhs = jnp.asarray(lhs), jnp.asarray(rhs)
    by_jax = functools.partial(
        lax.dot_general,
        dimension_numbers=dimension_numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )
    if left_to_jax(lhs, rhs, precision=precision, out_sharding=out_sharding):
        return by_jax(lhs, rhs)
    shapes = (jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in (lhs, rhs))
    expected = jax.eval_shape(by_jax, *shapes)  # and JAX's own errors
    left, right, transpose_lhs, transpose_rhs = _operands(lhs, rhs, dimension_numbers)
    out = matmul(
        left,
        right,
        transpose_lhs=transpose_lhs,
        transpose_rhs=transpose_rhs,
        precision=precision,
        preferred_element_type=_sum_dtype(expected.dtype),
        implementation=implementation,
        chip=chip,
    )
    return out.reshape(expected.shape).astype(expected.dtype)


def left_to_jax(lhs: Any, rhs: Any, *, precision: Any, out_sharding: Any) -> str:
    """Return the reason why JAX computes a product of such arrays, or shapes; "" if the kernel does."""
    from systolic.ops.engine.dtypes import OPERAND_DTYPES
    from systolic.ops.engine.precision import is_precision

    for dtype in (lhs.dtype, rhs.dtype):
        if dtype.name not in (*OPERAND_DTYPES, "float16"):
            return f"the kernel does not multiply {dtype.name}"
    if out_sharding is not None:
        return "it has an out_sharding"
    return "" if is_precision(precision) else f"the kernel has no precision {precision}"


def spec_of_dot_general(
    lhs: Any, rhs: Any, dimension_numbers: DimensionNumbers, *, precision: Any, dtype_out: Any
) -> MatmulSpec:
    """Return the spec of a `dot_general` of such arrays, or shapes, with a result of `dtype_out`, for the planner."""
    import jax

    from systolic.ops.engine.backend import backend_of
    from systolic.ops.engine.shapes import fold
    from systolic.ops.matmul.arguments import Given, canonical
    from systolic.ops.matmul.jvp import folded
    from systolic.ops.matmul.product import spec_of

    result = []

    def describe(lhs: Any, rhs: Any) -> None:
        left, right, transpose_lhs, transpose_rhs = _operands(lhs, rhs, dimension_numbers)
        call = canonical(
            Given(name="lhs", value=left, transposed=transpose_lhs),
            Given(name="rhs", value=right, transposed=transpose_rhs),
            precision=precision,
            preferred_element_type=_sum_dtype(dtype_out),
            backend=backend_of("xla", None, None),
        )
        operands, _ = folded(call.product, call.operands)
        result.append(spec_of(call.product, fold(call.product.transpose_lhs, operands)[0]))

    jax.eval_shape(describe, *(jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in (lhs, rhs)))
    return result[0]


def einsum(
    subscripts: str,
    /,
    *operands: ArrayLike,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    implementation: Implementation = None,
    chip: str | Chip | None = None,
) -> Array:
    """Compute `jnp.einsum`, with every product by `systolic.dot_general`.

    Args:
      subscripts: such as "bsd,dhf->bshf".
      operands: two or more arrays, which are multiplied pair by pair; JAX computes a single one.
      precision, preferred_element_type, implementation, chip: as `systolic.dot_general` takes them.

    Raises:
      ValueError: as in JAX, subscripts that do not match the shapes.
      SpecError: a kernel requested without a TPU; see `systolic.matmul`.
    """
    import jax.numpy as jnp

    from systolic.ops.engine.dtypes import refuse_quantized

    for number, array in enumerate(operands):
        refuse_quantized(array, f"operand {number}")
    return jnp.einsum(
        subscripts,
        *operands,
        precision=precision,
        preferred_element_type=preferred_element_type,
        _dot_general=_with(implementation, chip),
    )


@functools.lru_cache(maxsize=64)
def _with(implementation: Implementation, chip: str | Chip | None) -> Any:
    """Return one function for each choice: JAX traces `einsum` again for another function."""
    return functools.partial(dot_general, implementation=implementation, chip=chip)


def _operands(lhs: Array, rhs: Array, dimension_numbers: DimensionNumbers) -> tuple[Array, Array, bool, bool]:
    """Return both operands as `matmul` takes them, and which of them are transposed."""
    (lhs_contracted, rhs_contracted), (batch_lhs, batch_rhs) = dimension_numbers
    left, transpose_lhs = _matrices(lhs, batch_lhs, lhs_contracted)
    right, columns_last = _matrices(rhs, batch_rhs, rhs_contracted)
    return left, right, transpose_lhs, not columns_last


def _sum_dtype(out_dtype: Any) -> Any:
    """Return the dtype to request from the kernel: JAX's int8 of int8 wraps, and the kernel's would saturate."""
    import jax.numpy as jnp

    return jnp.int32 if jnp.issubdtype(out_dtype, jnp.integer) else out_dtype


def _matrices(array: Array, batch: Sequence[int], contracted: Sequence[int]) -> tuple[Array, bool]:
    """Return an operand as matrices [*batch, rows, k], or [*batch, k, rows] if it lies so; and True in that case."""
    rest = [axis for axis in range(array.ndim) if axis not in (*batch, *contracted)]
    k_first = [*batch, *contracted, *rest] == list(range(array.ndim))
    order = [*batch, *contracted, *rest] if k_first else [*batch, *rest, *contracted]
    k, rows = (math.prod(array.shape[axis] for axis in axes) for axes in (contracted, rest))
    sizes = (k, rows) if k_first else (rows, k)
    return array.transpose(order).reshape(*(array.shape[axis] for axis in batch), *sizes), k_first
