"""Numbers that devices take out of a list, each at its own index, decide what they copy and how often a loop runs."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from slice_programs import ALL, in_order

from systolic.chips import SliceShape, chip
from systolic.compiler import ShardedFunction, WorkerPool, submit_compilation
from systolic.simulator import SliceRun
from systolic.timing import prepare_program, target_of

ROUNDS = (3, 9, 5, 9, 7, 3, 5, 1)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(max_workers=1) as made:
        yield made


def own(numbers: tuple[int, ...]) -> jax.Array:
    return lax.dynamic_slice(jnp.array(numbers, jnp.int32), (lax.axis_index(ALL),), (1,))[0]


def simulated(pool: WorkerPool, fn: ShardedFunction, chip_name: str, extents: str) -> SliceRun:
    known, shape = chip(chip_name), SliceShape.parse(chip(chip_name), extents)
    argument = jax.ShapeDtypeStruct((8192, 1024), jnp.float32)
    program = submit_compilation(pool, fn, (argument,), target_of(known, shape), cache=None).result()
    return prepare_program(program, known).run_slice(shape, program.assignment, chip=known)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("chip_name", "extents"), [("v5e", "2x4"), ("v6e", "2x4"), ("v7x", "2x2x1")])
def test_parts_that_begin_at_a_number_of_a_list_need_no_assumptions(pool, chip_name, extents) -> None:
    def part(x: jax.Array) -> jax.Array:
        return 2 * lax.dynamic_slice(x, (own(tuple(rounds * 512 for rounds in ROUNDS)), 0), (256, 1024))

    fn = ShardedFunction(fn=part, mesh=in_order, in_specs=(PartitionSpec(),), out_specs=PartitionSpec(ALL))
    run = simulated(pool, fn, chip_name, extents)
    assert run.way == "one device for all"
    assert run.slowest.assumptions == ()


def test_each_device_runs_a_loop_as_often_as_its_number_says(pool) -> None:
    def repeated(numbers: tuple[int, ...]) -> ShardedFunction:
        def fn(x: jax.Array) -> jax.Array:
            return lax.fori_loop(0, own(numbers), lambda _, y: jnp.tanh(y @ jnp.ones((1024, 1024))), x)

        return ShardedFunction(fn=fn, mesh=in_order, in_specs=(PartitionSpec(ALL),), out_specs=PartitionSpec(ALL))

    run = simulated(pool, repeated(ROUNDS), "v5e", "2x4")
    times = {device: group.run.time_us for group in run.classes for device in group.devices}
    of_rounds = {rounds: {times[device] for device in times if ROUNDS[device] == rounds} for rounds in set(ROUNDS)}
    assert all(len(same) == 1 for same in of_rounds.values())
    (few,), (more,), (most,) = (of_rounds[rounds] for rounds in (3, 5, 9))
    assert most - more == pytest.approx(2 * (more - few), rel=0.01)
    assert run.slowest.time_us == most
