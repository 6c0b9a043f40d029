"""Products across chips of any shape, dtype and order of the ring, on 2, 4 and 8 virtual devices: exact, no race."""

from __future__ import annotations

from pathlib import Path

import pytest
from selection import examples
from virtual_devices import run_on_virtual_devices

# Small integers, whose sums are exact in float32, so that nothing is rounded.
SCRIPT = """
import functools, sys
import jax, jax.numpy as jnp, numpy as np
from hypothesis import given, settings, strategies as st
from jax.sharding import Mesh, PartitionSpec as P
import systolic
from systolic.compat import interpret_params, races_found

devices, count = map(int, sys.argv[1:])
mesh = Mesh(np.array(jax.devices()[:devices]), ("model",))
GATHER = systolic.all_gather_matmul, (P("model"), P(None, "model")), P(None, "model")
SCATTER = systolic.matmul_reduce_scatter, (P(None, "model"), P("model")), P("model")
LANES = st.sampled_from((128, 256, 384))

@settings(deadline=None, max_examples=count, database=None)
@given(
    gathers=st.booleans(), rows=st.integers(1, 70), k=LANES, columns=LANES,
    dtype=st.sampled_from(("bfloat16", "float32")),
    ring=st.permutations(range(devices)), dma=st.sampled_from(("eager", "on_wait")), seed=st.integers(0, 2**31),
)
def test(gathers, rows, k, columns, dtype, ring, dma, seed):
    random = np.random.default_rng(seed)
    multiply, specs, out = GATHER if gathers else SCATTER
    parts = (devices, 1, devices) if gathers else (devices, devices, 1)
    m, k, n = (size * part for size, part in zip((rows, k, columns), parts))
    x, w = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    params = interpret_params(detect_races=True, uninitialized_memory="nan", dma_execution_mode=dma)
    run = functools.partial(
        multiply, axis_name="model", ring=ring, implementation=params, chip="v6e", preferred_element_type=jnp.float32
    )
    mapped = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False))
    np.testing.assert_array_equal(np.asarray(mapped(x.astype(dtype), w.astype(dtype))), x.astype(np.float64) @ w)
    assert not races_found()

test()
"""


@pytest.mark.exhaustive
@pytest.mark.hypothesis
@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow), 8])
def test_any_product_is_exact_and_has_no_race(tmp_path: Path, devices: int) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, str(devices), str(examples(40 // devices)), devices=devices)
