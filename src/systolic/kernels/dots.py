"""The product of two blocks in the precision of a grouped or block-sparse product."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from systolic.kernels.operands import of_halves, split
from systolic.spec import OneDtype


def dot(lhs: Array, rhs: Array, contracted: tuple[int, int], spec: OneDtype) -> Array:
    """Sum over these dimensions of both blocks, in the accumulator's dtype."""
    is_float32 = spec.dtype == "float32"
    exact = is_float32 and spec.precision == "highest"

    def one(left: Array, right: Array) -> Array:
        return lax.dot_general(
            left,
            right,
            (((contracted[0],), (contracted[1],)), ((), ())),
            precision=lax.Precision.HIGHEST if exact else lax.Precision.DEFAULT,
            preferred_element_type=jnp.dtype(spec.dtype_accumulator),
        )

    return of_halves(one, split(lhs), split(rhs)) if is_float32 and spec.precision == "high" else one(lhs, rhs)
