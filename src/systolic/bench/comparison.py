"""A product's time beside XLA's for the same product, compiled by the same compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from systolic.chips import Chip
from systolic.spec import MatmulSpec

if TYPE_CHECKING:
    import jax


def abstract_operands(spec: MatmulSpec) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of `lhs[m, k]` and `rhs[k, n]`."""
    import jax
    import jax.numpy as jnp

    return (
        jax.ShapeDtypeStruct((spec.m, spec.k), jnp.dtype(spec.dtype_lhs)),
        jax.ShapeDtypeStruct((spec.k, spec.n), jnp.dtype(spec.dtype_rhs)),
    )


def xla_matmul(spec: MatmulSpec) -> Callable[..., Any]:
    """`jnp.matmul` with the problem's output dtype: what every kernel is compared with."""
    import jax.numpy as jnp

    return functools.partial(jnp.matmul, preferred_element_type=jnp.dtype(spec.dtype_out))


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A time as a rate."""

    time_us: float
    tflops: float  # 10¹² operations a second
    percent_of_peak: float  # of the operands' dtype, on one device


def speed(spec: MatmulSpec, chip: Chip, time_us: float) -> Speed:
    """The rate at which a product of this time computes.

    Raises:
      UnsupportedDtypeError: the chip has no peak for the operands' dtype.
    """
    per_s = spec.flops / (time_us * 1e-6)
    return Speed(
        time_us=time_us,
        tflops=per_s / 1e12,
        percent_of_peak=100 * per_s / chip.peak_ops_per_s(spec.dtype_lhs),
    )
