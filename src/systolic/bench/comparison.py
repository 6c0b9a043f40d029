"""XLA's product of two plain matrices, the baseline of every kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from systolic.spec import MatmulSpec

if TYPE_CHECKING:
    import jax


def abstract_operands(spec: MatmulSpec) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Return shapes and dtypes of `lhs[m, k]` and `rhs[k, n]`."""
    import jax
    import jax.numpy as jnp

    return (
        jax.ShapeDtypeStruct((spec.m, spec.k), jnp.dtype(spec.dtype_lhs)),
        jax.ShapeDtypeStruct((spec.k, spec.n), jnp.dtype(spec.dtype_rhs)),
    )


def xla_matmul(spec: MatmulSpec) -> Callable[..., Any]:
    """Return `jnp.matmul` with the spec's output dtype, the baseline of every kernel."""
    import jax.numpy as jnp

    return functools.partial(jnp.matmul, preferred_element_type=jnp.dtype(spec.dtype_out))
