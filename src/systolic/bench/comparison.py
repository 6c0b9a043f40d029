"""A product's time beside XLA's for the same product, compiled by the same compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from systolic.chips import Chip
from systolic.problem import MatmulProblem

if TYPE_CHECKING:
    import jax


def abstract_operands(problem: MatmulProblem) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of `lhs[m, k]` and `rhs[k, n]`."""
    import jax
    import jax.numpy as jnp

    return (
        jax.ShapeDtypeStruct((problem.m, problem.k), jnp.dtype(problem.dtype_lhs)),
        jax.ShapeDtypeStruct((problem.k, problem.n), jnp.dtype(problem.dtype_rhs)),
    )


def xla_matmul(problem: MatmulProblem) -> Callable[..., Any]:
    """`jnp.matmul` with the problem's output dtype: what every kernel is compared with."""
    import jax.numpy as jnp

    return functools.partial(jnp.matmul, preferred_element_type=jnp.dtype(problem.dtype_out))


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A time as a rate."""

    time_us: float
    tflops: float  # 10¹² operations a second
    percent_of_peak: float  # of the operands' dtype, on one device


def speed(problem: MatmulProblem, chip: Chip, time_us: float) -> Speed:
    """The rate at which a product of this time computes.

    Raises:
      UnsupportedDtypeError: the chip has no peak for the operands' dtype.
    """
    per_s = problem.flops / (time_us * 1e-6)
    return Speed(
        time_us=time_us,
        tflops=per_s / 1e12,
        percent_of_peak=100 * per_s / chip.peak_ops_per_s(problem.dtype_lhs),
    )
