"""The dtypes that `matmul` takes; others are converted as `jnp.matmul` does, or refused with the reason."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from systolic.ops.quantized.array import Quantized
from systolic.spec import MatmulSpec, SpecError

# Dtypes that the matrix unit of some chip takes. Callers convert others, because they know what is lost.
OPERAND_DTYPES = ("float32", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2")
# Dtypes of fused arrays. A kernel computes with all of them in float32.
_BESIDE_DTYPES = (*OPERAND_DTYPES, "int16", "int32")
# Dtypes of the result. float16 is computed as float32 and converted after the kernel, which cannot store it.
_RESULT_DTYPES = (*OPERAND_DTYPES, "int32", "float16")

_NOT_TAKEN = "which matmul does not take yet, though the matrix units of"
_NO_SIGN = "and no TPU multiplies unsigned integers"
_NO_TPU = "which no TPU multiplies"
# For refused operands: the reason, the dtype to convert to, and the effect on the values.
_REFUSED: dict[str, tuple[str, str, str]] = {
    "int4": (f"{_NOT_TAKEN} v5e, v5p and v6e do", "int8", "which is exact"),
    "float8_e4m3b11fnuz": (f"{_NOT_TAKEN} v5e, v5p and v6e do", "bfloat16", "which is exact"),
    "float4_e2m1fn": (f"{_NOT_TAKEN} v7x do", "bfloat16", "which is exact"),
    "int2": (_NO_TPU, "int8", "which is exact"),
    "uint2": (_NO_SIGN, "int8", "which is exact"),
    "uint4": (_NO_SIGN, "int8", "which is exact"),
    "uint8": (_NO_SIGN, "bfloat16", "which is exact"),
    "uint16": (_NO_SIGN, "float32", "which is exact, and precision='highest' multiplies all of it"),
    "uint32": (_NO_SIGN, "float32", "which is exact up to 2^24"),
    "uint64": (_NO_SIGN, "float32", "which is exact up to 2^24"),
    "int16": (_NO_TPU, "float32", "which is exact, and precision='highest' multiplies all of it"),
    "int32": (_NO_TPU, "float32", "which is exact up to 2^24"),
    "int64": (_NO_TPU, "float32", "which is exact up to 2^24"),
    "bool": (_NO_TPU, "int8", "which is exact"),
    "float64": (_NO_TPU, "float32", "which rounds"),
    "float16": (_NO_TPU, "bfloat16", "which rounds; float32 is exact"),
    "float8_e3m4": (_NO_TPU, "bfloat16", "which is exact"),
    "float8_e4m3": (_NO_TPU, "bfloat16", "which is exact"),
    "float8_e4m3fnuz": (_NO_TPU, "bfloat16", "which is exact"),
    "float8_e5m2fnuz": (_NO_TPU, "bfloat16", "which is exact"),
    "float8_e8m0fnu": (_NO_TPU, "bfloat16", "which is exact"),
}


def operand(value: Any, name: str) -> Array:
    """Return an operand as an array of one of `OPERAND_DTYPES`; float16 becomes float32, in which it is exact.

    Without `jax_enable_x64` a float64 array of NumPy is float32, as everywhere in JAX.

    Raises:
      SpecError: the operand is not an array, or has a dtype that is not multiplied.
    """
    dtype = given_dtype(value, name)
    if dtype == "float16":
        value, dtype = jnp.asarray(value).astype(jnp.float32), "float32"
    if dtype not in OPERAND_DTYPES:
        raise SpecError(
            f"{name}{list(value.shape)} is {dtype}, {_reason(dtype, f'use {name}.')}. "
            f"matmul takes {', '.join(OPERAND_DTYPES)}, float16"
        )
    if value.ndim == 0:
        raise SpecError(f"{name} is a scalar; matmul takes vectors and matrices. Use * for scalars")
    return jnp.asarray(value)


def fused_array(value: Any, name: str) -> Array:
    """Return an additional operand of a kernel as an array. Python's numbers and lists become float32 or int32.

    Raises:
      SpecError: the value is not an array, or has a dtype with which a kernel does not compute.
    """
    if np.isscalar(value) or isinstance(value, (list, tuple)):
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise SpecError(f"{name} is a {type(value).__name__}, not an array; use jnp.asarray") from error
        value = value.astype({"f": np.float32, "i": np.int32}.get(value.dtype.kind, value.dtype))
    dtype = given_dtype(value, name)
    if dtype == "float16":
        return jnp.asarray(value).astype(jnp.float32)
    if dtype not in _BESIDE_DTYPES:
        raise SpecError(f"{name} is {dtype}, which a TPU kernel does not take; use float32 or bfloat16")
    return jnp.asarray(value)


def given_dtype(value: Any, name: str) -> str:
    """Return the dtype that JAX gives an array; raise SpecError if it is not an array."""
    if isinstance(value, jax.ShapeDtypeStruct):
        raise SpecError(
            f"{name} is a ShapeDtypeStruct, which has no elements; use jax.eval_shape(systolic.matmul, ...) for the "
            "result's shape, systolic.plan for its kernel, systolic.simulate for its time"
        )
    refuse_quantized(value, name)
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        raise SpecError(f"{name} is a {type(value).__name__}, not an array; use jnp.asarray")
    if jnp.issubdtype(value.dtype, jax.dtypes.extended):
        raise SpecError(
            f"{name} is an array of {value.dtype}, not of numbers; draw some with it, as jax.random.normal does"
        )
    try:
        return np.dtype(jax.dtypes.canonicalize_dtype(value.dtype)).name
    except TypeError as error:
        raise SpecError(f"{name} is a {type(value).__name__} of {value.dtype}; use jnp.asarray") from error


def common_dtype(left: str, right: str) -> str:
    """Return the dtype in which the matrix unit takes operands of these dtypes."""
    return _unit_spec(left, right).dtype_multiplied


def stored_dtype(dtype: str) -> str:
    """Return the dtype that a kernel stores for a result: it cannot store float16."""
    return "float32" if dtype == "float16" else dtype


def refuse_quantized(value: Any, name: str) -> None:
    """Raise SpecError for a `Quantized` where an array is expected."""
    if isinstance(value, Quantized):
        raise SpecError(
            f"{name} is a Quantized, which systolic.matmul takes as lhs and rhs, gated_matmul as x and weights, and "
            "grouped_matmul as rhs and up; here use q.dequantize(dtype)"
        )


def _reason(dtype: str, use: str) -> str:
    if dtype.startswith("complex"):
        return "and matmul multiplies real numbers; multiply .real and .imag separately"
    why, fix, then = _REFUSED.get(dtype, (_NO_TPU, "float32", "if that holds it"))
    return f"{why}; {use}astype(jnp.{fix}), {then}"


def multiplied_dtype(dtype: str, made_by: str) -> str:
    """Return the result's dtype of an operand's function, `made_by`; raise SpecError if it is not multiplied."""
    if dtype not in OPERAND_DTYPES:
        raise SpecError(f"{made_by} returns {dtype}, {_reason(dtype, 'end it with .')}")
    return dtype


def result_dtype(dtypes: tuple[str, str], original_dtypes: tuple[str, str], preferred: Any) -> str:
    """Return the dtype of the result.

    Args:
      dtypes: the multiplied dtypes.
      original_dtypes: the dtypes before `operand` converted them.
      preferred: `preferred_element_type`. None: as in `jnp.matmul`, but int32 for integers.

    Raises:
      SpecError: no such dtype can be stored.
    """
    if preferred is None:
        if "float16" in original_dtypes and set(original_dtypes) <= {"float16", "int8"}:
            return "float16"
        product = _unit_spec(*dtypes)
        return "int32" if product.dtype_dot == "int32" else product.dtype_multiplied
    try:
        name = np.dtype(preferred).name
    except TypeError as error:
        raise SpecError(f"preferred_element_type={preferred!r} is not a dtype") from error
    if name not in _RESULT_DTYPES:
        raise SpecError(f"preferred_element_type={name} is not supported; use one of {', '.join(_RESULT_DTYPES)}")
    return name


def _unit_spec(left: str, right: str) -> MatmulSpec:
    return MatmulSpec(m=1, k=1, n=1, dtype_lhs=left, dtype_rhs=right, dtype_out="float32")
