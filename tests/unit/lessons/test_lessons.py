"""The lessons that need no interpreter, and what the rungs know of themselves."""

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

from systolic.chips import CHIPS, V4, V5E
from systolic.cost import roofline
from systolic.lessons import LESSONS
from systolic.lessons.kernels.block_matmul import block_matmul, lost_share, multiply_small
from systolic.lessons.ladder import RUNGS, Rung
from systolic.lessons.ladder.rules import bands
from systolic.lessons.roofline import least_compute_bound_size, lesson
from systolic.schedule import Tiles, TilesError, VmemBuffer, total_bytes
from systolic.spec import MatmulSpec

SIZE = st.integers(1, 70)
BLOCK = st.integers(1, 80)


@given(SIZE, SIZE, SIZE, BLOCK, BLOCK, BLOCK, st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_block_matmul_is_exact_for_integers_of_any_size(m, k, n, bm, bk, bn, seed) -> None:
    random = np.random.default_rng(seed)
    lhs = random.integers(-128, 128, (m, k)).astype(np.int8)
    rhs = random.integers(-128, 128, (k, n)).astype(np.int8)
    out = block_matmul(lhs, rhs, bm=bm, bk=bk, bn=bn)
    assert out.dtype == np.int32
    np.testing.assert_array_equal(out, lhs.astype(np.int64) @ rhs.astype(np.int64))


@given(SIZE, SIZE, SIZE, BLOCK, BLOCK, BLOCK)
@settings(deadline=None)
def test_block_matmul_of_float32(m, k, n, bm, bk, bn) -> None:
    random = np.random.default_rng(m + 100 * k + 10000 * n)
    lhs, rhs = (random.standard_normal(shape, np.float32) for shape in ((m, k), (k, n)))
    # Each of the k products and sums is wrong by 2^-24 of the absolute sums at most.
    bound = (k + 1) * 2.0**-24 * (np.abs(lhs).astype(float) @ np.abs(rhs).astype(float))
    assert (np.abs(block_matmul(lhs, rhs, bm=bm, bk=bk, bn=bn) - lhs.astype(float) @ rhs.astype(float)) <= bound).all()


def test_block_matmul_says_no() -> None:
    square = np.ones((8, 8), np.float32)
    with pytest.raises(ValueError, match="the small multiplier takes up to 256"):
        block_matmul(np.ones((300, 8), np.float32), square, bm=300)
    with pytest.raises(ValueError, match="bk=0"):
        block_matmul(square, square, bk=0)
    with pytest.raises(ValueError, match=r"lhs\[8, 8\] @ rhs\[9, 8\]"):
        block_matmul(square, np.ones((9, 8), np.float32))
    with pytest.raises(ValueError, match="none zero"):
        block_matmul(np.ones((0, 8), np.float32), square)
    assert multiply_small(square, square)[0, 0] == 8


def test_lost_share() -> None:
    assert lost_share(512, 512, 384, bm=256, bk=256, bn=128) == 0
    assert lost_share(512, 512, 384, bm=256, bk=256, bn=256) == pytest.approx(1 / 3)
    assert lost_share(512, 512, 384, bm=1024, bk=256, bn=256) == 1


@pytest.mark.parametrize(
    ("dtype", "bytes_", "intensity", "bound"),
    [("float32", 12582912, 170.7, "memory"), ("bfloat16", 6291456, 341.3, "compute")],
)
def test_roofline_of_the_seed(dtype: str, bytes_: int, intensity: float, bound: str) -> None:
    line = roofline(MatmulSpec.of(1024, 1024, 1024, dtype), V5E)
    assert line.flops == 2147483648
    assert line.hbm_bytes == bytes_
    assert line.intensity_flops_per_byte == pytest.approx(intensity, abs=0.05)
    assert line.ridge_flops_per_byte == pytest.approx(240.5, abs=0.05)
    assert line.limit == bound
    assert line.least_us == pytest.approx(max(2147483648 / 197e6, bytes_ / 819e3))
    assert (line.hbm_us > line.mxu_us) == (bound == "memory")


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_least_compute_bound_size(chip) -> None:
    for dtype in {"float32", "bfloat16", "int8"} & set(chip.dtypes):
        size = least_compute_bound_size(dtype, chip)
        assert roofline(MatmulSpec.of(size, size, size, dtype), chip).limit == "compute"
        if size > 128:
            below = size - 128
            assert roofline(MatmulSpec.of(below, below, below, dtype), chip).limit == "memory"


def test_roofline_lesson() -> None:
    told = lesson()
    assert told.ok
    rows = {(row["chip"], row["dtype"]): row for row in told.rows}
    assert ("v4", "int8") not in rows
    assert rows["v5e", "float32"]["bound"] == "memory"
    assert rows["v5e", "bfloat16"]["bound"] == "compute"
    assert rows["v5e", "int8"]["bound"] == "memory"  # twice the peak for half the bytes of the operands only


def test_lessons_are_all_there() -> None:
    for name, entry in LESSONS.items():
        assert entry.name == name
        assert "\n" not in entry.title
        assert callable(importlib.import_module(entry.module).lesson), name
    told = LESSONS["block_matmul"].run([])
    assert told.ok
    assert {row["lost_by_rounding_down_percent"] for row in told.rows} >= {0.0, 100.0}


def test_rungs_in_order() -> None:
    assert list(RUNGS) == [f"v{number}" for number in range(1, 9)]
    assert all(isinstance(rung, Rung) and rung.name == name for name, rung in RUNGS.items())
    assert [rung.takes_tiles for rung in RUNGS.values()] == [False, False, True, True, True, True, True, True]
    assert [rung.sweeps for rung in RUNGS.values()] == [False, False, False, True, True, False, False, False]
    for rung in RUNGS.values():
        for line in (rung.title, rung.adds, rung.costs):
            assert line
            assert "\n" not in line


@pytest.mark.parametrize("size", [1, 100, 128, 512, 1024, 8192])
@pytest.mark.parametrize("name", RUNGS)
def test_default_tiles_are_never_above_the_matrix(name: str, size: int) -> None:
    spec = MatmulSpec.of(size, size, size, "bfloat16")
    tiles = RUNGS[name].default_tiles(spec, 1)
    assert max(tiles.tile_m, tiles.tile_k, tiles.tile_n) <= size
    assert RUNGS[name].violations(spec, tiles, V5E) == []


def test_default_tiles_of_the_seeds() -> None:
    spec = MatmulSpec.of(4096, 4096, 4096, "bfloat16")
    assert [str(rung.default_tiles(spec, 4)) for rung in RUNGS.values()] == [
        "4096/4096/4096",
        "1024/4096/1024",
        "128/128/128",
        "512/512/512",
        "512/1024/1024",
        "2048/512/2048",
        "2048/512/2048",
        "2048/512/2048",
    ]
    assert [rung.output_roundings(spec, rung.default_tiles(spec, 4)) for rung in RUNGS.values()] == [
        1, 1, 32, 8, 1, 1, 1, 1,
    ]  # fmt: skip


def test_buffers_of_a_rung() -> None:
    spec = MatmulSpec.of(2048, 2048, 2048, "float32")
    need = {name: total_bytes(rung.buffers(spec, rung.default_tiles(spec, 4))) for name, rung in RUNGS.items()}
    assert {name: bytes_ / 2**20 for name, bytes_ in need.items()} == {
        "v1": 48, "v2": 18, "v3": 0.375, "v4": 6, "v5": 12, "v6": 36, "v7": 42, "v8": 42,
    }  # fmt: skip
    tiles = Tiles(tile_m=512, tile_k=1024, tile_n=1024)
    assert RUNGS["v5"].buffers(MatmulSpec.of(1024, 1024, 1024, "int8"), tiles)[-1] == VmemBuffer(
        name="acc", shape=(512, 1024), dtype="int32", copies=1
    )


def test_a_rung_knows_the_chip() -> None:
    spec = MatmulSpec.of(128, 128, 128, "int8")
    for rung in RUNGS.values():
        assert [found.rule for found in rung.violations(spec, rung.default_tiles(spec, 1), V4)] == ["dtype"]
        assert rung.violations(spec, rung.default_tiles(spec, 1), V5E) == []


def test_what_is_not_on_a_chip() -> None:
    spec = MatmulSpec.of(128, 128, 128, "bfloat16")
    for rung in RUNGS.values():
        found = rung.violations(spec, rung.default_tiles(spec, 1), V4)
        assert [each.rule for each in found] == ["not-on-this-chip"] * (rung.name in ("v6", "v7", "v8"))


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 40))
@settings(deadline=None, max_examples=examples(300))
def test_v2_runs_with_the_n_that_was_asked_for_or_not_at_all(m: int, n: int, splits: int) -> None:
    spec = MatmulSpec.of(m, 256, n, "float32")
    tiles = bands(spec, splits)
    if not RUNGS["v2"].violations(spec, tiles, V5E):
        assert tiles.grid(spec) == (splits, splits, 1)


@pytest.mark.parametrize("splits", [0, -4])
def test_v2_needs_a_band(splits: int) -> None:
    with pytest.raises(TilesError, match=f"N={splits}"):
        bands(MatmulSpec.of(128, 128, 128, "float32"), splits)


def test_v2_wants_rows_and_columns_alike() -> None:
    spec = MatmulSpec.of(256, 256, 256, "float32")
    for tiles in (Tiles(tile_m=64, tile_k=256, tile_n=128), Tiles.cube(128)):
        (found,) = RUNGS["v2"].violations(spec, tiles, V5E)
        assert found.rule == "rows-by-columns"
        assert found.fix == "for 256×256×256 use N=1 or 2"
