"""The choice of a schedule of products on a ring."""

from __future__ import annotations

from dataclasses import replace

import pytest

import systolic
from systolic.chips import chip
from systolic.ops.collective.configs import config_of, ring_schedule_of
from systolic.ops.collective.cost import fastest_schedule, schedule_us, usable_bytes, vmem_bytes
from systolic.ops.collective.sizes import RingSizes
from systolic.schedule import IllegalTilesError

GATHER = RingSizes(devices=8, rows=256, k=4096, columns=1792, dtype="bfloat16", dtype_out="bfloat16", scatters=False)
SCATTER = RingSizes(devices=8, rows=256, k=1792, columns=4096, dtype="bfloat16", dtype_out="bfloat16", scatters=True)


@pytest.mark.parametrize(
    "sizes",
    [
        GATHER,
        SCATTER,
        replace(GATHER, rows=1, dtype="float32"),
        replace(SCATTER, rows=7, dtype_out="float32"),
        replace(SCATTER, devices=2, rows=48),
        replace(GATHER, devices=3, columns=128),
        replace(GATHER, rows=33, wire_dtype="float8_e4m3fn"),
        replace(SCATTER, wire_dtype="int8"),
        replace(SCATTER, rows=32, dtype="float32", wire_dtype="float8_e5m2"),
    ],
)
@pytest.mark.parametrize("name", ["v5e", "v5p", "v6e", "v7x"])
def test_a_schedule_fits_and_takes_no_less_than_the_limits(sizes: RingSizes, name: str) -> None:
    target = chip(name)
    schedule = fastest_schedule(sizes, target)
    assert schedule.chunk_rows >= sizes.rows
    assert schedule.out_columns == sizes.columns
    assert ring_schedule_of(sizes, config_of(schedule, sizes), target) == schedule
    assert vmem_bytes(schedule, sizes) <= usable_bytes(target)
    assert target.links is not None
    width = sizes.columns if sizes.scatters else sizes.k
    itemsize = 4 if "float32" in (sizes.dtype_out if sizes.scatters else sizes.dtype) else 2
    itemsize = 1 if sizes.wire_dtype else itemsize
    sent = (sizes.devices - 1) * sizes.rows * width * itemsize / 2
    flops = 2 * sizes.devices * sizes.rows * sizes.k * sizes.columns
    least_us = max(sent / target.links.bytes_per_s, flops / target.peak_ops_per_s(sizes.dtype)) * 1e6
    assert schedule_us(schedule, sizes, target) >= least_us


@pytest.mark.parametrize("rows", [256, 32])
@pytest.mark.parametrize("name", ["v6e", "v7x"])
def test_eight_bits_pay_where_the_links_are_the_limit(rows: int, name: str) -> None:
    for sizes in (replace(GATHER, rows=rows), replace(SCATTER, rows=rows)):
        narrow = replace(sizes, wire_dtype="int8")
        assert sizes.sent_bytes / 2 < narrow.sent_bytes < sizes.sent_bytes * 0.54
        wide_us, narrow_us = (systolic.plan(spec, name).time_us for spec in (sizes, narrow))
        assert narrow_us < 0.95 * wide_us
    assert "summed and scattered in int8" in str(replace(SCATTER, wire_dtype="int8"))


def test_the_vector_unit_takes_time_for_sums_in_eight_bits() -> None:
    # The matrix units are the limit of 70B, and the chip has no instruction for float8_e4m3fn.
    sizes = replace(SCATTER, k=3584, columns=8192)
    wires = (None, "int8", "float8_e4m3fn")
    times = [systolic.plan(replace(sizes, wire_dtype=wire), "v6e").time_us for wire in wires]
    assert times == sorted(times)
    native = [systolic.plan(replace(SCATTER, wire_dtype=wire), "v7x").time_us for wire in wires[1:]]
    assert native[0] == native[1]


def test_a_piece_in_eight_bits_has_half_a_register_of_rows_or_whole_ones() -> None:
    for rows, padded_rows in ((1, 32), (32, 32), (33, 64), (65, 128)):
        for sizes in (replace(GATHER, rows=rows), replace(SCATTER, rows=rows)):
            assert replace(sizes, wire_dtype="int8").padded_rows == padded_rows
    with pytest.raises(IllegalTilesError, match="rows=96"):
        replace(fastest_schedule(replace(SCATTER, wire_dtype="int8"), chip("v6e")), rows=96, pieces=2)


@pytest.mark.parametrize(
    ("sizes", "row_cores", "column_cores"),
    [
        (GATHER, 2, 1),
        (replace(GATHER, rows=33), 2, 1),
        (replace(GATHER, rows=32), 1, 2),  # too few to share
        (replace(GATHER, rows=32, columns=1920), 2, 1),  # columns that two cores do not cut evenly
        (replace(GATHER, k=8192, columns=3584), 1, 2),  # weights that do not fit in one core's VMEM
        (SCATTER, 1, 2),
        (replace(SCATTER, columns=1920), 1, 1),
    ],
)
def test_two_cores_share_rows_or_columns(sizes: RingSizes, row_cores: int, column_cores: int) -> None:
    schedule = fastest_schedule(sizes, chip("v5p"))
    assert (schedule.row_cores, schedule.column_cores) == (row_cores, column_cores)


@pytest.mark.parametrize(
    ("sizes", "name", "message"),
    [
        (replace(GATHER, devices=1), "v6e", "ring: one device"),
        (replace(GATHER, k=100), "v6e", "k=100"),
        (replace(SCATTER, columns=100), "v6e", "columns=100"),
        (replace(GATHER, dtype="int8"), "v6e", "dtype: int8"),
        (replace(SCATTER, dtype_out="int32"), "v6e", "dtype: int32"),
        (replace(GATHER, wire_dtype="float8_e4m3fn"), "v4", "wire_dtype=float8_e4m3fn.*use int8"),
        (replace(SCATTER, wire_dtype="float8_e5m2"), "v4", "wire_dtype=float8_e5m2.*use int8"),
        (GATHER, "v4", "all rows of x and w are 30 MiB"),
    ],
)
def test_what_no_schedule_suits_is_refused_with_the_reason(sizes: RingSizes, name: str, message: str) -> None:
    with pytest.raises(IllegalTilesError, match=message):
        fastest_schedule(sizes, chip(name))
