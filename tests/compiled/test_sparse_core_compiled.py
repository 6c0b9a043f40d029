"""Work of SparseCores, from the compiler to a time: a kernel's and XLA's own, alone and beside a product."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from slice_programs import ALL, function_of, in_order

from systolic import simulate
from systolic.chips import Chip, SliceShape, chip
from systolic.compiler import ShardedFunction, WorkerPool, submit_compilation
from systolic.lessons.kernels.sparse_core import gather, take
from systolic.report import chrome_trace
from systolic.simulator import SimulatedRun, assumptions
from systolic.timing import prepare_program, target_of

TABLE = jax.ShapeDtypeStruct((65_536, 128), jnp.float32)
INDEX = jax.ShapeDtypeStruct((8_192,), jnp.int32)
ROWS_BYTES = INDEX.size * 512
SQUARE = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)


def started(run: SimulatedRun, number: int) -> list[str]:
    """Return the instructions of a SparseCore between set-up and clean-up."""
    return [op.name for op in run.sparse_cores[number].ops[1:-1]]


def least_us(on: Chip) -> float:
    """Rows in and out of each tile at its stream's rate, which can overlap, and over HBM, where they cannot."""
    sparse = on.sparse_core
    assert sparse is not None
    tiles = sparse.cores_per_device * sparse.tiles_per_core
    return max(ROWS_BYTES / tiles / sparse.stream_bytes_per_s, 2 * ROWS_BYTES / on.machine.hbm_bytes_per_s) * 1e6


@pytest.mark.filterwarnings("ignore:Destination semaphore is ignored")
@pytest.mark.parametrize("name", ["v5p", "v7x"])
def test_a_kernel_gathers_on_all_tiles(name: str) -> None:
    run = simulate(gather, TABLE, INDEX, chip=name)
    assert run.provenance == "modelled"
    assert any("SparseCores" in text for text in run.assumptions)
    sparse = chip(name).sparse_core
    assert sparse is not None
    assert len(run.sparse_cores) == sparse.cores_per_device
    for core in run.sparse_cores:
        assert len(started(run, core.core)) == 1
        assert core.hbm_written_bytes == ROWS_BYTES // sparse.cores_per_device
        assert core.indices == INDEX.size // sparse.cores_per_device
    assert run.time_us > least_us(chip(name))


@pytest.mark.exhaustive
def test_what_xla_hands_to_sparse_cores_stays_there_and_overlaps_a_product() -> None:
    def both(table, index, lhs, rhs):
        return take(table, index), lhs @ rhs

    run = simulate(both, TABLE, INDEX, SQUARE, SQUARE, chip="v7x")
    assert started(run, 0) == started(run, 1) != []
    # libtpu 0.0.52 masks what is out of bounds, and those lanes count as well.
    assert INDEX.size <= sum(core.indices for core in run.sparse_cores) <= 1.05 * INDEX.size
    gathers = run.sparse_cores[0].ops[1]
    product = max(run.later_core.ops, key=lambda op: op.matrix_busy_cycles)
    assert product.matrix_busy_cycles
    assert max(gathers.begin_cycles, product.begin_cycles) < min(gathers.end_cycles, product.end_cycles)
    # The product alone, on a device whose HBM nobody shares, takes no longer.
    alone = simulate(jnp.matmul, SQUARE, SQUARE, chip="v7x")
    assert alone.provenance == "simulated"
    assert alone.sparse_cores == ()
    assert alone.time_us <= run.time_us
    trace = chrome_trace(run, title="both")
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    for kind in ("TensorCore 0", "SparseCore 0", "SparseCore 1"):
        assert any(kind in name for name in names)
    assert SimulatedRun.from_json(run.to_json()) == run


def test_a_scatter_stays_on_the_tensor_core() -> None:
    counts = jax.ShapeDtypeStruct((8_192,), jnp.int32)
    run = simulate(lambda x: jnp.bincount(x, length=64), counts, chip="v7x")
    assert run.sparse_cores == ()
    assert run.provenance == "simulated"


@pytest.mark.exhaustive
def test_programs_of_one_size_are_told_apart_by_the_loops_that_launch_them() -> None:
    on = chip("v7x")
    shape = SliceShape.parse(on, "2x2x1")
    fn, argument = function_of("two loops", len(shape.devices))
    with WorkerPool(1) as pool:
        program = submit_compilation(pool, fn, (argument,), target_of(on, shape), cache=None).result()
    # Instructions of each loop's body, in the order in which the entry has the loops.
    bodies = {
        name: re.findall(r"^\s*%(\S+) = .* call-start\(", body, re.MULTILINE)
        for name, body in re.findall(r"^%(\S+) \(.*?\{$(.*?)^\}", program.top_level_hlo, re.MULTILINE | re.DOTALL)
    }
    loops = re.findall(r" while\(.*body=%([\w.\-]+)", program.top_level_hlo)
    expected = [launch for loop in loops for launch in bodies[loop] * 3]
    assert len(loops) == 2
    assert len(set(expected)) == 4
    run = prepare_program(program, on).run_slice(shape, program.assignment, chip=on).slowest
    assert {tuple(started(run, core.core)) for core in run.sparse_cores if core.ops} == {tuple(expected)}


@pytest.mark.exhaustive
def test_work_of_sparse_cores_counts_where_values_are_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is run again with other values, and may then take somewhat more iterations than before."""

    def scattered(x: jax.Array) -> jax.Array:
        total = lax.psum(x, ALL)
        return total.at[8 * jnp.argmax(total, axis=1)[:64]].add(1.0)

    monkeypatch.setattr(assumptions, "_MORE_ITERATIONS", 0)
    known, shape = chip("v7x"), SliceShape.parse(chip("v7x"), "2x2x1")
    fn = ShardedFunction(fn=scattered, mesh=in_order, in_specs=(PartitionSpec(),), out_specs=PartitionSpec())
    argument = jax.ShapeDtypeStruct((8192, 1024), jnp.float32)
    with WorkerPool(max_workers=1) as pool:
        program = submit_compilation(pool, fn, (argument,), target_of(known, shape), cache=None).result()
    run = prepare_program(program, known).run_slice(shape, program.assignment, chip=known)
    assert run.slowest.sparse_cores
    assert any("computes counts as zero" in text for text in run.slowest.assumptions)
