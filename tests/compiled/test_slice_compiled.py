"""Collectives on slices, compiled and executed on all devices: bytes, links and neighbours by arithmetic."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
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
    BLOCK,
    BLOCK_BYTES,
    SOME,
    compiled,
    function_of,
    link_bytes,
    next_one,
    simulated,
)

from systolic.chips import SliceShape, chip
from systolic.compiler import ShardedFunction, WorkerPool, submit_compilation
from systolic.simulator.errors import DeadlockError
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.repeated_calls import Outcome, RepeatedCalls
from systolic.simulator.rounds.repeated import RepeatedRounds
from systolic.simulator.slice.routes import Routes
from systolic.timing import prepare_program, target_of


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(max_workers=1) as made:
        yield made


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


@pytest.mark.parametrize("one_for_all", [False, True], ids=["all devices", "one for all"])
@pytest.mark.parametrize(("name", "topology"), [("v5p", "2x2x1"), ("v6e", "2x2")])
def test_skipping_rounds_changes_nothing(
    pool, monkeypatch: pytest.MonkeyPatch, name: str, topology: str, one_for_all: bool
) -> None:
    skipped, skip = list[int](), RepeatedRounds._skip

    def noted(self: RepeatedRounds, at: Any, handed_over: Any) -> None:
        skip(self, at, handed_over)
        skipped.append(at.skipped)

    monkeypatch.setattr(RepeatedRounds, "_skip", noted)
    simulated = compiled(pool, "collective-permute in a loop", name, topology)
    assert simulated(one_for_all=one_for_all) == simulated(one_for_all=one_for_all, remember=False)
    assert skipped
    assert min(skipped) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "topology"), [("v6e", "4x8"), ("v5p", "2x4x4"), pytest.param("v6e", "8x8", marks=pytest.mark.slow)]
)
def test_looking_collectives_up_changes_nothing(
    pool, monkeypatch: pytest.MonkeyPatch, name: str, topology: str
) -> None:
    found, find = set[str](), RepeatedCalls.find

    def noted(self: RepeatedCalls, translation: Any, *args: Any) -> tuple[Outcome, ...] | None:
        if (outcomes := find(self, translation, *args)) is not None:
            found.add(translation.name)
        return outcomes

    monkeypatch.setattr(RepeatedCalls, "find", noted)
    simulated = compiled(pool, "layers", name, topology)
    run = simulated()  # skips rounds, too
    assert run.way == "one device for all, as slow as the slowest"
    assert {collective.name for collective in run.collectives} <= found
    found.clear()
    monkeypatch.setattr(RepeatedRounds, "next", lambda self, core, loop, time, registers: registers)
    assert simulated() == run
    assert {collective.name for collective in run.collectives} <= found
    assert simulated(remember=False) == run


@pytest.mark.parametrize("one_for_all", [False, True], ids=["all devices", "one for all"])
@pytest.mark.parametrize("name", ["ring reduce-scatter", "collective-permute in a loop"])
def test_acting_before_ones_turn_changes_nothing(
    pool, monkeypatch: pytest.MonkeyPatch, name: str, one_for_all: bool
) -> None:
    early, early_wait = list[bool](), DmaEngine.early_wait

    def noted(self: DmaEngine, *args: Any) -> int | None:
        early.append((end := early_wait(self, *args)) is not None)
        return end

    monkeypatch.setattr(DmaEngine, "early_wait", noted)
    simulated = compiled(pool, name, "v6e", "2x4")
    run = simulated(one_for_all=one_for_all, spans=20)
    assert any(early)
    early.clear()
    monkeypatch.setattr(DmaEngine, "settled_until", property(lambda _: -math.inf))
    assert simulated(one_for_all=one_for_all, spans=20) == run
    assert not any(early)
