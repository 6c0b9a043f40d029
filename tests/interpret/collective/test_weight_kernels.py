"""The kernel whose weight goes round a ring, with schedules that the model of its time may not choose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from virtual_devices import run_on_virtual_devices

SCRIPT = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from systolic.compat import interpret_params, races_found
from systolic.ops.collective.kernel import launch, walk, weights
from systolic.ops.collective.weight_schedule import WeightSchedule

planted = sys.argv[1]
random = np.random.default_rng(0)
if planted != "nothing":
    class Unawaited:
        def __init__(self, copy):
            self.start, self.wait_send = copy.start, copy.wait_send
        def wait_recv(self):
            pass
    copy_on = walk.Walk.copy_on
    walk.Walk.copy_on = lambda *args: Unawaited(copy_on(*args))

def run(cut, devices, groups, blocks, dma, count=1, transposed=False, in_hbm=False):
    rows, k, columns = 16 * blocks, 64 * devices, 256 * groups
    schedule = WeightSchedule(
        devices=devices, rows=rows, k=k, columns=columns, dtype="bfloat16", cut=cut, groups=groups, block=16,
        weights=count, outs=count, transpose_rhs=transposed, in_hbm=in_hbm,
    )
    kernel = launch.RingKernel(
        schedule=schedule, finish=lambda totals, bias: tuple(total + bias for total in totals), axis_name="data",
        collective_id=0, dtype_out="float32", vmem_limit_bytes=2**26,
        interpret=interpret_params(detect_races=True, uninitialized_memory="nan", dma_execution_mode=dma),
    )
    ring = jnp.asarray(random.permutation(devices), jnp.int32)
    n = schedule.out_columns
    x, bias = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((devices * rows, k), (n,)))
    w = [random.integers(-3, 4, (k, n)).astype(np.float32) for _ in range(count)]

    def part(x, *w):
        w = tuple(matrix.T for matrix in w) if transposed else w
        blocked = jnp.asarray(bias).reshape(-1, 1, schedule.width)
        return weights.matmul_gathered_weight(launch.RingOperands(x=x, w=w, ring=ring, bias=blocked), kernel)

    cuts = P("data") if cut == "k" else P(None, "data")
    mapped = jax.jit(jax.shard_map(
        part, mesh=Mesh(np.array(jax.devices()[:devices]), ("data",)), in_specs=(P("data"), *[cuts] * count),
        out_specs=launch.RingResults(outs=P("data"), w=P("data")), check_vma=False,
    ))
    try:
        results = jax.tree.map(np.asarray, mapped(*(array.astype("bfloat16") for array in (x, *w))))
    except RuntimeError as error:
        # From JAX 0.12 on a race may also end the run, and only in some orders of the devices' threads.
        assert planted != "nothing" and "RACE DETECTED" in str(error), error
        return
    assert bool(races_found()) == (planted != "nothing"), (cut, devices, groups)
    if planted == "nothing":
        for out, matrix in zip(results.outs, w, strict=True):
            np.testing.assert_array_equal(out, x.astype(np.float64) @ matrix + bias)

for case in json.loads(sys.argv[2]):
    run(*case)
"""


# The weight's cut, devices, groups of columns, blocks of rows, when copies between devices are made, weights, True if
# they are stored as [columns, k], and True if gathered pieces lie in HBM.
CASES = [
    ("k", 4, 3, 2, "on_wait"),
    ("n", 3, 1, 1, "eager", 2),
    ("k", 2, 2, 2, "eager", 2, False, True),
    ("n", 2, 3, 2, "on_wait"),
    ("k", 3, 2, 1, "eager"),
    ("n", 4, 2, 2, "eager", 1, True, True),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [0, 1])
def test_it_is_exact_and_has_no_race(tmp_path: Path, number: int) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, "nothing", json.dumps(CASES[number::2]))


@pytest.mark.exhaustive
def test_a_missing_wait_is_found(tmp_path: Path) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, "no wait", json.dumps([("k", 4, 2, 1, "eager")]))
