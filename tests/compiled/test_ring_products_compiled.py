"""Products across chips on a slice: the compiler takes the kernels, and every copy goes to a neighbor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import systolic
from systolic.compiler import WorkerPool
from systolic.timing import submit_simulation

MESH = systolic.slice_mesh("v6e", "2x4", model=8)
FORCED: dict[str, Any] = {"axis_name": "model", "implementation": "pallas"}  # XLA is faster with so small sizes
SHARED: dict[str, Any] = {**FORCED, "activation": "silu"}


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1) as made:
        yield made


def gathered(x: Any, w: Any, bias: Any, **options: Any) -> Any:
    return systolic.all_gather_matmul(x, w, bias=bias, **SHARED, **options)


def scattered(x: Any, w: Any, bias: Any, **options: Any) -> Any:
    return systolic.matmul_reduce_scatter(x, w, bias=bias, **SHARED, **options)


@pytest.mark.parametrize(
    ("fn", "specs", "out"),
    [
        (gathered, (P("model"), P(None, "model"), P("model")), P(None, "model")),
        (scattered, (P(None, "model"), P("model"), P()), P("model")),
    ],
)
@pytest.mark.parametrize("checked", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_each_copy_goes_to_a_neighbor(
    pool: WorkerPool, fn: Callable[..., Any], specs: Any, out: Any, checked: bool
) -> None:
    # The devices of this mesh, which is as `jax.make_mesh` makes it, are not a ring of neighbors.
    run = jax.shard_map(fn, mesh=MESH, in_specs=specs, out_specs=out, check_vma=checked)
    rows, size = 256, 1024
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((rows, size), (size, size), (size,))]
    outcome = submit_simulation(pool, run, arrays, systolic.chip("v6e"), label="a test", topology="2x4").result()
    slice_run = outcome.slice_run
    assert slice_run is not None
    (collective,) = slice_run.collectives
    assert collective.kind == "pallas"
    # Seven of eight chunks reach a device, or leave it, and half of them over each of its two links on the ring.
    chunk_bytes = rows // 8 * size * 2
    assert collective.sent_bytes == 7 * chunk_bytes
    used = [link.sent_bytes for link in slice_run.links if link.sent_bytes]
    assert used == [3.5 * chunk_bytes] * 16


@pytest.mark.exhaustive
@pytest.mark.parametrize("wire_dtype", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize(
    ("fn", "specs", "out"),
    [
        (gathered, (P("model"), P(None, "model"), P("model")), P(None, "model")),
        (scattered, (P(None, "model"), P("model"), P()), P("model")),
    ],
)
def test_rows_and_sums_travel_in_eight_bits(
    pool: WorkerPool, fn: Callable[..., Any], specs: Any, out: Any, wire_dtype: str
) -> None:
    run = jax.shard_map(functools.partial(fn, wire_dtype=wire_dtype), mesh=MESH, in_specs=specs, out_specs=out)
    rows, size = 256, 1024
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((rows, size), (size, size), (size,))]
    outcome = submit_simulation(pool, run, arrays, systolic.chip("v6e"), label="a test", topology="2x4").result()
    assert outcome.slice_run is not None
    (collective,) = outcome.slice_run.collectives
    scales = collective.sent_bytes / (7 * rows // 8) - size
    assert scales in (128, 256)  # lanes, of a block of columns


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fn", "specs", "out", "rows", "copies"),
    [
        (systolic.all_gather_matmul, (P("model"), P(None, "model")), P(None, "model"), 512, 1),
        (systolic.all_gather_matmul, (P("model"), P(None, "model")), P(None, "model"), 256, 2),  # too few to share
        (systolic.matmul_reduce_scatter, (P(None, "model"), P("model")), P("model"), 256, 1),
    ],
)
def test_two_cores_multiply_and_send(
    pool: WorkerPool, fn: Callable[..., Any], specs: Any, out: Any, rows: int, copies: int
) -> None:
    mesh, size = systolic.slice_mesh("v5p", "2x2x2", model=8), 2048
    run = jax.shard_map(functools.partial(fn, **FORCED), mesh=mesh, in_specs=specs, out_specs=out)
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((rows, size), (size, size))]
    outcome = submit_simulation(pool, run, arrays, systolic.chip("v5p"), label="a test", topology="2x2x2").result()
    assert outcome.slice_run is not None
    (collective,) = outcome.slice_run.collectives
    assert (collective.kind, collective.sent_bytes) == ("pallas", copies * 7 * (rows // 8) * size * 2)
    cores = outcome.slice_run.classes[0].run.cores
    assert len(cores) == 2
    assert cores[0].matrix_busy_cycles == cores[1].matrix_busy_cycles > 0


@pytest.mark.parametrize(
    ("fn", "specs", "out"),
    [
        (systolic.all_gather_matmul, (P(("data", "model")), P(None, "model")), P("data", "model")),
        (systolic.matmul_reduce_scatter, (P("data", "model"), P("model")), P(("data", "model"))),
    ],
)
def test_a_mesh_of_two_axes_takes_jax_s_check_of_what_varies(
    pool: WorkerPool, fn: Callable[..., Any], specs: Any, out: Any
) -> None:
    mesh = systolic.slice_mesh("v6e", "2x4", data=2, model=4)
    run = jax.shard_map(functools.partial(fn, **FORCED), mesh=mesh, in_specs=specs, out_specs=out)
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((256, 512), (512, 512))]
    outcome = submit_simulation(pool, run, arrays, systolic.chip("v6e"), label="a test", topology="2x4").result()
    assert outcome.slice_run is not None
    assert [collective.kind for collective in outcome.slice_run.collectives] == ["pallas"]
