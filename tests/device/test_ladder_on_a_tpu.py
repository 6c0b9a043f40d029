"""The rungs on a real TPU. Skipped, and said so, where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from systolic.bench import operands, reference, tolerance
from systolic.lessons.ladder import RUNGS
from systolic.spec import MatmulSpec

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def tpu() -> None:
    import jax

    platform = jax.default_backend()
    if platform != "tpu":
        pytest.skip(f"needs a TPU; JAX found {platform}")


@pytest.mark.usefixtures("tpu")
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", list(RUNGS))
def test_result_on_a_tpu(name: str, dtype: str) -> None:
    spec = MatmulSpec.of(512, 512, 512, dtype)
    rung = RUNGS[name]
    tiles = rung.default_tiles(spec, 4)
    lhs, rhs = operands(spec)
    result = np.asarray(rung.multiply(lhs, rhs, tiles=tiles, dtype_out=spec.dtype_out))
    wanted = reference(lhs, rhs)
    error = np.max(np.abs(result.astype(wanted.dtype) - wanted))
    assert error <= tolerance(spec, rung.output_roundings(spec, tiles))
