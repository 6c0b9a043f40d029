"""The collectives of the lesson on several chips, on virtual devices, against float64; a missing wait is found."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from systolic.checking.running import run_in_worker
from systolic.chips import chip
from systolic.compiler import ShardedFunction, WorkerPool, with_virtual_devices
from systolic.lessons.between_chips import COLLECTIVES
from systolic.lessons.kernels.rings import RING, all_gather, in_ring_order, reduce_scatter, ring_of
from systolic.lessons.on_ring import RingPart, run_virtually
from systolic.timing import Call

SPEC = PartitionSpec(RING)


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(max_workers=1, time_limit_s=120) as made:
        yield made


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "collective",
    # Half of both ways is one way.
    [pytest.param(part, marks=pytest.mark.slow if "one way" in part.name else ()) for part in COLLECTIVES],
    ids=lambda part: part.name,
)
def test_on_eight_devices(pool: WorkerPool, collective: RingPart) -> None:
    outcome = run_virtually(pool, collective, chip("v5e")).result()
    rules = {finding.rule for finding in outcome.findings if finding.grade == "error"}
    assert outcome.summary.ran
    if collective.finds:
        assert collective.finds in rules
    else:
        assert not rules
        assert outcome.summary.error is not None
        assert outcome.summary.tolerance is not None
        assert outcome.summary.error <= outcome.summary.tolerance


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("ways", "count"),
    [
        ((1,), 2),  # both neighbours are the same device
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (((1,), 3), ((-1,), 2), ((-1,), 3), ((1, -1), 2), ((1, -1), 3))
        ),
    ],
    ids=str,
)
def test_small_rings(ways: tuple[int, ...], count: int) -> None:
    gathered = functools.partial(all_gather, ways=ways)
    scattered = functools.partial(reduce_scatter, ways=ways)
    rows = 8 * len(ways)
    cases = [
        (gathered, count * rows, lambda x: jnp.tile(x, (count, 1))),
        (scattered, count * count * rows, lambda x: x.reshape(count, -1, 128).sum(0)),
    ]
    with WorkerPool(max_workers=1, time_limit_s=120) as fresh:
        for kernel, height, reference in cases:
            fn = ShardedFunction(fn=kernel, mesh=ring_of, in_specs=(SPEC,), out_specs=SPEC)
            task = functools.partial(run_in_worker, reference=reference, seeds=(0, 1))
            x = jax.ShapeDtypeStruct((height, 128), jnp.float32)
            outcome = fresh.submit(with_virtual_devices, count, task, Call.described(fn, (x,), chip("v5e"))).result()
            assert [finding for finding in outcome.findings if finding.grade != "note"] == []
            assert outcome.summary.error is not None
            assert outcome.summary.tolerance is not None
            assert outcome.summary.error <= outcome.summary.tolerance


def test_a_worker_keeps_its_number_of_devices(pool: WorkerPool) -> None:
    def seen() -> int:
        return len(jax.devices())

    assert pool.submit(with_virtual_devices, 8, seen).result() == 8
    with pytest.raises(RuntimeError, match="has 8 devices, not 4; use a new worker"):
        pool.submit(with_virtual_devices, 4, seen).result()


@pytest.mark.parametrize("extents", [(2, 4, 1), (4, 2, 1), (2, 2, 1)], ids=str)
@pytest.mark.parametrize("cores", [1, 2])
def test_neighbours_in_the_ring_are_neighbours_in_the_slice(extents: tuple[int, int, int], cores: int) -> None:
    places = [(x, y, 0) for y in range(extents[1]) for x in range(extents[0])]
    ring = in_ring_order([SimpleNamespace(coords=at, core_on_chip=core) for at in places for core in range(cores)])
    assert {(device.coords, device.core_on_chip) for device in ring} == {
        (at, core) for at in places for core in range(cores)
    }
    for one, other in zip(ring, [*ring[1:], ring[0]], strict=True):
        steps = sum(abs(a - b) for a, b in zip(one.coords, other.coords, strict=True))
        assert steps == 1 or (steps == 0 and one.core_on_chip != other.core_on_chip)


def test_a_slice_that_is_no_ring() -> None:
    with pytest.raises(ValueError, match="4×4×1 chips is not a ring here; use one of 2×n"):
        in_ring_order([SimpleNamespace(coords=(x, y, 0), core_on_chip=0) for x in range(4) for y in range(4)])


def test_both_ways_send_half_over_each_link() -> None:
    one_way, both_ways = COLLECTIVES[:2]
    v5e = chip("v5e")
    assert v5e.links is not None
    # Seven blocks of 1 MiB.
    assert one_way.wire_us(v5e) == pytest.approx(7 * 2**20 / v5e.links.bytes_per_s * 1e6)
    assert one_way.wire_us(v5e) == 2 * (both_ways.wire_us(v5e) or 0.0)
