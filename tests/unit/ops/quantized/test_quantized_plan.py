"""Routes, tiles and refusals of products with quantized weights, without compiling anything."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import systolic
from systolic.ops.op import op_of, read_spec, record_of
from systolic.ops.quantized.routes import route_of
from systolic.ops.quantized.schedule import QuantizedSchedule, aligned_sizes
from systolic.ops.quantized.spec import ROW_FORMATS, QuantizedSpec
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles
from systolic.spec import LARGEST


def spec(**changes: Any) -> QuantizedSpec:
    plain = QuantizedSpec(
        m=16, k=4096, n=14336, dtype_lhs="bfloat16", dtype_rhs="int4", dtype_out="bfloat16", block=4096
    )
    return dataclasses.replace(plain, **changes)


SCHEDULED = KernelConfig(
    tiles=Tiles(tile_m=16, tile_k=4096, tile_n=2048), subtile_m=16, subtile_n=256, pipeline="manual"
)


@pytest.mark.parametrize(
    ("chip", "changes", "expected"),
    [
        ("v6e", {}, ("float8_e4m3b11fnuz", "codes", "sums")),
        ("v7x", {}, ("float8_e4m3fn", "codes", "sums")),
        ("v5e", {"block": 128, "m": 128}, ("float8_e4m3b11fnuz", "codes", "sums")),
        ("v6e", {"block": 128}, ("float8_e4m3b11fnuz", "codes", "sums")),
        ("v6e", {"block": 128, "m": 128}, ("bfloat16", "cast", "weights")),
        ("v6e", {"block": 128, "m": 128, "dtype_rhs": "float4_e2m1fn"}, ("bfloat16", "cast codes", "weights")),
        ("v5p", {"dtype_rhs": "float4_e2m1fn"}, ("float8_e5m2", "codes", "sums")),
        ("v7x", {"dtype_rhs": "float8_e4m3fn"}, ("float8_e4m3fn", "stored", "sums")),
        ("v4", {}, ("bfloat16", "cast", "sums")),
        ("v4", {"dtype_rhs": "float8_e4m3fn"}, ("bfloat16", "bits", "sums")),
        ("v4", {"dtype_rhs": "float4_e2m1fn"}, ("bfloat16", "bits", "sums")),
        ("v7x", {"dtype_rhs": "float8_e4m3b11fnuz"}, ("bfloat16", "bits", "sums")),
        ("v6e", {"dtype_rhs": "int8"}, ("bfloat16", "cast", "sums")),
    ],
)
def test_the_route_of_a_weight(chip: str, changes: dict[str, Any], expected: tuple[str, str, str]) -> None:
    wanted = spec(**changes)
    found = route_of(wanted, wanted.m, systolic.chip(chip))
    assert (found.pushed, found.made, found.scaled) == expected
    assert str(found) in systolic.plan(wanted, chip).reason


@pytest.mark.parametrize(
    ("chip", "changes", "expected"),
    [
        ("v7x", {"block": 128}, True),
        ("v7x", {"block": 128, "m": 1}, False),  # the matrix units take longer to load weights
        ("v7x", {"block": 32}, False),  # 64 rows are of two blocks
        ("v7x", {}, False),
        ("v6e", {"block": 128}, False),  # HBM takes longer
    ],
)
def test_even_columns_come_first_where_vector_units_take_longest(
    chip: str, changes: dict[str, Any], expected: bool
) -> None:
    wanted = spec(**changes)
    assert route_of(wanted, wanted.m, systolic.chip(chip)).even_first is expected


@pytest.mark.parametrize(
    ("chip", "rows", "changes", "expected"),
    [
        ("v6e", "int8", {"dtype_rhs": "int8"}, ("int8", "int8", "stored", "int32")),
        ("v5e", "int8", {}, ("int8", "int8", "cast", "int32")),
        ("v5p", "int4", {}, ("int4", "int4", "stored", "int32")),
        ("v6e", "int4", {"dtype_rhs": "int8"}, ("int8", "int8", "stored", "int32")),
        ("v6e", "int8", {"dtype_rhs": "float8_e4m3fn"}, ("bfloat16", "float8_e4m3fn", "stored", "float32")),
        ("v6e", "float8_e4m3fn", {"dtype_rhs": "float8_e4m3fn"}, ("bfloat16", "float8_e4m3fn", "stored", "float32")),
        (
            "v7x",
            "float8_e4m3fn",
            {"dtype_rhs": "float8_e4m3fn"},
            ("float8_e4m3fn", "float8_e4m3fn", "stored", "float32"),
        ),
        ("v7x", "float8_e4m3fn", {}, ("float8_e4m3fn", "float8_e4m3fn", "codes", "float32")),
        ("v7x", "int4", {}, ("float8_e4m3fn", "float8_e4m3fn", "codes", "float32")),
        ("v7x", "int8", {"dtype_rhs": "int8"}, ("bfloat16", "bfloat16", "cast", "int32")),
        ("v7x", "int8", {"dtype_rhs": "int8", "block": 1024}, ("bfloat16", "bfloat16", "cast", "float32")),
        (
            "v7x",
            "int8",
            {"k": 16384, "block": 16384},
            ("bfloat16", "bfloat16", "cast", "float32"),
        ),  # codes are not exact
        ("v4", "int8", {"dtype_rhs": "int8"}, ("bfloat16", "bfloat16", "cast", "int32")),
        ("v4", "int4", {"block": 128}, ("bfloat16", "bfloat16", "cast", "float32")),
        ("v4", "float8_e5m2", {"dtype_rhs": "float8_e4m3fn"}, ("bfloat16", "bfloat16", "bits", "float32")),
    ],
)
def test_the_route_of_quantized_rows(
    chip: str, rows: str, changes: dict[str, Any], expected: tuple[str, str, str, str]
) -> None:
    wanted = spec(quantize_lhs=rows, **changes)
    route = route_of(wanted, 128, systolic.chip(chip))
    assert (route.rows, route.pushed, route.made, route.sums) == expected
    assert route.scaled == "sums"
    assert str(route) in systolic.plan(wanted, chip).reason


@pytest.mark.exhaustive
def test_any_rows_are_planned() -> None:
    for chip in ("v4", "v5e", "v5p", "v6e", "v7x"):
        its = systolic.chip(chip)
        for rows in ROW_FORMATS:
            for name in ("int8", "int4", "float8_e4m3b11fnuz", "float4_e2m1fn"):
                for m, block in ((1, 4096), (300, 128), (8192, 4096)):
                    wanted = spec(m=m, n=1024, block=block, dtype_rhs=name, quantize_lhs=rows)
                    plan = systolic.plan(wanted, chip)
                    schedule = QuantizedSchedule.of(wanted, plan.config, its)
                    assert plan.vmem_bytes < plan.vmem_limit_bytes <= its.usable_vmem_bytes_per_core
                    assert schedule.grid_m * schedule.tile_m >= m
                    given = spec(m=m, n=1024, block=block, dtype_rhs=name, dtype_lhs=rows, lhs_block=block)
                    found = systolic.plan(given, chip)  # where VMEM is small scales may leave room for fewer rows
                    assert found.hbm_bytes < plan.hbm_bytes or found.config.tiles.tile_m < plan.config.tiles.tile_m


@pytest.mark.parametrize("name", ["int4", "float4_e2m1fn", "int8"])
def test_a_value_takes_a_byte_of_vmem(name: str) -> None:
    """The compiler refused 32 MiB for x[16, 65536] by int4[65536, 32768]: it needed 34.41, 32 of them for tiles."""
    wanted = spec(k=65536, n=32768, block=65536, dtype_rhs=name)
    schedule = QuantizedSchedule.of(wanted, SCHEDULED, systolic.chip("v6e"))
    sizes = {buffer.name: buffer.bytes for buffer in schedule.buffers}
    assert sizes["values"] == schedule.slots * 4096 * 2048
    assert schedule.vmem_limit_bytes > 34.41 * 2**20


@pytest.mark.parametrize(
    ("m", "dtype", "rows"),
    [(1, "bfloat16", 2), (3, "bfloat16", 4), (9, "bfloat16", 16), (1, "int8", 4), (17, "int8", 24)],
)
def test_rows_fill_registers_of_vmem(m: int, dtype: str, rows: int) -> None:
    changes: dict[str, Any] = {"lhs_block": 65536} if dtype == "int8" else {}
    wanted = spec(m=m, k=65536, n=32768, block=65536, dtype_rhs="int8", dtype_lhs=dtype, **changes)
    config = dataclasses.replace(SCHEDULED, tiles=dataclasses.replace(SCHEDULED.tiles, tile_m=m), subtile_m=m)
    (lhs, *_) = QuantizedSchedule.of(wanted, config, systolic.chip("v6e")).buffers
    assert (lhs.name, lhs.shape) == ("lhs", (rows, 65536))


def test_tiles_whose_sums_of_integers_may_wrap_are_refused() -> None:
    wanted = spec(k=2**18, n=128, block=2**18, dtype_rhs="int8", quantize_lhs="int8")
    for tile_k, refused in ((2**18, True), (2**13, False)):
        tiles = Tiles(tile_m=16, tile_k=tile_k, tile_n=128)
        config = KernelConfig(tiles=tiles, subtile_m=16, subtile_n=128, pipeline="manual")
        if not refused:
            assert QuantizedSchedule.of(wanted, config, systolic.chip("v6e")).tile_k == tile_k
            continue
        with pytest.raises(IllegalTilesError, match=f"exact-sums: tile_k={tile_k}"):
            QuantizedSchedule.of(wanted, config, systolic.chip("v6e"))


def test_rows_that_vmem_has_no_room_for() -> None:
    """All of k of a block of rows has to fit: else there is an error, or XLA multiplies if no kernel was asked for."""
    wanted = spec(m=64, k=2**21, n=128, block=2**21, dtype_rhs="int8", quantize_lhs="int8")
    with pytest.raises(IllegalTilesError, match="VMEM"):
        systolic.plan(wanted, "v7x")


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e", "v7x"])
def test_every_plan_is_legal_and_fits(chip: str) -> None:
    its = systolic.chip(chip)
    for name in LARGEST:
        for m, k, block in ((1, 4096, 4096), (128, 8192, 128), (300, 4096, 32), (4096, 4096, 1024)):
            wanted = spec(m=m, k=k, n=1024, block=block, dtype_rhs=name)
            plan = systolic.plan(wanted, chip)
            assert plan.vmem_bytes < plan.vmem_limit_bytes <= its.usable_vmem_bytes_per_core
            schedule = QuantizedSchedule.of(wanted, plan.config, its)
            assert schedule.tile_k % schedule.route.depth == 0
            assert schedule.grid_m * schedule.tile_m >= m
            assert plan.hbm_bytes >= wanted.least_hbm_bytes


def test_bytes_are_those_of_packed_values() -> None:
    assert spec().rhs_bytes == 4096 * 14336 // 2 + 4 * 14336
    assert spec(block=128, dtype_rhs="int8", dtype_scale="bfloat16").rhs_bytes == 4096 * 14336 + 2 * 32 * 14336


def test_sizes_are_padded_to_registers_and_blocks() -> None:
    assert aligned_sizes(100, 5, 100) == (128, 128)
    assert aligned_sizes(160, 256, 32) == (256, 256)
    assert aligned_sizes(480, 128, 96) == (768, 128)
    assert aligned_sizes(4096, 14336, 128) == (4096, 14336)


def test_two_weights_are_twice_the_work() -> None:
    one, two = spec(quantize_lhs="int8"), spec(quantize_lhs="int8", gated=True, activation="silu")
    assert (two.flops, two.rhs_bytes, two.lhs_bytes) == (2 * one.flops, 2 * one.rhs_bytes, one.lhs_bytes)
    for chip in ("v5e", "v6e", "v7x"):
        for changes in ({"m": 16}, {"m": 2048}, {"m": 128, "block": 128}):
            plans = [systolic.plan(dataclasses.replace(its, **changes), chip) for its in (one, two)]
            assert 1.5 < plans[1].time_us / plans[0].time_us < 2.2
            assert plans[1].vmem_bytes < plans[1].vmem_limit_bytes <= systolic.chip(chip).usable_vmem_bytes_per_core


@pytest.mark.parametrize("k", [28672, 25600, 29568, 11008])
def test_any_multiple_of_128_has_tiles(k: int) -> None:
    """Also where no part of k has eight blocks, or a matrix unit cannot be filled with whole ones."""
    for chip in ("v5e", "v6e", "v7x"):
        for block in (one for one in (32, 128, 1024, 4096) if k % one == 0):
            for m in (1, 2048):
                assert systolic.plan(spec(m=m, k=k, n=4096, block=block), chip).time_us > 0


def test_specs_are_kept_and_read() -> None:
    wanted = spec(bias=True, activation="silu", residual=True, out_scale=True)
    record = record_of(wanted)
    assert record["op"] == "quantized"
    assert read_spec(record["op"], record["spec"]) == wanted
    assert op_of(wanted).words(wanted)[2] == "bias, silu, residual, a scale of the result"
    wanted = spec(gated=True, activation="silu", dtype_rhs="bfloat16", quantize_lhs="int8")
    assert read_spec(record["op"], record_of(wanted)["spec"]) == wanted
    assert op_of(wanted).words(wanted)[2] == "silu, times a second product"
    for rows in ({"quantize_lhs": "int8"}, {"dtype_lhs": "float8_e4m3fn", "lhs_block": 4096}):
        wanted = spec(**rows)
        assert read_spec("quantized", record_of(wanted)["spec"]) == wanted
        assert next(iter(rows.values())) in op_of(wanted).words(wanted)[1]


@pytest.mark.exhaustive
def test_no_rows_and_no_columns() -> None:
    q, none = systolic.quantize(np.ones((8, 4), np.float32)), systolic.quantize(np.ones((8, 0), np.float32))
    rows = systolic.quantize(np.ones((2, 8), np.float32), axis=-1)
    assert systolic.matmul(np.ones((0, 8), np.float32), q, quantize_lhs="int8").shape == (0, 4)
    assert systolic.matmul(rows, none).shape == (2, 0)
    np.testing.assert_array_equal(np.asarray(systolic.matmul(rows, q)), np.full((2, 4), 8, np.float32))


def test_a_block_that_no_kernel_takes_is_left_to_xla() -> None:
    q = systolic.quantize(np.eye(48, dtype=np.float32), "int8", block=3)
    lhs = np.arange(96, dtype=np.float32).reshape(2, 48)
    np.testing.assert_allclose(np.asarray(systolic.matmul(lhs, q, chip="v6e")), lhs, rtol=1e-6)
    with pytest.raises(IllegalTilesError, match="block=3"):
        systolic.matmul(lhs, q, chip="v6e", implementation="interpret")
