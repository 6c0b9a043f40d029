"""Plans and refusals of block-sparse products, without compiling anything."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic import BlockSparse
from systolic.ops.op import op_of, read_spec, record_of
from systolic.ops.sparse.call_lists import calls_of, one_call
from systolic.ops.sparse.schedule import schedule_of
from systolic.ops.sparse.spec import BlockSparseError, SparseSpec
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles
from systolic.spec import NoKernelWarning, SpecError


def spec(**changes: Any) -> SparseSpec:
    plain = SparseSpec(
        kind="dsd", m=4096, k=8192, n=2048, block_rows=256, block_columns=256, blocks=50, most_blocks=64,
        dtype="bfloat16", dtype_out="bfloat16",
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e", "v7x"])
@pytest.mark.parametrize("kind", ["dsd", "dds", "sdd"])
def test_every_plan_is_legal_and_fits(chip: str, kind: Any) -> None:
    its = systolic.chip(chip)
    for changes in (
        {},
        {"block_rows": 512, "block_columns": 128},
        {"m": 1024, "k": 1024, "n": 384, "block_rows": 128, "block_columns": 128, "blocks": 1},
        {"dtype": "float32", "precision": "highest"},
    ):
        if chip == "v4" and changes.get("dtype") and kind != "sdd":
            with pytest.raises(IllegalTilesError, match="vmem"):  # a line of 32 blocks, and all of k beside it
                systolic.plan(spec(kind=kind, **changes), chip)
            continue
        wanted = spec(kind=kind, **changes)
        plan = systolic.plan(wanted, chip)
        assert plan.vmem_bytes < plan.vmem_limit_bytes <= its.usable_vmem_bytes_per_core
        assert plan.hbm_bytes >= wanted.least_hbm_bytes
        assert plan.time_us > 0
        tiles = plan.config.tiles
        again = systolic.plan(wanted, chip, tiles=plan.config)
        assert again.config == plan.config
        assert systolic.plan(wanted, chip, tiles=tiles).config.tiles == tiles
        op = op_of(wanted)
        assert op.judge(wanted, plan.config, its).modelled_us >= op.least_time_us(wanted, plan.config, its)


def test_fewer_blocks_take_less_time() -> None:
    times = [systolic.plan(spec(blocks=blocks, most_blocks=512), "v6e").time_us for blocks in (16, 64, 256, 512)]
    assert times == sorted(times)
    assert times[0] < times[-1] / 4


@pytest.mark.parametrize(("kind", "calls"), [("dsd", 2), ("dds", 3), ("sdd", 2)])
def test_a_list_that_smem_does_not_hold_is_planned_as_several_calls(kind: Any, calls: int) -> None:
    blocks = 150_000
    sizes = {"dsd": {"n": 256}, "dds": {"m": 256}, "sdd": {"k": 256}}[kind]
    wanted = spec(
        kind=kind, block_rows=128, block_columns=128, blocks=blocks, most_blocks=blocks,
        **{"m": 2**17, "k": 2**17, "n": 2**17, **sizes},
    )  # fmt: skip
    chip = systolic.chip("v6e")
    call = one_call(wanted, chip)
    assert calls_of(wanted, call) == calls
    assert call.most_blocks * calls >= blocks > call.most_blocks * (calls - 1)
    assert one_call(call, chip) == call
    plan, of_call = systolic.plan(wanted, chip), systolic.plan(call, chip)
    assert f"{calls} calls" in plan.reason
    assert " calls" not in of_call.reason
    assert plan.config == of_call.config
    assert plan.time_us > calls * of_call.time_us, "sums are added, or blocks joined"
    assert plan.hbm_bytes > wanted.least_hbm_bytes
    assert plan.vmem_bytes == of_call.vmem_bytes


def test_a_spec_goes_through_a_store() -> None:
    wanted = spec(kind="sdd", dense_out=True, diagonals=True, transpose_rhs=True)
    record = record_of(wanted)
    assert read_spec(record["op"], record["spec"]) == wanted
    assert record["op"] == "sparse"


def test_work_and_traffic_of_the_blocks_that_there_are() -> None:
    assert spec().flops == 2 * 50 * 256 * 256 * 2048
    assert spec(kind="dds").flops == 2 * 50 * 256 * 256 * 4096
    assert spec(kind="sdd").flops == 2 * 50 * 256 * 256 * 8192
    assert spec().least_hbm_bytes == 2 * (50 * 256 * 256 + 8192 * 2048 + 4096 * 2048)
    dense = spec(kind="sdd", dense_out=True)
    assert dense.least_hbm_bytes - spec(kind="sdd").least_hbm_bytes == 2 * (4096 * 2048 - 50 * 256 * 256)
    assert spec(transpose_sparse=True, block_rows=512).stored_block == (256, 512)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"kind": "sss"}, SpecError, "sss"),
        ({"m": 0}, SpecError, "m=0"),
        ({"block_rows": 257}, BlockSparseError, "257 × 256"),
        ({"blocks": 65}, BlockSparseError, "blocks=65"),
        ({"blocks": 513, "most_blocks": 600}, BlockSparseError, "512 places"),
        ({"precision": "low"}, SpecError, "low"),
    ],
)
def test_what_is_no_spec(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        spec(**changes)


@pytest.mark.parametrize(
    ("changes", "tiles", "rule"),
    [
        ({"block_columns": 64}, (256, 256, 256), "block"),
        ({}, (128, 256, 256), "tile-of-blocks"),
        ({}, (256, 300, 256), "tile-of-blocks"),
        ({}, (256, 256, 200), "tile-divides"),
        ({"kind": "sdd"}, (256, 384, 256), "tile-divides"),
        ({"n": 2**18}, (256, 256, 2**17), "vmem"),
        ({"m": 2**20, "k": 2**20, "most_blocks": 2**18}, (256, 256, 128), "smem"),
    ],
)
def test_rules(changes: dict[str, Any], tiles: tuple[int, int, int], rule: str) -> None:
    m, k, n = tiles
    config = KernelConfig(tiles=Tiles(tile_m=m, tile_k=k, tile_n=n), subtile_m=m, subtile_n=n, pipeline="manual")
    with pytest.raises(IllegalTilesError) as raised:
        schedule_of(spec(**changes), config, systolic.chip("v5e"))
    assert rule in {one.rule for one in raised.value.violations}
    with pytest.raises(IllegalTilesError):
        systolic.plan(spec(), "v5e", tiles=Tiles(tile_m=8, tile_k=8, tile_n=8))


def test_small_blocks_are_left_to_xla_with_a_warning() -> None:
    matrix = BlockSparse.from_dense(np.eye(64, dtype="float32"), (16, 16))
    product = jax.jit(lambda x: systolic.sparse_matmul(matrix, x, chip="v5e"))
    traced = product.trace(jax.ShapeDtypeStruct((64, 128), jnp.float32))
    assert "pallas_call" not in str(traced.jaxpr)
    with pytest.warns(NoKernelWarning, match="block_rows=16|block_columns=16"):
        traced.lower(lowering_platforms=("tpu",))
