"""The product of two plain matrices by XLA, with which kernels are compared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
