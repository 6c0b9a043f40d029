"""The kernels that walk a ring, with schedules that the model of their time may not choose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from virtual_devices import run_on_virtual_devices

SCRIPT = """
import contextlib, json, sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from systolic.compat import interpret_params, races_found, watched_interpreter
from systolic.ops.collective.kernel import gather, launch, scatter, walk
from systolic.ops.collective.schedule import RingSchedule

planted, delayed = sys.argv[1], set(json.loads(sys.argv[3]))
random = np.random.default_rng(0)
if planted == "one place":
    gather.PART_SLOTS = 1  # so the rows of a part come to where those of the one before still are
if planted == "no wait":
    class Unawaited:
        def __init__(self, copy):
            self.start, self.wait_send = copy.start, copy.wait_send
        def wait_recv(self):
            pass
    copy_on = walk.Walk.copy_on
    walk.Walk.copy_on = lambda *args: Unawaited(copy_on(*args))

copies = dict.fromkeys(delayed, 0)

def delay(name, source, function, *operands):
    device = int(operands[1]) if name == "dma_start" else None  # after a token
    if device in delayed:
        copies[device] += 1
        time.sleep(0.01 * (copies[device] * 7 % 5))
    return function(*operands)

def run(kind, devices, pieces, slots_at_once, block, dma, weights=1, parts=1, row_cores=1, column_cores=1):
    rows, k, columns = 16 * pieces * parts, 128, 1024 // column_cores
    gathers, two = kind == "gather", weights == 2
    schedule = RingSchedule(
        devices=devices, rows=rows, columns=columns, dtype="bfloat16", pieces=pieces, slots_at_once=slots_at_once,
        block=block, weights=weights, outs=weights if gathers else 1, transpose_rhs=two, parts=parts,
        row_cores=row_cores, column_cores=column_cores,
    )
    rows, columns = schedule.chunk_rows, schedule.out_columns
    kernel = launch.RingKernel(
        schedule=schedule, finish=lambda totals, bias: totals, keeps_x=gathers and two,
        axis_name="model", collective_id=0, dtype_out="float32", vmem_limit_bytes=2**26,
        interpret=interpret_params(detect_races=True, uninitialized_memory="nan", dma_execution_mode=dma),
    )
    ring = jnp.asarray(random.permutation(devices), jnp.int32)
    multiply = gather.all_gather_matmul if gathers else scatter.matmul_reduce_scatter
    specs = (P("model"), P(None, "model")) if gathers else (P(None, "model"), P("model"))
    shapes = (devices * rows, k), (k, devices * columns)
    if not gathers:
        shapes = (devices * rows, devices * k), (devices * k, columns)
    x, *w = (random.integers(-3, 4, shape).astype(np.float32) for shape in (*shapes, *shapes[1:] * (weights - 1)))

    def part(x, *w):
        # Two weights of a scatter: each device has rows of both, and of x the columns of both.
        w = tuple(matrix.T for matrix in w) if two else w
        x = x if gathers else jnp.concatenate([x] * weights, axis=1)
        return multiply(launch.RingOperands(x=x, w=w, ring=ring), kernel)

    mapped = jax.jit(jax.shard_map(
        part, mesh=Mesh(np.array(jax.devices()[:devices]), ("model",)), in_specs=(specs[0], *specs[1:] * weights),
        out_specs=launch.RingResults(outs=specs[1], x=P()), check_vma=False,
    ))
    try:
        with watched_interpreter(delay) if delayed else contextlib.nullcontext():
            results = jax.tree.map(np.asarray, mapped(*(array.astype("bfloat16") for array in (x, *w))))
    except RuntimeError as error:
        # From JAX 0.12 on a race may also end the run, and only in some orders of the devices' threads.
        assert planted != "nothing" and "RACE DETECTED" in str(error), error
        return
    if planted == "nothing":
        totals = [x.astype(np.float64) @ matrix for matrix in w]
        for out, total in zip(results.outs, totals if gathers else [sum(totals)], strict=True):
            np.testing.assert_array_equal(out, total)
        if kernel.keeps_x:
            np.testing.assert_array_equal(results.x.astype(np.float32), x)
        assert not races_found(), (kind, devices, pieces, slots_at_once)
    else:
        assert races_found()

for case in json.loads(sys.argv[2]):
    run(*case)
assert all(copies.values())
"""


# Kind, devices, pieces, slots at once, columns at once, when copies between devices are made, weights, of which two are
# stored as [columns, k], and parts.
CASES = [
    ("gather", 4, 4, 2, 1024, "on_wait"),
    ("gather", 3, 2, 1, 256, "eager", 2),
    ("scatter", 4, 2, 1, 512, "eager"),
    ("gather", 2, 2, 2, 512, "eager"),
    ("scatter", 4, 4, 2, 1024, "on_wait"),
    ("scatter", 3, 2, 3, 256, "eager", 2),
    ("scatter", 4, 2, 4, 512, "on_wait"),
    ("scatter", 2, 4, 1, 512, "on_wait"),
    ("gather", 5, 2, 1, 512, "eager", 1, 4),
    ("gather", 6, 4, 2, 1024, "on_wait", 2, 3),
    ("gather", 8, 2, 4, 512, "on_wait", 1, 2),
    ("gather", 5, 2, 5, 1024, "eager", 2, 3),
]


# On two cores that share rows, or columns.
TWO_CORES = [
    ("gather", 2, 2, 1, 512, "on_wait", 2, 1, 2, 1),
    ("scatter", 3, 2, 1, 256, "on_wait", 1, 1, 1, 2),
    ("gather", 3, 2, 1, 256, "eager", 2, 1, 1, 2),
]
IN_PARTS = ("gather", 5, 2, 1, 512, "eager", 1, 3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_they_are_exact_and_have_no_race(tmp_path: Path, number: int) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, "nothing", json.dumps(CASES[number::2]), "[]", devices=8)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", TWO_CORES, ids=str)
def test_two_cores_are_exact_and_have_no_race(tmp_path: Path, case: tuple[Any, ...]) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, "nothing", json.dumps([case]), "[]", devices=case[1], cores=2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("delayed", [pytest.param([1], marks=pytest.mark.slow), [0, 2]], ids=str)
def test_late_devices_change_nothing(tmp_path: Path, delayed: list[int]) -> None:
    cases = [*[(kind, 4, 2, 1, 512, "eager") for kind in ("gather", "scatter")], IN_PARTS]
    run_on_virtual_devices(SCRIPT, tmp_path, "nothing", json.dumps(cases), json.dumps(delayed), devices=5)


@pytest.mark.exhaustive
def test_a_part_in_the_place_of_the_one_before_is_found(tmp_path: Path) -> None:
    run_on_virtual_devices(SCRIPT, tmp_path, "one place", json.dumps([IN_PARTS]), "[]", devices=5)


@pytest.mark.exhaustive
def test_a_missing_wait_is_found(tmp_path: Path) -> None:
    cases = [(kind, 4, 2, 1, 512, "eager") for kind in ("gather", "scatter")]
    run_on_virtual_devices(SCRIPT, tmp_path, "no wait", json.dumps(cases), "[]")
