"""One device that stands for all of a slice, or is as slow as the slowest: against all devices, executed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from slice_programs import (
    ALL,
    compiled,
    in_order,
    link_bytes,
    on_tensor_cores,
    simulated,
)

from systolic.chips import Chip, SliceShape, chip
from systolic.compiler import ShardedFunction, WorkerPool, submit_compilation
from systolic.simulator import SimulationError, SliceRun
from systolic.simulator.errors import TooManyCopiesError
from systolic.simulator.rounds.repeated import RepeatedRounds
from systolic.simulator.sequencer import Sequencer
from systolic.simulator.slice import run
from systolic.simulator.slice.routes import Routes
from systolic.timing import prepare_program, target_of


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(max_workers=1) as made:
        yield made


def farthest_us(shape: SliceShape) -> float:
    """Return the longest latency from the first device: devices may leave a barrier so far apart."""
    routes = Routes(shape)
    return max(routes.between(0, device.id).latency_s for device in shape.devices) * 1e6


def one_and_all(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, fn: ShardedFunction, arguments: Any, on: Chip, extents: str
) -> tuple[SliceRun, SliceRun]:
    """Return a function's run by one device for all, and by all devices."""
    shape = SliceShape.parse(on, extents)
    program = submit_compilation(pool, fn, arguments, target_of(on, shape), cache=None).result()
    execute = functools.partial(prepare_program(program, on).run_slice, shape, program.assignment, chip=on)
    every = execute(one_for_all=False)
    monkeypatch.setattr(run, "MAX_APART", 1)
    return execute(), every


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "chip_name", "extents"),
    [
        ("all-gather", "v6e", "2x4"),
        ("all-gather", "v6e", "4x4"),
        ("all-gather", "v7x", "2x2x1"),
        ("all-gather", "v5p", "2x2x1"),
        ("all-gather", "v6e", "4x8"),
        ("all-reduce", "v5e", "2x4"),
        ("ring all-gather", "v6e", "2x8"),
        ("reduce-scatter", "v6e", "2x2"),
        ("collective-permute", "v7x", "2x2x1"),
    ],
)
def test_one_device_for_all_is_what_all_devices_do(pool, name, chip_name, extents) -> None:
    one = simulated(pool, name, chip_name, extents)
    every = simulated(pool, name, chip_name, extents, one_for_all=False)
    assert every.way == "all devices"
    if one.way == "all devices":  # then it would have been wrong
        assert len(every.classes) > 1 or name == "reduce-scatter"
    assert bool(one.why_all) == (one.way == "all devices")
    assert dataclasses.replace(one, way="all devices", why_all="") == every


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "way", "later"),
    [
        ("all-gather", "one device for all", 0),
        ("reduce-scatter", "one device for all", 0),
        # The ring goes over links within chips and between them.
        ("all-reduce", "one device for all, as slow as the slowest", 0.02),
    ],
)
def test_one_device_represents_all_where_sparse_cores_communicate(
    pool, monkeypatch: pytest.MonkeyPatch, name, way, later
) -> None:
    monkeypatch.setattr(run, "MAX_APART", 1)
    execute = compiled(pool, name, chip("v7x"), "2x2x1")
    one, every = execute(), execute(one_for_all=False)
    assert (one.way, every.way) == (way, "all devices")
    assert one.slowest.sparse_cores
    assert every.time_us <= one.time_us <= (1 + later) * every.time_us
    assert not one.why_all
    if not later:
        assert dataclasses.replace(one, way="all devices") == every


@pytest.mark.slow
@pytest.mark.parametrize(("extents", "later"), [("2x2x4", 0.02), ("4x4x4", 0.01)])
def test_many_devices_whose_sparse_cores_communicate(pool, monkeypatch: pytest.MonkeyPatch, extents, later) -> None:
    monkeypatch.setattr(run, "MAX_APART", 1)
    execute = compiled(pool, "all-reduce", chip("v7x"), extents)
    one, every = execute(), execute(one_for_all=False)
    assert one.way == "one device for all, as slow as the slowest"
    assert every.time_us <= one.time_us <= (1 + later) * every.time_us


@pytest.mark.exhaustive
def test_rounds_in_which_sparse_cores_communicate_are_skipped(pool, monkeypatch: pytest.MonkeyPatch) -> None:
    skipped: list[int] = []
    skip = RepeatedRounds._skip

    def noted(self: RepeatedRounds, at, handed_over) -> None:
        skip(self, at, handed_over)
        skipped.append(at.skipped)

    monkeypatch.setattr(RepeatedRounds, "_skip", noted)
    monkeypatch.setattr(run, "MAX_APART", 1)
    execute = compiled(pool, "layers", chip("v7x"), "2x2x1")
    fast = execute()
    assert fast.slowest.sparse_cores
    assert min(skipped) > 0
    assert fast == execute(remember=False)


@pytest.mark.slow
def test_the_busiest_device_of_a_schedule_is_nearly_as_slow_as_all(pool) -> None:
    """256 devices pass pieces on from neighbor to neighbor; what a device waits for may come from a busier one."""
    one = simulated(pool, "all-to-all", "v5e", "16x16")
    every = simulated(pool, "all-to-all", "v5e", "16x16", one_for_all=False)
    assert (one.way, every.way) == ("one device for all, as slow as the slowest", "all devices")
    assert one.time_us == pytest.approx(every.time_us, rel=0.05)


@pytest.mark.parametrize(("chip_name", "extents"), [("v6e", "2x2"), ("v5p", "2x2x1")])
def test_devices_that_go_on_with_the_last_at_barriers_are_off_by_hops(
    pool, monkeypatch: pytest.MonkeyPatch, chip_name, extents
) -> None:
    every = simulated(pool, "reduce-scatter", chip_name, extents, one_for_all=False)
    monkeypatch.setattr(run, "MAX_APART", 1)
    one = simulated(pool, "reduce-scatter", chip_name, extents)
    assert one.way == "one device for all, as slow as the slowest"
    assert one.devices == every.devices
    shape = SliceShape.parse(chip(chip_name), extents)
    assert one.time_us == pytest.approx(every.time_us, abs=farthest_us(shape))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("chip_name", "extents"), [("v6e", "4x4"), ("v5e", "4x4"), ("v5p", "2x2x2"), ("v7x", "2x2x2")])
def test_what_devices_read_in_other_orders_takes_all_as_long(
    pool, monkeypatch: pytest.MonkeyPatch, chip_name, extents
) -> None:
    """Arrays that do not make as many equal pieces as there are devices: which comes next is a matter of predicates."""
    fn = ShardedFunction(
        fn=lambda *parts: lax.psum(parts, ALL),
        mesh=in_order,
        in_specs=(PartitionSpec(),) * 3,
        out_specs=PartitionSpec(),
    )
    shapes = ((1000, 8, 128), (3, 256, 1000), (500, 8, 128))
    arguments = tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    one, every = one_and_all(pool, monkeypatch, fn, arguments, on_tensor_cores(chip_name), extents)
    assert one.way == "one device for all, as slow as the slowest"
    assert one.time_us == pytest.approx(every.time_us, rel=0.01)
    assert link_bytes(one) == link_bytes(every)
    read, read_by_one = (
        [core.hbm_read_bytes for each in found.classes for core in each.run.cores for _ in each.devices]
        for found in (every, one)
    )
    assert max(read) == pytest.approx(max(read_by_one), rel=0.01)


def test_code_and_copies_of_some_devices_alone(pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the devices shift lanes, since their part does not begin with a register, and the last copies less."""

    def summed(x: jax.Array) -> jax.Array:
        rows, columns = x.shape
        whole = jnp.zeros((rows, columns * lax.axis_size(ALL)), x.dtype)
        return lax.psum(lax.dynamic_update_slice(whole, x, (0, columns * lax.axis_index(ALL))), ALL)

    fn = ShardedFunction(fn=summed, mesh=in_order, in_specs=(PartitionSpec(None, ALL),), out_specs=PartitionSpec())
    argument = jax.ShapeDtypeStruct((4096, 64 * 8), jnp.bfloat16)
    one, every = one_and_all(pool, monkeypatch, fn, (argument,), chip("v6e"), "2x4")
    assert (one.way, every.way) == ("one device for all, as slow as the slowest", "all devices")
    assert one.time_us == pytest.approx(every.time_us, rel=0.01)


def test_devices_that_find_their_partners_by_branches_go_on_together(pool) -> None:
    one = simulated(pool, "collective-permute of pairs", "v6e", "4x8")
    every = simulated(pool, "collective-permute of pairs", "v6e", "4x8", one_for_all=False)
    assert one.way.startswith("one device for all")
    assert link_bytes(one) == link_bytes(every)
    # Some ways through the branches are longer than others, by cycles.
    assert one.time_us == pytest.approx(every.time_us, rel=0.02)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("chip_name", "extents", "groups"),
    [
        ("v6e", "4x4", 4),
        ("v6e", "4x4", 2),
        ("v5e", "4x4", 2),
        ("v5p", "2x2x2", 2),
        ("v7x", "2x2x2", 2),
        ("v7x", "2x2x2", 4),
    ],
)
def test_a_groups_first_device_waits_for_the_others(
    pool, monkeypatch: pytest.MonkeyPatch, chip_name, extents, groups
) -> None:
    known, shape = chip(chip_name), SliceShape.parse(chip(chip_name), extents)
    count = len(shape.devices)
    together = count // groups

    def mesh_of(devices: Any) -> Mesh:
        in_groups = np.array(sorted(devices, key=lambda device: device.id)).reshape(groups, together)
        return Mesh(in_groups, ("group", "member"))

    cut = PartitionSpec(("group", "member"))
    exchange = functools.partial(lax.all_to_all, axis_name="member", split_axis=0, concat_axis=0, tiled=True)
    fn = ShardedFunction(fn=exchange, mesh=mesh_of, in_specs=(cut,), out_specs=cut)
    argument = jax.ShapeDtypeStruct((count * together * 16, 8, 128), jnp.float32)
    one, every = one_and_all(pool, monkeypatch, fn, (argument,), known, extents)
    assert (one.way, every.way) == ("one device for all, as slow as the slowest", "all devices")
    assert one.time_us == pytest.approx(every.time_us, abs=farthest_us(shape))
    assert link_bytes(one) == link_bytes(every)


# A group's ring goes there on every other chip and back on the rest: eight ways to the next, of which six are two hops.
def test_devices_that_differ_are_refused_before_they_send_too_much(pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_COPIES", 4)
    every = simulated(pool, "all-to-all", "v6e", "2x4")  # which nothing can represent
    assert every.way == "all devices"
    assert every.why_all.endswith("a branch that devices take differently")
    assert every.why_all in str(every)
    monkeypatch.setattr(run, "MAX_COPIES_APART", 4)
    with pytest.raises(TooManyCopiesError, match=r"send each other \d+ copies or more"):
        simulated(pool, "all-to-all", "v6e", "2x4")
    one = simulated(pool, "all-gather", "v6e", "2x4")  # of which one device stands for all
    assert one.way == "one device for all"
    slowest = simulated(pool, "collective-permute", "v6e", "2x4")  # some devices send further than others
    assert slowest.way == "one device for all, as slow as the slowest"
    monkeypatch.undo()
    every = simulated(pool, "collective-permute", "v6e", "2x4")
    assert every.way == "all devices"
    assert every.time_us <= slowest.time_us <= 1.1 * every.time_us


def test_what_is_not_understood_is_said_once(pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise SimulationError("not understood")

    def not_again(*_: object) -> None:
        raise AssertionError("all devices are simulated only where they differ")

    monkeypatch.setattr(run, "_run_all", not_again)
    monkeypatch.setattr(Sequencer, "signal_any", broken)
    with pytest.raises(SimulationError, match="not understood"):
        simulated(pool, "all-gather", "v6e", "2x2")
