"""The TPU compiler takes a layer of experts with its gradients, whose rows kernels move."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import systolic

TOKENS, EXPERTS, F = 200, 8, 256


# 1,152 columns are a register of eight tiles and one tile; 320 are not whole tiles.
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("d", "dtype"), [(1152, "bfloat16"), (320, "float32")])
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_kernels_move_rows_forward_and_backward(chip: str, d: int, dtype: str) -> None:
    def loss(*given: Any) -> jax.Array:
        return (systolic.moe(*given, top_k=2).astype(jnp.float32) ** 2).sum()

    shapes = (TOKENS, d), (EXPERTS, d, F), (EXPERTS, d, F), (EXPERTS, F, d)
    x, *weights = (jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in shapes)
    logits = jax.ShapeDtypeStruct((TOKENS, EXPERTS), jnp.float32)
    run = systolic.simulate(jax.grad(loss, argnums=(0, 1, 2, 3, 4)), x, logits, *weights, chip=chip)
    kernels = [op.name for op in run.cores[0].ops if op.is_pallas]
    for kernel in ("combine", "spread"):  # once in each direction
        assert sum(name.startswith(f"systolic_{kernel}") for name in kernels) >= 2, kernels
