"""`systolic.gated_matmul` and its gradient through the real compiler: three kernels, and nothing around them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.ops.gated.spec import GatedSpec
from systolic.ops.op import op_of

MAX_BUNDLES = 16_000  # of one kernel
M, K, N = 512, 512, 1024  # of more than 256 rows, all activations cross HBM


def with_gradient(on: str, x: jax.Array, dout: jax.Array, *weights: jax.Array) -> Any:
    out, back = jax.vjp(functools.partial(systolic.gated_matmul, implementation="pallas", chip=on), x, *weights)
    return out, back(dout)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "dtype", "side_by_side"),
    [
        ("v5e", "bfloat16", True),
        ("v6e", "bfloat16", True),
        ("v7x", "bfloat16", False),
        ("v5p", "float32", False),
    ],
)
def test_three_kernels(name: str, dtype: str, side_by_side: bool) -> None:
    shapes = [(M, K), (M, N), *([(K, 2 * N)] if side_by_side else [(K, N), (K, N)])]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in shapes]
    run = systolic.simulate(functools.partial(with_gradient, name), *arrays, chip=name)
    kernels = [operation for operation in run.later_core.ops if operation.name.startswith("systolic_")]
    assert sorted(kernel.name.split("_")[1] for kernel in kernels) == ["added", "apart", "gated"]
    assert sum(kernel.cycles for kernel in kernels) > 0.97 * sum(one.cycles for one in run.later_core.ops)
    assert run.bundles < 3 * MAX_BUNDLES
    # x and both weights twice, both slopes written and read twice, the cotangent twice, the result and the gradients.
    item = jnp.dtype(dtype).itemsize
    least_bytes = item * (3 * M * K + 6 * K * N + (1 + 2 + 2 * 3) * M * N)
    moved_bytes = run.hbm_read_bytes + run.hbm_written_bytes
    assert least_bytes <= moved_bytes < 2.5 * least_bytes


def test_a_spec_is_simulated() -> None:
    spec = GatedSpec.of(16, 512, 1024, "bfloat16")
    raced = op_of(spec).raced(spec, systolic.chip("v6e"))
    ours, xla = (systolic.simulate(fn, *raced.arguments, chip="v6e") for fn in (raced.ours, raced.xla))
    least_us = spec.least_hbm_bytes / systolic.chip("v6e").machine.hbm_bytes_per_s * 1e6
    assert least_us < ours.time_us < 3 * xla.time_us
