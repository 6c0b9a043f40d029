"""The TPU compiler takes the kernel that chooses experts, for odd sizes too."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.ops.engine.backend import backend_of
from systolic.ops.moe.choosing import largest


# 3 experts fill no register; 60 and 130 lie along sublanes from the first, 128 and 512 are transposed.
@pytest.mark.exhaustive
@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e", "v7x"])
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"),
    [(1, 128, 8), (5, 3, 1), (200, 60, 2), (2048, 128, 8), (1100, 130, 16), (64, 512, 8)],
)
def test_no_program_sorts_logits(chip: str, tokens: int, experts: int, top_k: int) -> None:
    backend = backend_of(None, chip, None)

    def router(x: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        return largest(backend, jnp.dot(x, weights, preferred_element_type=jnp.float32), top_k)

    x, weights = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((tokens, 256), (256, experts)))
    names = [op.name for op in systolic.simulate(router, x, weights, chip=chip).cores[0].ops]
    assert any(name.startswith(f"systolic_top_k_{tokens}_{experts}_{top_k}") for name in names), names
    assert not any("sort" in name for name in names), names
