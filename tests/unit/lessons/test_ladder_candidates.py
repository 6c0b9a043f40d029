"""Facts about the rungs' tiles without compiling: buffers, traffic and candidates."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

from systolic.chips import CHIPS, V4, V5E
from systolic.lessons.ladder import RUNGS
from systolic.lessons.ladder.candidates import candidates, hbm_bytes, modelled_us
from systolic.schedule import Tiles, VmemBuffer, total_bytes
from systolic.spec import MatmulSpec, dtype_bytes

DTYPES = st.sampled_from(["float32", "bfloat16", "int8"])


def sizes(most: int) -> st.SearchStrategy[tuple[int, int, int]]:
    return st.tuples(*[st.integers(1, most)] * 3)


def tiles_of(sides: tuple[int, int, int]) -> Tiles:
    return Tiles(tile_m=sides[0], tile_k=sides[1], tile_n=sides[2])


def test_buffers() -> None:
    spec = MatmulSpec.of(1024, 1024, 1024, "int8", "int8")
    tiles = Tiles(tile_m=64, tile_k=128, tile_n=256)
    assert RUNGS["v5"].buffers(spec, tiles) == (
        VmemBuffer(name="lhs", shape=(64, 128), dtype="int8", copies=2),
        VmemBuffer(name="rhs", shape=(128, 256), dtype="int8", copies=2),
        VmemBuffer(name="out", shape=(64, 256), dtype="int8", copies=2),
        VmemBuffer(name="acc", shape=(64, 256), dtype="int32", copies=1),
    )
    once = 64 * 128 + 128 * 256 + 64 * 256
    assert total_bytes(RUNGS["v1"].buffers(spec, tiles)) == once
    assert total_bytes(RUNGS["v4"].buffers(spec, tiles)) == 2 * once
    assert [buffer.copies for buffer in RUNGS["v8"].buffers(spec, tiles)] == [3, 3, 2, 1]


def walked_bytes(spec: MatmulSpec, tiles: Tiles) -> int:
    """The grid step by step: a block is copied when its index is not that of the step before."""
    grid_m, grid_n, grid_k = tiles.grid(spec)

    def length(size: int, tile: int, index: int) -> int:
        return min(tile, size - tile * index)

    total, before = 0, (None, None, None)
    for i, j, kk in itertools.product(range(grid_m), range(grid_n), range(grid_k)):
        rows = length(spec.m, tiles.tile_m, i)
        columns = length(spec.n, tiles.tile_n, j)
        terms = length(spec.k, tiles.tile_k, kk)
        now = ((i, kk), (kk, j), (i, j))
        elements = (rows * terms, terms * columns, rows * columns)
        for index, last, count, dtype in zip(
            now, before, elements, (spec.dtype_lhs, spec.dtype_rhs, spec.dtype_out), strict=True
        ):
            total += count * dtype_bytes(dtype) * (index != last)
        before = now
    return total


@given(sizes(12), sizes(14), DTYPES)
@settings(max_examples=examples(300))
def test_traffic_is_what_a_walk_over_the_grid_copies(
    shape: tuple[int, int, int], sides: tuple[int, int, int], dtype: str
) -> None:
    spec, tiles = MatmulSpec.of(*shape, dtype), tiles_of(sides)
    assert hbm_bytes(spec, tiles) == walked_bytes(spec, tiles)


@given(sizes(12), sizes(14))
def test_traffic_is_never_below_the_least(shape: tuple[int, int, int], sides: tuple[int, int, int]) -> None:
    spec = MatmulSpec.of(*shape, "float32")
    assert hbm_bytes(spec, tiles_of(sides)) >= spec.least_hbm_bytes
    assert hbm_bytes(spec, Tiles.whole(spec)) == spec.least_hbm_bytes


@given(
    st.tuples(*[st.one_of(st.integers(1, 300), st.sampled_from([512, 768, 1024, 2048, 4096, 8192]))] * 3),
    DTYPES,
    st.sampled_from(list(CHIPS.values())),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(60))
def test_candidates_are_legal_fit_and_cover(shape: tuple[int, int, int], dtype: str, chip, accumulator: bool) -> None:
    spec = MatmulSpec.of(*shape, dtype)
    rung = RUNGS["v5" if accumulator else "v4"]
    found = candidates(rung, spec, chip)
    if dtype not in chip.dtypes:
        assert found == []
        return
    assert found or max(shape) > 300
    assert len(set(found)) == len(found)
    for tiles in found:
        assert rung.violations(spec, tiles, chip) == []
        assert total_bytes(rung.buffers(spec, tiles)) <= chip.scoped_vmem_bytes
        grid_m, grid_n, grid_k = tiles.grid(spec)
        assert (grid_m * tiles.tile_m, grid_k * tiles.tile_k, grid_n * tiles.tile_n) == shape
    times = [modelled_us(spec, tiles, chip) for tiles in found]
    assert times == sorted(times)


def test_candidates_of_the_ladder() -> None:
    spec = MatmulSpec.of(4096, 4096, 4096, "bfloat16")
    found = candidates(RUNGS["v5"], spec, V5E)
    assert Tiles.cube(128) in found
    assert Tiles(tile_m=512, tile_k=1024, tile_n=1024) in found
    assert found.index(Tiles.cube(128)) > found.index(Tiles.cube(512))
    assert Tiles.cube(2048) not in found


def test_modelled_time_has_a_floor() -> None:
    spec = MatmulSpec.of(4096, 4096, 4096, "bfloat16")
    for tiles in candidates(RUNGS["v4"], spec, V5E):
        assert modelled_us(spec, tiles, V5E) > spec.flops / V5E.peak_ops_per_s("bfloat16") * 1e6


def test_every_violation_is_told() -> None:
    spec = MatmulSpec.of(200, 300, 100, "int8")
    found = RUNGS["v4"].violations(spec, Tiles(tile_m=60, tile_k=70, tile_n=300), V4)
    assert [violation.rule for violation in found] == [
        "dtype",
        *("tile-divides", "tile-divides", "tile-within-matrix"),
        *("tile-alignment", "tile-alignment", "tile-alignment"),
    ]
