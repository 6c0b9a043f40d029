"""The planner on two products in one kernel; records of a single product are unchanged."""

from __future__ import annotations

import dataclasses
import json

import jax
import pytest

import systolic
from systolic.chips import chip
from systolic.ops.gated.spec import GatedSpec
from systolic.ops.matmul.named import counted
from systolic.ops.op import op_of, read_spec, record_of
from systolic.schedule import (
    IllegalTilesError,
    KernelConfig,
    Tiles,
    config_violations,
    kernel_buffers,
    operand_blocks,
    total_bytes,
)
from systolic.spec import Epilogue, FusedOperand, MatmulSpec, Prologue, SpecError

CHIPS = ["v5p", "v6e", "v7x"]
MATRIX = FusedOperand(rows=True, columns=True, dtype="bfloat16")
SLOPES = Prologue(name="slopes", dtype="bfloat16", operands=(MATRIX, MATRIX))


def products(m: int, k: int, n: int, *, side_by_side: bool = False) -> dict[str, GatedSpec]:
    """A gated product and both of its gradient."""
    gated = GatedSpec.of(m, k, n, "bfloat16", side_by_side=side_by_side)
    of_gradient = dataclasses.replace(gated, epilogue=Epilogue())
    return {
        "gated": gated,
        "added": dataclasses.replace(of_gradient, k=n, n=k, transpose_rhs=True, lhs_prologue=SLOPES, pairing="added"),
        "apart": dataclasses.replace(of_gradient, m=k, k=m, transpose_lhs=True, rhs_prologue=SLOPES, pairing="apart"),
    }


def test_records_of_one_product_have_not_changed() -> None:
    """Trials are kept by the digest of these fields."""
    assert list(record_of(MatmulSpec.of(1, 2, 3, "int8"))["spec"]) == [
        *("m", "k", "n", "dtype_lhs", "dtype_rhs", "dtype_out", "batch", "batch_lhs", "batch_rhs", "transpose_lhs"),
        *("transpose_rhs", "precision", "lhs_prologue", "rhs_prologue", "epilogue"),
    ]
    plain = MatmulSpec.of(1, 2, 3, "int8")
    assert (plain.products, plain.sums, plain.operands.up) == (1, 1, None)


@pytest.mark.parametrize("name", ["gated", "added", "apart"])
def test_records_of_two_products(name: str) -> None:
    spec = counted(products(256, 512, 1024, side_by_side=True)[name])
    record = record_of(spec)
    assert record["op"] == "gated"
    assert read_spec(record["op"], json.loads(json.dumps(record["spec"]))) == spec
    assert op_of(spec).name == "gated"


def test_arithmetic() -> None:
    m, k, n = 256, 512, 1024
    rows, weights, result = m * k * 2, k * n * 2, m * n * 2
    least = {
        "gated": rows + 2 * weights + result,
        "added": 3 * result + 2 * weights + rows,
        "apart": rows + 3 * result + 2 * weights,
    }
    for name, spec in products(m, k, n).items():
        assert spec.flops == 4 * m * k * n
        assert spec.least_hbm_bytes == least[name]
    kept = dataclasses.replace(products(m, k, n)["gated"], epilogue=Epilogue(activation="silu", kept_sum="float32"))
    assert kept.least_hbm_bytes == least["gated"] + 2 * m * n * 4


@pytest.mark.exhaustive
@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("sizes", [(16, 512, 1024), (2048, 4096, 3584)])
def test_plans(name: str, sizes: tuple[int, int, int], side_by_side: bool) -> None:
    on = chip(name)
    for kind, spec in products(*sizes, side_by_side=side_by_side).items():
        if kind == "apart" and side_by_side and on.cores_per_device > 1:
            with pytest.raises(IllegalTilesError, match="one array of"):
                systolic.plan(counted(spec), name)
            continue
        plan = systolic.plan(counted(spec), name)
        assert not config_violations(plan.computed, plan.config, on)
        assert total_bytes(kernel_buffers(plan.computed, plan.config)) <= plan.vmem_limit_bytes
        assert plan.hbm_bytes >= spec.least_hbm_bytes
        assert plan.time_us > 0.99 * max(plan.mxu_us, plan.hbm_us)
        if sizes[0] == 16 and kind == "gated":
            assert plan.hbm_bytes < 1.1 * spec.least_hbm_bytes, "each weight is read once"


def test_buffers() -> None:
    config = KernelConfig(tiles=Tiles(tile_m=128, tile_k=256, tile_n=512), subtile_m=128, subtile_n=512)
    each = {
        name: [buffer.name for buffer in kernel_buffers(spec, config)]
        for name, spec in products(256, 512, 1024).items()
    }
    assert each == {
        "gated": ["lhs", "rhs", "up", "out", "acc", "acc"],
        "added": ["lhs", "rhs", "up", "fused 0", "fused 1", "out", "acc"],
        "apart": ["lhs", "rhs", "fused 0", "fused 1", "out", "out"],
    }


def test_side_by_side() -> None:
    gated = products(256, 512, 1024, side_by_side=True)["gated"]
    tiles = Tiles(tile_m=128, tile_k=512, tile_n=256)
    up = operand_blocks(gated, tiles).up
    assert (up.first_column, operand_blocks(gated, tiles).rhs.first_column) == (1024, 0)
    with pytest.raises(IllegalTilesError, match="side by side"):
        systolic.plan(counted(gated), "v6e", tiles=Tiles(tile_m=128, tile_k=512, tile_n=384))
    assert systolic.plan(counted(gated), "v6e", tiles=tiles).config.tiles == tiles
    apart = counted(products(256, 512, 1024, side_by_side=True)["apart"])
    whole = KernelConfig(tiles=Tiles(tile_m=256, tile_k=256, tile_n=512), subtile_m=256, subtile_n=512)
    with pytest.raises(IllegalTilesError, match="one array"):
        systolic.plan(apart, "v6e", tiles=whole)
    assert systolic.plan(apart, "v6e").config.pipeline == "manual"


def test_programs() -> None:
    for name, spec in products(256, 512, 1024, side_by_side=True).items():
        programs = op_of(spec).programs(spec, chip("v6e"))
        config = systolic.plan(programs.computed, "v6e").config
        shapes = [jax.eval_shape(fn, *programs.arguments) for fn in (programs.kernel(config), programs.xla)]
        wanted = {"gated": (256, 1024), "added": (256, 512), "apart": (512, 2048)}[name]
        assert [one.shape for one in shapes] == [wanted, wanted]
        raced = op_of(spec).raced(spec, chip("v6e"))
        assert [jax.eval_shape(fn, *raced.arguments).shape for fn in (raced.ours, raced.xla)] == [wanted, wanted]
    kept = dataclasses.replace(products(8, 8, 8)["gated"], epilogue=Epilogue(activation="silu", kept_sum="float32"))
    with pytest.raises(SpecError, match="gradient"):
        op_of(kept).programs(kept, chip("v6e"))
    assert (
        "times a second product, side by side"
        in op_of(kept).words(products(256, 512, 1024, side_by_side=True)["gated"])[2]
    )
