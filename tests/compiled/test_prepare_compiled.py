"""Programs that the compiler has just made, prepared once and run with other constants; many functions in one call."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import systolic
from systolic.simulator import UnknownValueError

X = jax.ShapeDtypeStruct((64, 128), jnp.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path / "cache"))


def gather(order: Any, x: Any) -> Any:
    """Blocks of x in an order that is computed from an argument; the pipeline copies a block where it changes."""

    def kernel(index_smem: Any, x_vmem: Any, out_vmem: Any) -> None:
        del index_smem
        out_vmem[...] = x_vmem[...] * 2

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(order.shape[0],),
        in_specs=[pl.BlockSpec((8, 128), lambda i, index: (index[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, index: (i, 0)),
    )
    out = jax.ShapeDtypeStruct((8 * order.shape[0], 128), x.dtype)
    return pl.pallas_call(kernel, grid_spec=grid, out_shape=out)(jnp.cumsum(order) % 8, x)


def test_a_prepared_program_knows_what_its_kernels_find(tmp_path: Path) -> None:
    runs = []
    for order in ([1, 1, 1, 1], [1, 0, 0, 0]):
        index = np.array(order, np.int32)
        program = systolic.prepare(gather, index, X, chip="v5e")
        program.save(tmp_path / "gather")
        run = program.run(spans=200)
        assert run == systolic.simulate(gather, index, X, chip="v5e")
        assert systolic.load_program(tmp_path / "gather").run(spans=200) == run
        assert [op.name for op in run.cores[0].ops if op.is_pallas] == ["gather.1"]
        late = replace(program.chip.machine, dma_latency_cycles=program.chip.machine.dma_latency_cycles + 1000)
        assert program.run(machine=late).cycles >= run.cycles + 1000
        runs.append(run)
    changing, staying = runs
    # Each of four blocks of 8 × 128 float32, or the first of them alone.
    assert changing.hbm_read_bytes - staying.hbm_read_bytes == 3 * 8 * 128 * 4
    with pytest.raises(UnknownValueError, match="argument order, of which only the shape was given"):
        systolic.prepare(gather, jax.ShapeDtypeStruct((4,), jnp.int32), X, chip="v5e")


def test_many_calls_end_in_their_order_each_with_a_time_or_a_reason() -> None:
    def fails(x: Any) -> Any:
        raise ValueError(f"not for {x.shape}")

    ended: list[str] = []
    calls = [
        (functools.partial(jnp.add, 1), (X,)),
        (fails, (X,)),
        (gather, (np.array([1, 0], np.int32), X)),
        (gather, (np.array([1, 1], np.int32), X)),
    ]
    outcomes = systolic.simulate_many(calls, chip="v6e", workers=1, done=ended.append)
    assert [outcome.status for outcome in outcomes] == ["ok", "failed", "ok", "ok"]
    assert "not for (64, 128)" in outcomes[1].reason
    with pytest.raises(ValueError, match="not for"):
        outcomes[1].required()
    assert outcomes[0].time_us == systolic.simulate(*(calls[0][0], *calls[0][1]), chip="v6e").time_us
    read = [outcome.required().hbm_read_bytes for outcome in outcomes[2:]]
    assert read[1] - read[0] == 8 * 128 * 4
    assert sorted(ended) == sorted(outcome.label for outcome in outcomes)
    assert len(set(ended)) == len(calls)


def test_a_prepared_program_gives_away_what_its_function_of_jit_does() -> None:
    def step(state: jax.Array, row: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(state, row, (8, 0))

    args = jax.ShapeDtypeStruct((2048, 1024), jnp.float32), jax.ShapeDtypeStruct((8, 1024), jnp.float32)
    given = jax.jit(step, donate_argnums=0)
    moved = systolic.prepare(given, *args, chip="v5e").run().hbm_bytes
    assert moved == systolic.simulate(given, *args, chip="v5e").hbm_bytes
    assert moved < systolic.prepare(step, *args, chip="v5e").run().hbm_bytes
