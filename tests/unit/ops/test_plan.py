"""The planner without a table: legal everywhere, the same every time, never the smallest tiles, and it says why."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import subprocess
import sys

import pytest

import systolic
from systolic.chips import UnsupportedDtypeError, chip
from systolic.cost import MAX_BUNDLES, code_bundles, ranked_configs
from systolic.schedule import (
    IllegalTilesError,
    KernelConfig,
    Tiles,
    config_violations,
    hbm_traffic,
    kernel_buffers,
    total_bytes,
)
from systolic.spec import Epilogue, FusedOperand, MatmulSpec, Prologue

CHIPS = ["v4", "v5e", "v5p", "v6e", "v7x"]
SIZES = [1, 2, 7, 8, 16, 64, 100, 127, 128, 129, 256, 300, 512, 999, 1000, 1024, 2048, 4096, 5120, 7919, 14336, 16384]
DTYPES = ["float32", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2"]


def drawn(number: int) -> MatmulSpec:
    """A problem as a model or a mean tester would have it."""
    choose = random.Random(number)
    m, k, n = (choose.choice([*SIZES, choose.randint(1, 6000)]) for _ in range(3))
    dtype_lhs = choose.choice(DTYPES)
    dtype_rhs = dtype_lhs if choose.random() < 0.7 else choose.choice(["bfloat16", "int8"])
    batch = choose.choice([1, 1, 1, 3, 16])
    row = FusedOperand(rows=False, columns=True, dtype="float32")
    matrix = FusedOperand(rows=m > 1, columns=True, dtype="bfloat16")
    column = FusedOperand(rows=m > 1, columns=False, dtype="float32")
    bias, residual, scales_rhs, scales_lhs = (
        one if choose.random() < 0.3 else None for one in (row, matrix, row, column)
    )
    made = Prologue(dtype="bfloat16", op_count=choose.choice([1, 4, 20]))
    epilogue = Epilogue(
        bias=bias,
        residual=residual,
        op_count=choose.choice([0, 1, 1, 20, 60]),
        kept_sum=choose.choice([None, None, None, "bfloat16"]),
    )
    return MatmulSpec(
        m=m,
        k=k,
        n=n,
        dtype_lhs=dtype_lhs,
        dtype_rhs=dtype_rhs,
        dtype_out=choose.choice(["float32", "bfloat16", "int32" if dtype_lhs == dtype_rhs == "int8" else "bfloat16"]),
        batch=batch,
        batch_lhs=choose.choice([1, batch]),
        batch_rhs=choose.choice([1, batch]),
        transpose_lhs=choose.random() < 0.4,
        transpose_rhs=choose.random() < 0.4,
        precision=choose.choice(["default", "high", "highest"]),
        lhs_prologue=dataclasses.replace(made, operands=(scales_lhs,)) if scales_lhs else None,
        rhs_prologue=dataclasses.replace(made, operands=(scales_rhs,)) if scales_rhs else None,
        epilogue=epilogue,
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", [0, 10, 20, *(pytest.param(start, marks=pytest.mark.slow) for start in (30, 40, 50))])
@pytest.mark.parametrize("name", CHIPS)
def test_any_plan_is_legal(name: str, start: int) -> None:
    for number in range(start, start + 10):
        spec = drawn(number)
        if spec.dtype_multiplied not in chip(name).dtypes:
            with pytest.raises(UnsupportedDtypeError):
                systolic.plan(spec, name)
            continue
        plan = systolic.plan(spec, name)
        tiles = plan.config.tiles
        assert not config_violations(plan.computed, plan.config, chip(name)), spec
        buffers_bytes = total_bytes(kernel_buffers(plan.computed, plan.config))
        assert buffers_bytes < plan.vmem_limit_bytes <= chip(name).vmem_bytes_per_core, spec
        assert code_bundles(plan.computed, plan.config, chip(name)) <= MAX_BUNDLES, spec
        if min(spec.m, spec.k, spec.n) > 128:
            assert tiles != Tiles.cube(128), spec
        sizes = (plan.computed.m, plan.computed.k, plan.computed.n)
        for steps, tile, size in zip(tiles.grid(plan.computed), (tiles.tile_m, tiles.tile_n, tiles.tile_k),
                                     (sizes[0], sizes[2], sizes[1]), strict=True):  # fmt: skip
            assert (steps - 1) * tile < size <= steps * tile, spec
        assert plan.considered >= 1
        assert plan.hbm_bytes >= plan.spec.lhs_bytes + plan.spec.rhs_bytes + plan.spec.out_bytes
        assert plan.time_us >= 0.95 * max(plan.mxu_us, plan.modelled.ramp_us), spec
        assert plan.time_us == pytest.approx(ranked_configs(plan.computed, chip(name), count=1)[0][0].modelled.time_us)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["v5e", "v6e", "v7x"])
@pytest.mark.parametrize("sides", [(2048, 1024, 2048), (1024, 2048, 2048), (2048, 2048, 2048), (4096, 4096, 4096)])
def test_given_tiles_have_a_plan_or_a_reason(name: str, sides: tuple[int, int, int]) -> None:
    """Also where operands are made on the way, whose slices take VMEM of their own."""
    tiles = Tiles(tile_m=sides[0], tile_k=sides[1], tile_n=sides[2])
    spec = dataclasses.replace(MatmulSpec.of(4096, 4096, 4096, "float32"), precision="high")
    try:
        plan = systolic.plan(spec, name, tiles=tiles)
    except IllegalTilesError as error:
        assert error.violations  # noqa: PT017 -- either is right, as long as it says why
        return
    assert plan.config.tiles == tiles
    assert systolic.plan(spec, name, tiles=plan.config).config == plan.config


def test_the_same_in_every_process() -> None:
    script = (
        "import systolic\n"
        "from systolic.spec import MatmulSpec\n"
        "for sizes in [(4096, 4096, 4096), (16, 8192, 28672), (1000, 999, 1001)]:\n"
        "    for name in ('v5e', 'v5p', 'v7x'):\n"
        "        print(systolic.plan(MatmulSpec.of(*sizes, 'bfloat16'), name))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert systolic.plan(MatmulSpec.of(1000, 999, 1001, "bfloat16"), "v7x").reason in outputs.pop()


@pytest.mark.sampled
@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("side", [512, 1024, 4096, 16384])
def test_squares_have_large_tiles(name: str, side: int) -> None:
    """Every element of an operand is used for at least 256 others, and traffic stays below what the units wait for."""
    plan = systolic.plan(MatmulSpec.of(side, side, side, "bfloat16"), name)
    tiles = plan.config.tiles
    assert min(tiles.tile_m, tiles.tile_n) >= 256
    assert tiles.tile_m * tiles.tile_k * tiles.tile_n > 2 * 128**3
    if side >= 4096:
        assert plan.modelled.limit == "the matrix units"
        assert plan.time_us < 1.3 * plan.mxu_us


@pytest.mark.sampled
@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("m", [1, 8, 64])
def test_thin_products_read_the_weight_once(name: str, m: int) -> None:
    spec = MatmulSpec.of(m, 8192, 8192, "bfloat16")
    plan = systolic.plan(spec, name)
    assert plan.modelled.limit == "HBM"
    assert plan.hbm_bytes < 1.1 * spec.least_hbm_bytes
    assert plan.time_us < 1.45 * plan.hbm_us  # copies do not reach the published bandwidth


@pytest.mark.parametrize("name", CHIPS)
def test_given_tiles_are_used(name: str) -> None:
    spec = MatmulSpec.of(2048, 2048, 2048, "bfloat16")
    tiles = Tiles(tile_m=512, tile_k=256, tile_n=384)
    plan = systolic.plan(spec, name, tiles=tiles)
    assert plan.config.tiles == tiles
    assert plan.reason.startswith("tiles as given")
    assert plan.grid == (1, 4, 6, 8)
    assert plan.time_us >= systolic.plan(spec, name).time_us


def test_batches_count() -> None:
    one = MatmulSpec.of(512, 512, 512, "bfloat16")
    each = dataclasses.replace(one, batch=8, batch_lhs=8, batch_rhs=8)
    shared = dataclasses.replace(one, batch=8, batch_lhs=8, batch_rhs=1)
    plans = [systolic.plan(spec, "v6e") for spec in (one, each, shared)]
    assert [plan.grid[0] for plan in plans] == [1, 8, 8]
    assert plans[1].hbm_bytes >= each.least_hbm_bytes == 8 * one.least_hbm_bytes
    assert plans[2].hbm_bytes <= plans[1].hbm_bytes
    assert 2 * plans[0].time_us < plans[1].time_us < 9 * plans[0].time_us


def test_what_is_fused_counts() -> None:
    plain = MatmulSpec.of(2048, 2048, 2048, "bfloat16")
    residual = FusedOperand(rows=True, columns=True, dtype="float32")
    fused = dataclasses.replace(plain, epilogue=Epilogue(residual=residual, op_count=1))
    first, second = (systolic.plan(spec, "v5e") for spec in (plain, fused))
    assert second.hbm_bytes - hbm_traffic(plain, second.config).hbm_bytes == 4 * 2048 * 2048
    assert second.time_us > first.time_us
    names = [buffer.name for buffer in kernel_buffers(second.computed, second.config)]
    assert "fused 0" in names


def test_a_chip_of_your_own() -> None:
    """Half of the VMEM, other tiles; and it is not mistaken for the chip whose name it has."""
    small = dataclasses.replace(chip("v5e"), vmem_bytes_per_core=chip("v5e").vmem_bytes_per_core // 16)
    spec = MatmulSpec.of(4096, 4096, 4096, "float32")
    plan = systolic.plan(spec, small)
    assert plan.vmem_limit_bytes <= small.vmem_bytes_per_core
    assert total_bytes(kernel_buffers(plan.computed, plan.config)) < small.vmem_bytes_per_core
    assert plan.config != systolic.plan(spec, "v5e").config


@pytest.mark.parametrize(
    ("spec", "name", "said"),
    [
        (MatmulSpec.of(4096, 4096, 4096, "bfloat16"), "v5e",
         ("limited by the matrix units", "by profiles of their tiles")),
        (MatmulSpec.of(4097, 4096, 4096, "bfloat16"), "v5e", ("by the model",)),
        (MatmulSpec.of(8, 8192, 8192, "bfloat16"), "v5e", ("limited by HBM", "HBM traffic is 1.0 × the least")),
        (MatmulSpec.of(512, 512, 512, "float32"), "v6e", ("float32 as one bfloat16 pass",)),
        (dataclasses.replace(MatmulSpec.of(512, 512, 512, "float32"), precision="high"), "v6e",
         ("float32 as three bfloat16 passes",)),
        (dataclasses.replace(MatmulSpec.of(512, 512, 512, "float32"), precision="highest"), "v6e",
         ("float32 as six bfloat16 passes",)),
        (MatmulSpec.of(512, 512, 512, "int8"), "v7x", ("v7x multiplies int8 at the rate of bfloat16",)),
        (MatmulSpec.of(512, 512, 512, "bfloat16"), "v5p", ("both cores share the blocks of the output",)),
    ],
)  # fmt: skip
def test_the_reason_says_what_decides(spec: MatmulSpec, name: str, said: tuple[str, ...]) -> None:
    plan = systolic.plan(spec, name)
    for words in said:
        assert words in plan.reason
    assert "µs go to the first blocks and the last store" in plan.reason


@pytest.mark.exhaustive
def test_precision_costs_what_it_costs() -> None:
    spec = MatmulSpec.of(4096, 4096, 4096, "float32")
    times = [
        systolic.plan(dataclasses.replace(spec, precision=name), "v5e").mxu_us
        for name in ("default", "high", "highest")
    ]
    assert times[1] == pytest.approx(3 * times[0])
    assert times[2] == pytest.approx(6 * times[0])


def test_a_plan_in_words() -> None:
    spec = dataclasses.replace(MatmulSpec.of(1024, 2048, 512, "bfloat16"), batch=3, batch_lhs=3, batch_rhs=3)
    plan = systolic.plan(spec, "v5e")
    first, kernel, why, time = str(plan).split("\n")
    assert first == "3 × 1024 × 2048 × 512 (m k n), bfloat16 × bfloat16 → bfloat16 on v5e"
    assert kernel == f"kernel  {plan.config}"
    assert str(plan.config.tiles) in kernel
    assert why == f"why     {plan.reason}"
    assert time.startswith(f"time    {plan.time_us:,.1f} µs modelled; at peak {plan.mxu_us:,.1f}")


@pytest.mark.sampled(10)
@pytest.mark.parametrize("number", range(40))
def test_traffic_is_that_of_going_through_all_steps(number: int) -> None:
    choose = random.Random(number)
    grid = {name: choose.choice([1, 2, 3]) for name in ("batch", "m", "n", "k")}
    tiles = Tiles(tile_m=128, tile_k=256, tile_n=384)
    shared = choose.choice([True, False])
    matrix, column = (FusedOperand(rows=True, columns=columns, dtype="float32") for columns in (True, False))
    of_lhs = choose.choice([False, False, True])
    fused = column if of_lhs else choose.choice([matrix, column])
    spec = MatmulSpec(
        m=128 * grid["m"], k=256 * grid["k"], n=384 * grid["n"], dtype_lhs="bfloat16", dtype_rhs="bfloat16",
        dtype_out="bfloat16", batch=grid["batch"], batch_lhs=grid["batch"], batch_rhs=1 if shared else grid["batch"],
        lhs_prologue=Prologue(dtype="bfloat16", operands=(fused,)) if of_lhs else None,
        epilogue=Epilogue(residual=None if of_lhs else fused),
    )  # fmt: skip
    grid_order = choose.choice(["m", "n"])
    config = KernelConfig(tiles=tiles, subtile_m=128, subtile_n=384, grid_order=grid_order)  # type: ignore[arg-type]
    loops = ["batch", grid_order, "n" if grid_order == "m" else "m", "k"]
    along = {"lhs": ["batch", "m", "k"], "rhs": ["k", "n"] if shared else ["batch", "k", "n"]}
    along["fused"] = ["batch", "m", "n"] if fused.columns else ["m"]
    fetched, before = dict.fromkeys(along, 0), dict.fromkeys(along, None)
    for step in itertools.product(*(range(grid[name]) for name in loops)):
        at = dict(zip(loops, step, strict=True))
        for name, dimensions in along.items():
            block = tuple(at[dimension] for dimension in dimensions)
            fetched[name] += block != before[name]
            before[name] = block  # type: ignore[assignment]
    found = hbm_traffic(spec, config)
    assert found.lhs_bytes == fetched["lhs"] * 128 * 256 * 2
    assert found.rhs_bytes == fetched["rhs"] * 256 * 384 * 2
    assert found.fused_bytes == fetched["fused"] * 128 * (384 if fused.columns else 1) * 4


def test_numbers_are_a_plain_product() -> None:
    assert systolic.plan(512, 1024, 256, "v6e") == systolic.plan(MatmulSpec.of(512, 1024, 256, "bfloat16"), "v6e")
    assert systolic.plan(512, 512, 512, dtype="int8").spec.dtype_lhs == "int8"
