"""The memory from which kernels read activations."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import systolic
from systolic.kernels.launch import memory_of_activations


@pytest.mark.parametrize(
    ("chip", "shape", "memory"),
    [
        ("v5e", (256, 14336), pl.ANY),
        ("v6e", (256, 14336), pl.ANY),
        ("v6e", (14336, 256), pl.ANY),  # stored by columns
        ("v6e", (257, 4096), pltpu.HBM),
        ("v6e", (256, 16385), pltpu.HBM),
        ("v7x", (16, 4096), pltpu.HBM),
    ],
)
def test_activations_of_few_rows_may_be_anywhere(chip: str, shape: tuple[int, int], memory: object) -> None:
    rows = jnp.broadcast_to(jnp.zeros((), jnp.bfloat16), shape)
    assert memory_of_activations(rows, systolic.chip(chip)) is memory
