"""Defects of JAX's releases in how kernels see their grid."""

from __future__ import annotations

from typing import Any


def grid_sizes_are_cached() -> bool:
    """Return whether `pl.num_programs` is that of the first grid with which a kernel was traced.

    So it is in jax 0.11.0 to 0.11.2 (https://github.com/jax-ml/jax/issues/40847): a kernel function that is called
    with other grids and the same blocks computes wrong results, on a TPU too.
    """
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(out: Any) -> None:
        out[...] = jnp.full_like(out[...], pl.num_programs(0))

    def traced(steps: int) -> str:
        result = jax.ShapeDtypeStruct((8 * steps, 128), jnp.int32)
        call: Any = pl.pallas_call(
            kernel, grid=(steps,), out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)), out_shape=result
        )
        [equation] = jax.make_jaxpr(call)().eqns
        return str(equation.params["jaxpr"])

    return traced(2) == traced(3)
