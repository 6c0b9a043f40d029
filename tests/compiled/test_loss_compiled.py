"""The TPU compiler takes the loss kernels on every chip, and no logits cross HBM."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.ops.cross_entropy.spec import CrossEntropySpec
from systolic.ops.op import op_of

M, K, N = 4096, 128, 8200  # two tiles of rows; a vocabulary that ends in the middle of a register


@pytest.mark.exhaustive
@pytest.mark.paired
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["forward", "gradients"])
@pytest.mark.parametrize("name", ["v4", "v5e", "v5p", "v6e", "v7x"])
def test_no_logits_cross_hbm(name: str, kind: Any, dtype: str) -> None:
    chip = systolic.chip(name)
    spec = CrossEntropySpec(m=M, k=K, n=N, dtype=dtype, kind=kind)
    plan = systolic.plan(spec, chip)
    programs = op_of(spec).programs(spec, chip)
    run = systolic.simulate(programs.kernel(plan.config), *programs.arguments, chip=chip)
    assert run.hbm_bytes < M * N * 4  # one pass over the logits in float32
    assert run.hbm_bytes > 0.4 * spec.least_hbm_bytes  # XLA may keep a small array in VMEM


@pytest.mark.exhaustive
@pytest.mark.parametrize("logits", ["recompute", "keep"])
@pytest.mark.parametrize("name", ["v6e"])
def test_a_training_step_has_both_kernels(name: str, logits: Any) -> None:
    def loss(x: Any, w: Any, labels: Any) -> Any:
        options: Any = {"label_smoothing": 0.1, "soft_cap": 30.0, "logits": logits}
        return systolic.linear_cross_entropy(x, w, labels, chip=name, **options)

    m = M if logits == "recompute" else M - 5  # logits of rows that fill no tile
    shapes = [((m, K), jnp.bfloat16), ((K, N), jnp.bfloat16), ((m,), jnp.int32)]
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    run = systolic.simulate(jax.grad(loss, argnums=(0, 1)), *arguments, chip=name)
    kernels = [op.name for op in run.cores[0].ops if op.is_pallas]
    assert len(kernels) == 2, kernels
    assert (run.hbm_bytes > 2 * m * N * 2) is (logits == "keep")  # they are written and read in bfloat16
