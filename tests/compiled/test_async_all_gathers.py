"""Asynchronous all-gathers of v4, which BarnaCores carry, and its barriers whose signals come early."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from slice_programs import ALL, compiled, in_order

from systolic.chips import SliceShape, chip, with_flags
from systolic.compiler import ShardedFunction, WorkerPool, submit_compilation
from systolic.simulator.slice import run
from systolic.simulator.slice.routes import Routes
from systolic.timing import prepare_program, target_of

V4 = with_flags(chip("v4"), {"xla_enable_async_all_gather": "true"})
SHARD_BYTES = 1024 * 1024 * 2


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(max_workers=1) as made:
        yield made


def beside_a_product(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ x) @ lax.all_gather(w, ALL, tiled=True)


@pytest.mark.exhaustive
def test_an_all_gather_beside_a_product(pool) -> None:
    shape = SliceShape.parse(V4, "2x2x2")
    fn = ShardedFunction(
        fn=beside_a_product,
        mesh=in_order,
        in_specs=(PartitionSpec(), PartitionSpec(ALL)),
        out_specs=PartitionSpec(),
    )
    arguments = tuple(jax.ShapeDtypeStruct((8192, width), jnp.bfloat16) for width in (8192, 1024))
    program = submit_compilation(pool, fn, arguments, target_of(V4, shape), cache=None).result()
    result = prepare_program(program, V4).run_slice(shape, program.assignment, chip=V4)
    [gather] = result.collectives
    assert (gather.name, gather.kind, gather.calls) == ("all-gather-start", "all-gather", 1)
    assert gather.sent_bytes == 7 * SHARD_BYTES
    assert gather.hidden_cycles > gather.exposed_cycles  # the product takes longer
    # Four shards pass one after the other in one direction, three in the other.
    assert gather.cycles > 4 * SHARD_BYTES / result.link_bytes_per_s * result.clock_hz


def test_one_device_represents_all_and_rounds_are_skipped(pool, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = compiled(pool, "layers", V4, "2x2x2")
    every = execute()
    assert every.way == "all devices"
    assert "all-gather-start" in {collective.name for collective in every.collectives}
    monkeypatch.setattr(run, "MAX_APART", 1)
    one = execute()
    assert one.way == "one device for all, as slow as the slowest"
    assert every.time_us <= one.time_us <= 1.05 * every.time_us
    assert one == execute(remember=False)


def test_devices_that_signal_the_first_one_early(pool, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = compiled(pool, "all-to-all", V4, "2x2x2")
    every = execute()
    monkeypatch.setattr(run, "MAX_APART", 1)
    one = execute()
    assert (one.way, every.way) == ("one device for all, as slow as the slowest", "all devices")
    shape = SliceShape.parse(V4, "2x2x2")
    routes = Routes(shape)
    farthest_us = max(routes.between(0, device.id).latency_s for device in shape.devices) * 1e6
    assert one.time_us == pytest.approx(every.time_us, abs=farthest_us)
