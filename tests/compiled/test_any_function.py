"""Functions that know nothing of this library, compiled and executed: what they do is compared with arithmetic."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from listing_mutations import check_damages

from systolic.chips import chip
from systolic.compat import tensorcore_mesh
from systolic.compiler import ProgramCache, WorkerPool, submit_compilation
from systolic.simulator import DeadlockError, SimulatedRun, UnknownValueError
from systolic.timing import submit_simulation, target_of

CHIPS = ["v4", "v5e", "v5p", "v6e", "v7x"]
# XLA brings the small operands of these tests into VMEM before a kernel on v7x, which then copies nothing from HBM.
COPYING = ["v4", "v5e", "v5p", "v6e"]
TILE = (128, 256)
TILE_BYTES = 128 * 256 * 4
INDEX = np.array([3, 3, 0, 1, 1, 1, 2, 0], np.int32)
Simulate = Callable[..., SimulatedRun]


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


@pytest.fixture(scope="module")
def simulate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulate]:
    with pytest.MonkeyPatch.context() as patch, WorkerPool() as pool:
        patch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path_factory.mktemp("programs")))

        def run(name: str, fn: Callable[..., Any], *args: Any, spans: int = 0) -> SimulatedRun:
            found = submit_simulation(pool, fn, args, chip(name), label=name, spans=spans).result().run
            assert found is not None
            return found

        yield run


def moved(run: SimulatedRun) -> int:
    """Bytes across HBM but for the few of indices and scalars."""
    return sum(
        size.size_bytes * size.count
        for core in run.cores
        for size in core.copy_sizes
        if "hbm" in (size.source, size.destination) and size.size_bytes >= 4096
    )


def changes(index: np.ndarray) -> int:
    """Count the fetches of a block by a pipeline: one, and one for each change of the index."""
    return 1 + int(np.count_nonzero(np.diff(index)))


def doubled(x_vmem, out_vmem) -> None:
    out_vmem[...] = x_vmem[...] * 2


def gather(index, x):
    """Block i of the result is twice block index[i] of x."""
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=index.shape,
        in_specs=[pl.BlockSpec(TILE, lambda i, index: (index[i], 0))],
        out_specs=pl.BlockSpec(TILE, lambda i, index: (i, 0)),
    )
    shape = jax.ShapeDtypeStruct((index.shape[0] * TILE[0], TILE[1]), x.dtype)
    return pl.pallas_call(lambda index_smem, *refs: doubled(*refs), out_shape=shape, grid_spec=spec)(index, x)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", COPYING)
def test_scalar_prefetch_fetches_what_the_index_says(simulate: Simulate, name: str) -> None:
    run = simulate(name, gather, INDEX, f32(512, 256))
    assert moved(run) == (changes(INDEX) + len(INDEX)) * TILE_BYTES
    (op,) = (op for op in run.later_core.ops if op.loop is not None)
    assert op.loop is not None
    assert op.loop.rounds == len(INDEX) + 2


@pytest.mark.parametrize("name", COPYING)
def test_an_index_that_the_function_computes(simulate: Simulate, name: str) -> None:
    def fn(index, x):
        return gather((jnp.sort(index) + 1) % 4, x)

    expected = (np.sort(INDEX) + 1) % 4
    run = simulate(name, fn, INDEX, f32(512, 256))
    kernel = [op for op in run.later_core.ops if op.loop is not None and op.hbm_read_bytes]
    assert kernel[-1].hbm_read_bytes == pytest.approx(changes(expected) * TILE_BYTES, abs=4096)


@pytest.mark.parametrize("name", COPYING)
def test_only_a_shape_where_a_value_decides(simulate: Simulate, name: str) -> None:
    with pytest.raises(UnknownValueError, match="argument index, of which only the shape was given"):
        simulate(name, gather, i32(8), f32(512, 256))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "sizes"), list(zip(CHIPS, itertools.cycle([[256] * 4, [700, 0, 1, 323], [0, 0, 1024, 0]]), strict=False))
)
def test_grouped_product_visits_every_tile_of_every_group(simulate: Simulate, name: str, sizes: list[int]) -> None:
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    ends = np.cumsum(sizes)
    visits = sum(-(-end // 128) - (end - size) // 128 for end, size in zip(ends.tolist(), sizes, strict=True) if size)
    bf16 = jnp.bfloat16
    args = (jax.ShapeDtypeStruct((1024, 256), bf16), jax.ShapeDtypeStruct((4, 256, 256), bf16))
    run = simulate(name, functools.partial(gmm, tiling=(128, 256, 256)), *args, np.array(sizes, np.int32))
    kernel = next(op for op in run.later_core.ops if op.name.startswith("gmm"))
    assert kernel.loop is not None
    rounds = sum(op.loop.rounds for core in run.cores for op in core.ops if op.name == kernel.name and op.loop)
    assert rounds == visits + 2 * len(run.cores) or rounds == visits + 2  # two cores may split the visits, or not


@pytest.mark.sampled
@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("steps", [1, 5])
def test_a_grid_of_a_length_that_is_given(simulate: Simulate, name: str, steps: int) -> None:
    def fn(n, x):
        block = pl.BlockSpec(TILE, lambda i: (i, 0))
        return pl.pallas_call(doubled, out_shape=x, grid=(n,), in_specs=[block], out_specs=block)(x)

    run = simulate(name, fn, np.int32(steps), f32(1024, 256))
    kernel = next(op for op in run.later_core.ops if op.loop is not None)
    assert kernel.loop is not None
    assert kernel.loop.rounds == steps + 2
    assert kernel.hbm_written_bytes == (steps * TILE_BYTES if len(run.cores) == 1 else kernel.hbm_written_bytes)


# Half a minute on v7x, where compiling takes longest.
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "v7x")) for name in CHIPS])
def test_loops_and_branches_of_xla(simulate: Simulate, name: str) -> None:
    def fn(n, x):
        looped = lax.fori_loop(0, n, lambda i, y: jnp.tanh(y @ y), x)
        return lax.cond(n > 4, lambda y: y @ y, lambda y: jnp.sort(y, axis=0), looped)

    run = simulate(name, fn, np.int32(7), f32(256, 256))
    products = [op for op in run.later_core.ops if op.matrix_busy_cycles]
    assert max(op.calls for op in products) == 7
    assert len(products) == 2
    assert not any("sort" in op.scope for op in run.later_core.ops)
    assert any("sort" in op.scope for op in simulate(name, fn, np.int32(3), f32(256, 256)).later_core.ops)


@pytest.mark.parametrize("name", COPYING)
def test_loops_inside_a_kernel(simulate: Simulate, name: str) -> None:
    def kernel(n_smem, x_hbm, out_vmem, buffer_vmem, sem):
        def outer(i, carry):
            def inner(j, carry):
                copy = pltpu.make_async_copy(x_hbm.at[pl.ds(j * 8, 8)], buffer_vmem, sem)
                copy.start()
                copy.wait()
                out_vmem[...] = out_vmem[...] + buffer_vmem[...]
                return carry

            return lax.fori_loop(0, n_smem[1] + i, inner, carry)

        lax.fori_loop(0, n_smem[0], outer, 0)

    def fn(n, x):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)],
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA],
        )(n, x)

    run = simulate(name, fn, np.array([4, 3], np.int32), f32(64, 128))
    copies = sum(
        size.count for size in run.cores[0].copy_sizes if (size.destination, size.size_bytes) == ("vmem", 4096)
    )
    assert copies == 3 + 4 + 5 + 6


def test_state_that_a_function_of_jit_gives_away_is_updated_in_place(simulate: Simulate) -> None:
    def step(state, row):
        return {name: lax.dynamic_update_slice(x, row, (8, 0)) for name, x in state.items()}

    args = {"weights": f32(2048, 1024), "moment": f32(2048, 1024)}, f32(8, 1024)
    state_bytes, row_bytes = 2 * 2048 * 1024 * 4, 8 * 1024 * 4
    assert simulate("v5e", jax.jit(step), *args).hbm_bytes > state_bytes
    assert simulate("v5e", jax.jit(step, donate_argnums=0), *args).hbm_bytes < 10 * row_bytes


def signalled(x, *, given: int, wanted: int):
    def kernel(x_vmem, out_vmem, sem):
        pl.semaphore_signal(sem, given)
        pl.semaphore_wait(sem, wanted)
        out_vmem[...] = x_vmem[...]

    return pl.pallas_call(kernel, out_shape=x, scratch_shapes=[pltpu.SemaphoreType.REGULAR])(x)


@pytest.mark.parametrize("name", CHIPS)
def test_a_wait_that_nothing_satisfies_is_named(simulate: Simulate, name: str) -> None:
    assert simulate(name, functools.partial(signalled, given=3, wanted=3), f32(8, 128)).cycles > 0
    with pytest.raises(DeadlockError, match="vwait"):
        simulate(name, functools.partial(signalled, given=1, wanted=2), f32(8, 128))


@pytest.mark.parametrize("name", CHIPS)
def test_bytes_in_scalar_memory(simulate: Simulate, name: str) -> None:
    def kernel(table_smem, x_vmem, out_vmem):
        @pl.when(table_smem[pl.program_id(0), 1].astype(jnp.int32) > 5)
        def _():
            out_vmem[...] = jnp.dot(x_vmem[...], x_vmem[...], preferred_element_type=jnp.float32)

    def fn(table, x):
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(8,),
            in_specs=[pl.BlockSpec((128, 128), lambda i, table: (i, 0))],
            out_specs=pl.BlockSpec((128, 128), lambda i, table: (i, 0)),
        )
        return pl.pallas_call(kernel, out_shape=x, grid_spec=spec)(table, x)

    table = np.arange(32, dtype=np.int8).reshape(8, 4)  # column 1 is 1, 5, 9, …
    six, none, all_eight = (simulate(name, fn, values, f32(1024, 128)) for values in (table, table * 0, table * 0 + 6))
    busy = [sum(core.matrix_busy_cycles for core in run.cores) for run in (six, none, all_eight)]
    assert busy[2] > 0
    assert busy[:2] == [busy[2] * 6 // 8, 0]


@pytest.mark.parametrize("name", COPYING)
def test_words_at_an_offset_in_hbm(simulate: Simulate, name: str) -> None:
    """The kernel fetches three rows of a table that stays in HBM, each with how often a loop goes round."""

    def kernel(table_hbm, x_hbm, out_vmem, rounds_smem, sem):
        for row in (3, 17, 41):
            fetch = pltpu.make_async_copy(table_hbm.at[pl.ds(row * 8, 8)], rounds_smem, sem)
            fetch.start()
            fetch.wait()

            @pl.loop(0, rounds_smem[2, 0])
            def _(i):
                copy = pltpu.make_async_copy(x_hbm, out_vmem, sem)
                copy.start()
                copy.wait()

    def fn(table, x):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * 2,
            scratch_shapes=[pltpu.SMEM((8, 128), jnp.int32), pltpu.SemaphoreType.DMA],
        )(table, x)

    table = np.arange(8192 * 128, dtype=np.int32).reshape(8192, 128) % 100  # 4 MiB
    run = simulate(name, fn, table, f32(8, 128))
    copies = sum(
        size.count for size in run.cores[0].copy_sizes if (size.destination, size.size_bytes) == ("vmem", 4096)
    )
    assert copies == sum(table[row * 8 + 2, 0] for row in (3, 17, 41))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["v5e", "v6e", "v7x"])  # one core, which fetches what the list says
def test_a_kernel_in_a_scan_finds_other_values_every_time(simulate: Simulate, name: str) -> None:
    def large(index, x):
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(8,),
            in_specs=[pl.BlockSpec((512, 1024), lambda i, index: (index[i], 0))],
            out_specs=pl.BlockSpec((512, 1024), lambda i, index: (i, 0)),
        )
        return pl.pallas_call(lambda index_smem, *refs: doubled(*refs), out_shape=x, grid_spec=spec)(index, x)

    def fn(index, x):
        return lax.scan(lambda carry, shift: (large((index * shift) % 4, carry), None), x, jnp.arange(3))[0]

    run = simulate(name, fn, INDEX, f32(32768, 1024))  # too large for VMEM
    kernel = next(op for op in run.later_core.ops if op.calls == 3 and op.loop and op.loop.rounds == len(INDEX) + 2)
    fetched = sum(changes((INDEX * shift) % 4) for shift in range(3))
    assert kernel.hbm_read_bytes == pytest.approx(fetched * 512 * 1024 * 4, abs=3 * 4096)


@pytest.mark.parametrize("name", CHIPS)
def test_kernels_and_operations_one_after_the_other(simulate: Simulate, name: str) -> None:
    def fn(index, x, y):
        first = gather(index, x)
        return gather(index, jnp.sin(first[:512]) @ y)

    run = simulate(name, fn, INDEX, f32(512, 256), f32(256, 256), spans=50)
    kernels = [op for op in run.later_core.ops if op.loop is not None and op.loop.rounds == len(INDEX) + 2]
    assert len(kernels) == 2
    assert kernels[0].end_cycles <= kernels[1].begin_cycles
    assert any(op.matrix_busy_cycles for op in run.later_core.ops)
    inside = sum(op.cycles for op in run.later_core.ops)
    assert inside <= run.later_core.cycles
    spans = [span for span in run.later_core.spans if span.kind == "op"]
    assert [span.label for span in spans] == [op.name for op in run.later_core.ops]
    assert SimulatedRun.from_json(run.to_json()) == run


def test_emit_pipeline_and_a_mesh_of_cores(simulate: Simulate) -> None:
    def body(x_hbm, out_hbm):
        pltpu.emit_pipeline(
            doubled,
            grid=(8,),
            in_specs=[pl.BlockSpec(TILE, lambda i: (i, 0), pipeline_mode=pl.Buffered(3))],
            out_specs=[pl.BlockSpec(TILE, lambda i: (i, 0))],
            core_axis_name="core",
            dimension_semantics=(pltpu.PARALLEL,),
        )(x_hbm, out_hbm)

    def fn(x):
        return pl.kernel(body, out_type=x, mesh=tensorcore_mesh("core"))(x)

    for name in ("v5e", "v5p", "v6e", "v7x"):
        run = simulate(name, fn, f32(1024, 256))
        assert moved(run) == 16 * TILE_BYTES
        assert len({core.hbm_written_bytes for core in run.cores}) == 1  # shared evenly


@pytest.mark.exhaustive
def test_the_same_in_two_fresh_processes(tmp_path: Path) -> None:
    script = tmp_path / "once.py"
    script.write_text(
        "import jax, jax.numpy as jnp, numpy as np, systolic, sys\n"
        "def mlp(x, a, b): return jax.nn.gelu(x @ a) @ b\n"
        "if __name__ == '__main__':\n"
        "    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)\n"
        "    print(systolic.simulate(mlp, s(256, 256), s(256, 512), s(512, 256), chip='v6e', cached=False).to_json())\n"
    )
    first, second = (
        subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    assert first == second
    assert SimulatedRun.from_json(first).cycles > 0


@pytest.fixture(scope="module")
def prefetch_listings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    cache = ProgramCache(folder=tmp_path_factory.mktemp("garbled"))
    with WorkerPool(max_workers=1) as pool:
        job = submit_compilation(pool, gather, (i32(8), f32(512, 256)), target_of(chip("v6e")), cache=cache)
        return dict(job.result().listings)


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", [0, 60, *(pytest.param(start, marks=pytest.mark.slow) for start in (120, 180, 240))])
def test_a_garbled_listing_is_an_error_or_a_result(prefetch_listings: dict[str, str], start: int) -> None:
    check_damages(prefetch_listings, chip("v6e"), range(start, start + 60))
