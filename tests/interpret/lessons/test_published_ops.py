"""The programs that published times name, against float64: whole numbers, so that every result is exact."""

from __future__ import annotations

import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from systolic.lessons.published_ops import published_program
from systolic.validation.published import PublishedRow


@pytest.mark.sampled(5)
@pytest.mark.parametrize("op", ["xla", "ladder_v5", "block_matmul_f32_scratch"])
@pytest.mark.parametrize("suffix", ["", "_rhs_transposed", "_relu", "_rhs_transposed_relu"])
def test_every_op_computes_what_its_name_says(op: str, suffix: str) -> None:
    row = PublishedRow(
        line=2,
        source="nobody",
        chip="v5e",
        op=op + suffix,
        m=256,
        k=512,
        n=384,
        dtype_lhs="bfloat16",
        dtype_rhs="bfloat16",
        dtype_out="float32",
        tile_m=128,
        tile_k=128,
        tile_n=128,
        published_us=200.0,
        timing="device",
    )
    program = published_program(row)
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.integers(-3, 4, shape.shape).astype(shape.dtype) for shape in program.arguments)
    assert rhs.shape == ((384, 512) if "transposed" in suffix else (512, 384))
    if op == "xla":
        out = program.function(lhs, rhs)
    else:
        with pltpu.force_tpu_interpret_mode():
            out = program.function(lhs, rhs)
    expected = lhs.astype(np.float64) @ (rhs.T if "transposed" in suffix else rhs).astype(np.float64)
    np.testing.assert_array_equal(np.asarray(out), np.maximum(expected, 0) if "relu" in suffix else expected)
