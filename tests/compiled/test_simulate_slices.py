"""`systolic.simulate` on slices: every way to say how a function is sharded, and what each device then has."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import systolic
from systolic import SliceRun, slice_devices, slice_mesh
from systolic.chips import SliceError, with_flags
from systolic.chips.constants import ConstantsError
from systolic.compiler import WorkerPool
from systolic.compiler.slice_devices import libtpu_devices, topology_of
from systolic.timing import slice_of, submit_simulation

CHIP, TOPOLOGY = "v6e", "2x2"
MESH = slice_mesh(CHIP, TOPOLOGY, data=2, model=2)
BLOCK = 64 * 128 * 4  # bytes


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1) as made:
        yield made


def simulated(pool: WorkerPool, fn, *args: object, chip: str = CHIP, topology: str = TOPOLOGY) -> SliceRun:
    found = submit_simulation(pool, fn, args, systolic.chip(chip), label="a test", topology=topology).result()
    assert found.slice_run is not None
    return found.slice_run


def shape(*sizes: int, spec: P | None = None, mesh=MESH) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=None if spec is None else NamedSharding(mesh, spec))


def gathered(x):
    return lax.all_gather(x, "model", tiled=True)


MANUAL = jax.shard_map(gathered, mesh=MESH, in_specs=P("model"), out_specs=P(), check_vma=False)
WHOLE, CUT = (NamedSharding(MESH, spec) for spec in (P(), P("model")))


@pytest.mark.parametrize(
    ("fn", "spec"),
    [
        pytest.param(jax.jit(jnp.negative, out_shardings=WHOLE), P("model"), id="shardings of arguments"),
        pytest.param(jax.jit(jnp.negative, in_shardings=CUT, out_shardings=WHOLE), None, id="shardings of a jit"),
        pytest.param(MANUAL, None, id="shard_map"),
        pytest.param(jax.jit(MANUAL), P("model"), id="a jit of a shard_map"),
    ],
)
def test_one_all_gather_however_it_is_said(pool: WorkerPool, fn, spec: P | None) -> None:
    run = simulated(pool, fn, shape(128, 128, spec=spec))
    assert (run.chip, run.topology, run.devices) == (CHIP, TOPOLOGY, 4)
    assert run.assignment == tuple(device.id for device in MESH.devices.flat)
    (one,) = run.collectives
    assert one.kind == "all-gather"
    # Each device has one of two blocks, and gives it to the other of its group.
    assert one.sent_bytes == BLOCK
    assert 0 < run.exposed_us <= run.time_us


def named(x):
    return jax.shard_map(gathered, in_specs=P("model"), out_specs=P(), check_vma=False)(x)


def test_a_mesh_that_is_set(pool: WorkerPool) -> None:
    with jax.set_mesh(MESH):
        run = simulated(pool, named, shape(128, 128))
    assert run.cycles == simulated(pool, MANUAL, shape(128, 128)).cycles


def test_another_order_of_the_mesh_is_another_program(pool: WorkerPool) -> None:
    # Neighbours in a ring are one hop apart in the one order, and two in the other.
    times = []
    for order in ([0, 1, 3, 2], [0, 3, 1, 2]):
        by_id = {device.id: device for device in slice_devices(CHIP, TOPOLOGY)}
        mesh = jax.sharding.Mesh(np.array([by_id[number] for number in order]), ("model",))
        passed = functools.partial(lax.ppermute, axis_name="model", perm=[(i, (i + 1) % 4) for i in range(4)])
        fn = jax.shard_map(passed, mesh=mesh, in_specs=P("model"), out_specs=P("model"))
        run = simulated(pool, fn, shape(256, 128))
        assert run.assignment == tuple(order)
        times.append(run.time_us)
    hop_us = systolic.chip(CHIP).links.hop_s * 1e6  # type: ignore[union-attr]
    assert times[1] - times[0] > hop_us


def rows_taken(sizes_ref, x_ref, out_ref, sum_vmem) -> None:
    sum_vmem[...] = jnp.zeros_like(sum_vmem)

    @pl.loop(0, sizes_ref[0])
    def _(_) -> None:
        sum_vmem[...] += x_ref[...]

    out_ref[...] = sum_vmem[...]


def taken(sizes, x):
    return pl.pallas_call(
        rows_taken,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            in_specs=[pl.BlockSpec(x.shape)],
            out_specs=pl.BlockSpec(x.shape),
            grid=(),
            scratch_shapes=[pltpu.VMEM(x.shape, x.dtype)],
        ),
    )(sizes, x)


@pytest.mark.exhaustive
def test_each_device_has_its_own_part_of_the_values(pool: WorkerPool, tmp_path: Path) -> None:
    mesh = slice_mesh(CHIP, TOPOLOGY, ring=4)
    fn = jax.shard_map(taken, mesh=mesh, in_specs=(P("ring"), P()), out_specs=P("ring"), check_vma=False)
    rounds = np.array([10, 400, 20, 30], np.int32)
    run = simulated(pool, fn, rounds, shape(8, 128))
    cycles = {device: each.run.cycles for each in run.classes for device in each.devices}
    by_partition = [cycles[device] for device in run.assignment]
    assert np.argsort(by_partition).tolist() == np.argsort(rounds).tolist()
    assert run.skew_us > 0
    systolic.prepare(fn, rounds, shape(8, 128), chip=CHIP, topology=TOPOLOGY).save(tmp_path / "saved")
    assert systolic.load_program(tmp_path / "saved").run() == run


def test_a_program_of_a_slice_runs_again(pool: WorkerPool, tmp_path: Path) -> None:
    fn = jax.jit(jnp.negative, out_shardings=WHOLE)
    program = systolic.prepare(fn, shape(128, 128, spec=P("model")), chip=CHIP, topology=TOPOLOGY)
    run = program.run()
    assert run.cycles == simulated(pool, fn, shape(128, 128, spec=P("model"))).cycles
    slow = dataclasses.replace(program.shape.links, bytes_per_s=program.shape.links.bytes_per_s / 4)
    assert program.run(links=slow).cycles > run.cycles
    assert program.run().cycles == run.cycles
    with pytest.raises(ConstantsError, match="bytes_per_s=0"):
        program.run(links=dataclasses.replace(slow, bytes_per_s=0.0))
    shaped = dataclasses.replace(program.shape, chip=dataclasses.replace(program.chip, links=slow))
    dataclasses.replace(program, shape=shaped).save(tmp_path / "slow")
    again = systolic.load_program(tmp_path / "slow")
    assert isinstance(again, systolic.SliceProgram)
    assert again.run() == program.run(links=slow)


def passed_on(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Pass one array to the next device, while another crosses HBM."""
    return jax.lax.ppermute(x, "ring", [(device, device ^ 1) for device in range(4)]), y * 2


def test_links_leave_less_of_hbm_to_an_operation(pool: WorkerPool) -> None:
    mesh = slice_mesh(CHIP, TOPOLOGY, ring=4)
    fn = jax.shard_map(passed_on, mesh=mesh, in_specs=P("ring"), out_specs=P("ring"), check_vma=False)
    argument = shape(1 << 17, 1024, spec=P("ring"), mesh=mesh)
    program = systolic.prepare(fn, argument, argument, chip=CHIP, topology=TOPOLOGY)
    links, machine = program.shape.links, program.chip.machine
    cycles = {}
    for rate in (links.bytes_per_s, links.bytes_per_s / 2):
        run = program.run(links=dataclasses.replace(links, bytes_per_s=rate))
        (cycles[rate],) = (op.cycles for op in run.slowest.cores[0].ops if "multiply" in op.name)
        # It ends while the other array is still on its way, from HBM to HBM.
        assert cycles[rate] * 2 < run.cycles
    carried = [count * (1 - 2 * rate / machine.hbm_bytes_per_s) for rate, count in cycles.items()]
    assert carried[0] == pytest.approx(carried[1], rel=0.01)


@pytest.mark.exhaustive
def test_an_argument_that_is_brought_ahead_counts_as_on_one_chip(pool: WorkerPool) -> None:
    x = jax.ShapeDtypeStruct((128, 4096), jnp.bfloat16, sharding=CUT)
    fn = jax.shard_map(
        lambda x, w: gathered(x) @ w, mesh=MESH, in_specs=(P("model"), P(None, "model")), out_specs=P(None, "model")
    )
    w = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16, sharding=NamedSharding(MESH, P(None, "model")))
    run = simulated(pool, fn, x, w)
    weight_bytes = 4096 * 2048 * 2
    # Neither the time nor the bytes that the program's own operations read hold it.
    assert run.slowest.hbm_read_bytes < weight_bytes
    assert run.prefetch_us == pytest.approx(weight_bytes / systolic.chip(CHIP).machine.hbm_bytes_per_s * 1e6, rel=0.2)


def test_a_program_is_compiled_anew_where_it_is_not_kept(pool: WorkerPool) -> None:
    fn, x = jax.jit(jnp.negative, out_shardings=WHOLE), shape(128, 256, spec=P("model"))
    jobs = [
        submit_simulation(pool, fn, (x,), systolic.chip(CHIP), label="a test", topology=TOPOLOGY, cached=False)
        for _ in range(2)
    ]
    assert len({job.result().time_us for job in jobs}) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "sent_shares"), [("all-gather", 7), ("all-reduce", 14 / 8)])
def test_sparse_cores_communicate_unless_flags_say_otherwise(pool: WorkerPool, kind: str, sent_shares: float) -> None:
    mesh = slice_mesh("v7x", "2x2x1", ring=8)
    x = shape(4096, 128, spec=P("ring"), mesh=mesh)
    fn = jax.jit(jnp.negative, out_shardings=NamedSharding(mesh, P()))
    if kind == "all-reduce":
        x = shape(4096, 128, spec=P(), mesh=mesh)
        fn = jax.shard_map(lambda x: jax.lax.psum(x, "ring"), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    run = simulated(pool, fn, x, chip="v7x", topology="2x2x1")
    (collective,) = run.collectives
    assert collective.kind == kind
    assert run.slowest.sparse_cores
    # A device's own part goes to the seven others; of a sum, an eighth of the array goes both ways.
    array_bytes = 4096 * 128 * 4
    assert collective.sent_bytes == sent_shares * (array_bytes // 8 if kind == "all-gather" else array_bytes)
    assert 0 < collective.exposed_cycles <= collective.cycles <= run.cycles
    assert collective.cycles / run.clock_hz >= collective.sent_bytes / 6 / run.link_bytes_per_s  # over six links
    flag = f"xla_tpu_enable_sparse_core_collective_offload_{kind.replace('-', '_')}"
    on = with_flags(systolic.chip("v7x"), {flag: "false"})
    kept = submit_simulation(pool, fn, (x,), on, label="a test", topology="2x2x1").result().slice_run
    assert kept is not None
    assert [each.kind for each in kept.collectives] == [kind]
    assert kept.slowest.sparse_cores == ()


def test_nothing_is_sharded(pool: WorkerPool) -> None:
    with pytest.raises(SliceError, match="nothing is sharded over the 4 devices of v6e:2x2"):
        simulated(pool, jnp.sin, shape(8, 128))


def test_part_of_the_devices_is_no_slice(pool: WorkerPool) -> None:
    half = jax.sharding.Mesh(np.array(slice_devices(CHIP, TOPOLOGY)[:2]), ("data",))
    with pytest.raises(SliceError, match="2 of the 4 devices"):
        simulated(pool, jnp.sin, shape(8, 128, spec=P("data"), mesh=half))


def listed(chip: str, topology: str) -> list[tuple[int, tuple[int, ...], int]]:
    devices = libtpu_devices(topology_of(slice_of(systolic.chip(chip), topology)))
    return [(device.id, tuple(device.coords), device.core_on_chip) for device in devices]


@pytest.mark.parametrize(
    ("chip", "topology"),
    [("v4", "2x2x2"), ("v5e", "1x1"), ("v5e", "16x16"), ("v5p", "2x4x4"), ("v6e", "4x8"), ("v7x", "4x4x4")],
)
def test_devices_are_those_of_libtpu(pool: WorkerPool, chip: str, topology: str) -> None:
    ours = [(device.id, device.coords, device.core_on_chip) for device in slice_devices(chip, topology)]
    assert ours == pool.submit(listed, chip, topology).result()


@pytest.mark.exhaustive
def test_devices_that_send_nothing_are_as_far_off_as_one(pool) -> None:
    rows, weights = shape(4096, 4096, spec=P(("data", "model"))), shape(4096, 4096, spec=P())
    found = simulated(pool, jnp.matmul, rows, weights)
    parts = (shape(1024, 4096), shape(4096, 4096))
    alone = submit_simulation(pool, jnp.matmul, parts, systolic.chip(CHIP), label="one").result()
    assert not found.collectives
    assert alone.run is not None
    assert found.error == alone.run.error
