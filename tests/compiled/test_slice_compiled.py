"""Collectives on slices, compiled and executed on all devices: bytes by arithmetic, and one device for all."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from systolic.chips import Chip, SliceShape, chip, with_flags
from systolic.compiler import ShardedFunction, WorkerPool, submit_compilation
from systolic.lessons.kernels.rings import all_gather, reduce_scatter, ring_of
from systolic.simulator import SimulationError, SliceRun
from systolic.simulator.errors import DeadlockError, TooManyCopiesError
from systolic.simulator.repeated_calls import Outcome, RepeatedCalls
from systolic.simulator.sequencer import Sequencer
from systolic.simulator.slice import run
from systolic.simulator.slice.routes import Routes
from systolic.timing import prepare_program, target_of

ALL = "all"
BLOCK = (256, 128)  # of float32
BLOCK_BYTES = 256 * 128 * 4


def in_order(devices: Any) -> Mesh:
    return Mesh(np.array(sorted(devices, key=lambda device: device.id)), (ALL,))


def next_one(x: jax.Array) -> jax.Array:
    count = lax.axis_size(ALL)
    return lax.ppermute(x, ALL, [(device, (device + 1) % count) for device in range(count)])


def between_pairs(x: jax.Array) -> jax.Array:
    return lax.ppermute(x, ALL, [(device, device ^ 1) for device in range(lax.axis_size(ALL))])


def around(x: jax.Array) -> jax.Array:
    """A loop of a product and what is passed on."""

    def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.tanh(next_one(x) @ jnp.ones((128, 128))), None

    return lax.scan(layer, x, None, length=8)[0]


# Some devices send, some do not, some receive: XLA looks such permutations up in a table.
SOME = [(0, 3), (1, 0), (3, 1)]


def between_some(x: jax.Array) -> jax.Array:
    return lax.ppermute(x, ALL, SOME)


FUNCTIONS = {
    "collective-permute of some": (between_some, PartitionSpec(ALL)),
    "collective-permute of pairs": (between_pairs, PartitionSpec(ALL)),
    "all-gather": (functools.partial(lax.all_gather, axis_name=ALL, tiled=True), PartitionSpec()),
    "reduce-scatter": (functools.partial(lax.psum_scatter, axis_name=ALL, tiled=True), PartitionSpec(ALL)),
    "all-reduce": (functools.partial(lax.psum, axis_name=ALL), PartitionSpec()),
    "all-to-all": (
        functools.partial(lax.all_to_all, axis_name=ALL, split_axis=0, concat_axis=0, tiled=True),
        PartitionSpec(ALL),
    ),
    "collective-permute": (next_one, PartitionSpec(ALL)),
    "collective-permute in a loop": (around, PartitionSpec(ALL)),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(max_workers=1) as made:
        yield made


def function_of(name: str, blocks: int) -> tuple[ShardedFunction, jax.ShapeDtypeStruct]:
    """A collective by XLA of so many blocks a device, or a ring by hand."""
    shape = jax.ShapeDtypeStruct((blocks * BLOCK[0], BLOCK[1]), jnp.float32)
    if name.startswith("ring"):
        kernel = functools.partial(all_gather if "all-gather" in name else reduce_scatter, ways=(1, -1))
        spec = PartitionSpec("ring")
        return ShardedFunction(fn=kernel, mesh=ring_of, in_specs=(spec,), out_specs=spec), shape
    fn, out = FUNCTIONS[name]
    return ShardedFunction(fn=fn, mesh=in_order, in_specs=(PartitionSpec(ALL),), out_specs=out), shape


def on_tensor_cores(chip_name: str) -> Chip:
    """The chip, with flags that keep communication off the SparseCores of v7x, where all devices are executed."""
    work = ("all_gather", "all_reduce", "reduce_scatter") if chip_name == "v7x" else ()
    return with_flags(
        chip(chip_name), {f"xla_tpu_enable_sparse_core_collective_offload_{kind}": "false" for kind in work}
    )


def simulated(pool: WorkerPool, name: str, chip_name: str, extents: str, **options: Any) -> SliceRun:
    known = on_tensor_cores(chip_name)
    shape = SliceShape.parse(known, extents)
    devices = len(shape.devices)
    fn, argument = function_of(name, devices * devices if name.endswith("reduce-scatter") else devices)
    program = submit_compilation(pool, fn, (argument,), target_of(known, shape), cache=None).result()
    prepared = prepare_program(program, known)
    return prepared.run_slice(shape, program.assignment, chip=known, **options)


def link_bytes(run: SliceRun) -> dict[tuple[int, int], int]:
    return {(link.source, link.target): link.sent_bytes for link in run.links}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("chip_name", "extents"), [("v6e", "2x2"), ("v6e", "2x4")])
@pytest.mark.parametrize("name", ["ring all-gather", "ring reduce-scatter"])
def test_a_ring_sends_all_blocks_but_one_over_each_link(pool, name, chip_name, extents) -> None:
    run = simulated(pool, name, chip_name, extents)
    count = run.devices
    assert run.way == "one device for all"
    assert len(run.links) == 2 * count  # both directions of as many links as the ring has
    assert set(link_bytes(run).values()) == {(count - 1) * BLOCK_BYTES // 2}
    (ring,) = run.collectives
    assert (ring.kind, ring.calls, ring.sent_bytes) == ("pallas", 1, (count - 1) * BLOCK_BYTES)
    assert 0 < ring.exposed_cycles <= ring.cycles <= run.cycles


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("chip_name", "extents"), [("v6e", "2x2"), ("v6e", "4x4"), ("v5p", "2x2x2")])
@pytest.mark.parametrize("name", ["all-to-all", "collective-permute"])
def test_copies_take_the_links_of_their_routes(pool, name, chip_name, extents) -> None:
    run = simulated(pool, name, chip_name, extents)
    routes, count = Routes(SliceShape.parse(chip(chip_name), extents)), run.devices
    pairs = list(itertools.permutations(range(count), 2))
    size = BLOCK_BYTES // count
    if name == "collective-permute":
        pairs, size = [(device, (device + 1) % count) for device in range(count)], BLOCK_BYTES
    expected: Counter[tuple[int, int]] = Counter()
    for source, target in pairs:
        for link in routes.between(source, target).links:
            expected[link.source, link.target] += size
    assert link_bytes(run) == expected
    assert sum(each.sent_bytes for each in run.collectives) == size * len(pairs) // count


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("chip_name", "extents"), [("v5e", "2x2"), ("v6e", "2x4"), ("v7x", "2x2x1")])
def test_a_permutation_by_table_goes_between_those_that_it_names(pool, chip_name, extents) -> None:
    run = simulated(pool, "collective-permute of some", chip_name, extents)
    routes = Routes(SliceShape.parse(chip(chip_name), extents))
    expected: Counter[tuple[str, int, int]] = Counter()
    for source, target in SOME:
        for link in routes.between(source, target).links:
            expected[link.axis, link.source, link.target] += BLOCK_BYTES
    assert {(link.axis, link.source, link.target): link.sent_bytes for link in run.links} == expected


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
    assert dataclasses.replace(one, way="all devices") == every


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
    routes = Routes(shape)
    farthest_us = max(routes.between(0, device.id).latency_s for device in shape.devices) * 1e6
    # How far devices can be apart behind a barrier: the first one's signals need so long for the last.
    assert one.time_us == pytest.approx(every.time_us, abs=farthest_us)


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
    known = on_tensor_cores(chip_name)
    shape = SliceShape.parse(known, extents)
    program = submit_compilation(pool, fn, arguments, target_of(known, shape), cache=None).result()
    prepared = prepare_program(program, known)
    every = prepared.run_slice(shape, program.assignment, chip=known, one_for_all=False)
    monkeypatch.setattr(run, "MAX_APART", 1)
    one = prepared.run_slice(shape, program.assignment, chip=known)
    assert one.way == "one device for all, as slow as the slowest"
    assert one.time_us == pytest.approx(every.time_us, rel=0.01)
    assert link_bytes(one) == link_bytes(every)
    read, read_by_one = (
        [core.hbm_read_bytes for each in found.classes for core in each.run.cores for _ in each.devices]
        for found in (every, one)
    )
    assert max(read) == pytest.approx(max(read_by_one), rel=0.01)


def test_devices_that_find_their_partners_by_branches_go_on_together(pool) -> None:
    one = simulated(pool, "collective-permute of pairs", "v6e", "4x8")
    every = simulated(pool, "collective-permute of pairs", "v6e", "4x8", one_for_all=False)
    assert one.way.startswith("one device for all")
    assert link_bytes(one) == link_bytes(every)
    # Some ways through the branches are longer than others, by cycles.
    assert one.time_us == pytest.approx(every.time_us, rel=0.02)


# A group's ring goes there on every other chip and back on the rest: eight ways to the next, of which six are two hops.
def test_chips_find_their_neighbours_by_tables_of_routes(pool) -> None:
    def gather(devices: Any) -> Mesh:
        return Mesh(np.array(sorted(devices, key=lambda device: device.id)).reshape(8, 4), ("y", "x"))

    fn = ShardedFunction(
        fn=functools.partial(lax.all_gather, axis_name="y", tiled=True),
        mesh=gather,
        in_specs=(PartitionSpec(("x", "y")),),
        out_specs=PartitionSpec("x"),
    )
    known, argument = chip("v5e"), jax.ShapeDtypeStruct((32 * BLOCK[0], BLOCK[1]), jnp.float32)
    shape = SliceShape.parse(known, "4x8")
    program = submit_compilation(pool, fn, (argument,), target_of(known, shape), cache=None).result()
    prepared = prepare_program(program, known)
    one, every = (prepared.run_slice(shape, program.assignment, chip=known, one_for_all=way) for way in (True, False))
    assert one.way == "one device for all, as slow as the slowest"
    assert link_bytes(one) == link_bytes(every)
    # Half of seven blocks goes each way round, over fourteen hops, in each of four groups.
    assert sum(link_bytes(every).values()) == 4 * 2 * 14 * 7 * BLOCK_BYTES // 2
    assert {link.axis for link in every.links} == {"y+", "y-"}
    assert one.time_us == pytest.approx(every.time_us, rel=0.02)


def test_on_a_torus_neighbours_are_looked_up(pool) -> None:
    def torus(devices: Any) -> Mesh:
        return Mesh(np.array(sorted(devices, key=lambda device: device.id)).reshape(16, 16), ("y", ALL))

    spec = PartitionSpec(("y", ALL))
    fn = ShardedFunction(fn=next_one, mesh=torus, in_specs=(spec,), out_specs=spec)
    known, argument = chip("v5e"), jax.ShapeDtypeStruct((256 * BLOCK[0], BLOCK[1]), jnp.float32)
    shape = SliceShape.parse(known, "16x16")
    program = submit_compilation(pool, fn, (argument,), target_of(known, shape), cache=None).result()
    run = prepare_program(program, known).run_slice(shape, program.assignment, chip=known)
    assert run.way == "one device for all"
    expected = {(y * 16 + x, y * 16 + (x + 1) % 16): BLOCK_BYTES for y in range(16) for x in range(16)}
    assert link_bytes(run) == expected


def test_devices_that_differ_are_refused_before_they_send_too_much(pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_COPIES", 4)
    assert simulated(pool, "all-to-all", "v6e", "2x4").way == "all devices"  # which nothing can represent
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


def test_half_the_bytes_of_an_all_gather_go_each_way(pool) -> None:
    run = simulated(pool, "all-gather", "v6e", "2x4")
    assert set(link_bytes(run).values()) == {7 * BLOCK_BYTES // 2}
    (gather,) = run.collectives
    assert (gather.kind, gather.sent_bytes, gather.exposed_cycles) == ("all-gather", 7 * BLOCK_BYTES, gather.cycles)
    assert run.links[0].busy_cycles / run.clock_hz == pytest.approx(
        7 * BLOCK_BYTES / 2 / run.link_bytes_per_s, rel=0.001
    )


def test_what_never_comes_names_device_program_line_and_flag(pool) -> None:
    known = chip("v6e")
    shape = SliceShape.parse(known, "2x2")
    fn, argument = function_of("ring all-gather", 4)
    program = submit_compilation(pool, fn, (argument,), target_of(known, shape), cache=None).result()
    name = next(name for name in program.listings if name.startswith("all_gather"))
    lines = program.listings[name].split("\n")
    broken = next(number for number, line in enumerate(lines) if "vsyncadd.remote" in line)
    before, _, rest = lines[broken].partition("vsyncadd.remote ")
    lines[broken] = f"{before}vsyncadd.remote {rest.replace(', 1', ', 0', 1)}"
    listings = {**program.listings, name: "\n".join(lines)}
    prepared = prepare_program(dataclasses.replace(program, listings=listings), known)
    where = rf", core 0: {name}, line \d+: .*vwait.*allocation"
    with pytest.raises(DeadlockError, match=f"every device{where}"):  # of one device, and said of all at once
        prepared.run_slice(shape, program.assignment, chip=known)
    with pytest.raises(DeadlockError, match=f"device 0{where}.*device 3"):
        prepared.run_slice(shape, program.assignment, chip=known, one_for_all=False)


@pytest.mark.parametrize(("name", "topology"), [("v5p", "2x2x1"), ("v6e", "2x2")])
def test_looking_calls_up_changes_nothing(pool, monkeypatch: pytest.MonkeyPatch, name: str, topology: str) -> None:
    found, find = list[bool](), RepeatedCalls.find

    def noted(self: RepeatedCalls, *args: Any) -> tuple[Outcome, ...] | None:
        found.append((outcomes := find(self, *args)) is not None)
        return outcomes

    monkeypatch.setattr(RepeatedCalls, "find", noted)
    runs = [
        simulated(pool, "collective-permute in a loop", name, topology, one_for_all=False, spans=20, remember=remember)
        for remember in (True, False)
    ]
    assert runs[0] == runs[1]
    assert any(found)
