"""The pipeline model: what repeats is left out and changes nothing, and no configuration is below its bound."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

from systolic.chips import chip
from systolic.cost import StepCost, pipeline_time, ranked_configs, repetition
from systolic.cost.bound import config_bound_us
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import Epilogue, FusedOperand, MatmulSpec, Prologue

SIZES = st.sampled_from([1, 2, 3, 5, 8, 13])
TILES = Tiles(tile_m=256, tile_k=512, tile_n=512)
FUSED = st.builds(FusedOperand, rows=st.booleans(), columns=st.booleans(), dtype=st.just("float32"))
PROLOGUES = st.none() | st.builds(Prologue, dtype=st.just("bfloat16"), operands=st.tuples(FUSED))
EPILOGUES = st.builds(Epilogue, residual=st.none() | FUSED, kept_sum=st.sampled_from([None, "float32"]))


@st.composite
def cases(draw: st.DrawFn) -> tuple[MatmulSpec, KernelConfig, str]:
    """Batches, edges, fused operands, further outputs, and each pipeline where it runs."""
    grid_m, grid_k, grid_n = draw(SIZES), draw(SIZES), draw(SIZES)
    name = draw(st.sampled_from(["v4", "v5e", "v5p", "v6e", "v7x"]))
    ragged, batch = draw(st.booleans()), draw(st.sampled_from([1, 1, 2, 9]))
    spec = dataclasses.replace(
        MatmulSpec.of(256 * grid_m - 56 * ragged, 512 * grid_k, 512 * grid_n - 100 * ragged, "bfloat16"),
        batch=batch,
        batch_lhs=draw(st.sampled_from([1, batch])),
        batch_rhs=draw(st.sampled_from([1, batch])),
        lhs_prologue=draw(PROLOGUES),
        rhs_prologue=draw(PROLOGUES),
        epilogue=draw(EPILOGUES),
    )
    config = KernelConfig(tiles=TILES, subtile_m=256, subtile_n=256, grid_order=draw(st.sampled_from(["m", "n"])))
    if chip(name).cores_per_device == 1 and draw(st.booleans()):
        config = dataclasses.replace(config, pipeline="emit", num_stages=3)
        if not ragged and batch == 1:
            num_stages, fill_chunks = draw(st.sampled_from([(2, 1), (2, 2), (3, 1), (3, 2)]))
            config = dataclasses.replace(config, pipeline="manual", num_stages=num_stages, fill_chunks=fill_chunks)
    return spec, config, name


@settings(max_examples=examples(200), deadline=None)
@given(case=cases(), step=st.sampled_from([300.0, 4000.0, 9000.0]))
def test_what_repeats_is_left_out_and_changes_nothing(case: tuple[MatmulSpec, KernelConfig, str], step: float) -> None:
    spec, config, name = case
    its = chip(name)
    cost = StepCost(call=200, first=step * 1.2, step=step, end=step + 50)
    short = pipeline_time(spec, config, its, cost)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repetition, "_SAME_CYCLES", -1.0)
        patch.setattr(repetition, "MAX_FOLLOWED_STEPS", float("inf"))
        whole = pipeline_time(spec, config, its, cost)
    assert short.time_us == pytest.approx(whole.time_us, rel=1e-4)
    assert short.compute_us == pytest.approx(whole.compute_us, rel=1e-9)
    assert short.copy_us == pytest.approx(whole.copy_us, rel=1e-9)
    assert short.time_us >= config_bound_us(spec, config, its, cost) * (1 - 1e-9)
    grid_m, grid_n, grid_k = TILES.grid(spec)
    cycles = step * (spec.batch * grid_m * grid_n * grid_k - 1) / its.cores_per_device
    assert short.time_us >= cycles / its.machine.clock_hz * 1e6


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["v5e", "v5p", "v6e", "v7x"])
@pytest.mark.parametrize("sizes", [(512, 512, 512), (32, 8192, 4096), (1000, 2000, 3000)])
def test_the_fastest_few_are_those_of_the_whole_ranking(name: str, sizes: tuple[int, int, int]) -> None:
    spec = MatmulSpec.of(*sizes, "bfloat16")
    few, considered = ranked_configs(spec, chip(name), count=3)
    every, _ = ranked_configs(spec, chip(name))
    assert considered == len(every)
    times = [one.modelled.time_us for one in every]
    assert times == sorted(times)
    assert [one.modelled.time_us for one in few] == pytest.approx(times[: len(few)], rel=0.001)
