"""The kernel of all-gather × matmul on virtual devices, on a ring that is not in the order of the mesh."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

SCRIPT = """
import functools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, PartitionSpec as P
from systolic.compat import races_found
from systolic.ops.collective.kernel import gather
from systolic.ops.collective.schedule import GatherSchedule

devices, pieces, slots_at_once = map(int, sys.argv[1:4])
planted, dma = sys.argv[4:]
k, columns, dtype = 256, 256, "bfloat16"
rows = 16 * pieces
ring = tuple(np.random.default_rng(0).permutation(devices).tolist())
schedule = GatherSchedule(
    devices=devices, rows=rows, columns=columns, dtype=dtype, pieces=pieces, slots_at_once=slots_at_once, block=128
)
if planted == "no wait":
    class Unawaited:
        def __init__(self, copy):
            self.start, self.wait_send = copy.start, copy.wait_send
        def wait_recv(self):
            pass
    copy_on = gather.Walk.copy_on
    gather.Walk.copy_on = lambda *args: Unawaited(copy_on(*args))
kernel = functools.partial(
    gather.all_gather_matmul, schedule=schedule, axis_name="model", ring=ring, collective_id=0, dtype_out=jnp.float32,
    vmem_limit_bytes=2**26,
    interpret=pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan", dma_execution_mode=dma),
)
mesh = Mesh(np.array(jax.devices()[:devices]), ("model",))
run = jax.jit(jax.shard_map(
    kernel, mesh=mesh, in_specs=(P("model"), P(None, "model")), out_specs=P(None, "model"), check_vma=False
))
random = np.random.default_rng(1)
x, w = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((devices * rows, k), (k, devices * columns)))
try:
    out = np.asarray(run(x.astype(dtype), w.astype(dtype)))
except RuntimeError as error:
    # From JAX 0.12 on a race may also end the run, and only in some orders of the devices' threads.
    assert planted == "no wait" and "RACE DETECTED" in str(error), error
    sys.exit()
if planted == "nothing":
    np.testing.assert_array_equal(out, x.astype(np.float64) @ w)  # small integers: exact in float32
    assert not races_found()
else:
    assert races_found()
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("devices", "pieces", "slots_at_once", "dma"),
    [(4, 2, 1, "eager"), (4, 4, 2, "on_wait"), (3, 2, 1, "on_wait"), (2, 2, 2, "eager")],
)
def test_it_is_exact_and_has_no_race(tmp_path: Path, devices: int, pieces: int, slots_at_once: int, dma: str) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, *map(str, (devices, pieces, slots_at_once)), "nothing", dma)


def test_a_missing_wait_is_found(tmp_path: Path) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, "4", "2", "1", "no wait", "eager")
