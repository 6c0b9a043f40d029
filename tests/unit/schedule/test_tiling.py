"""The rules of tiles, each broken and kept."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from systolic.chips import V4, V5E, V7X
from systolic.schedule import (
    Tiles,
    TilesError,
    VmemBuffer,
    alignment_violations,
    dtype_violations,
    size_violations,
    sublane_multiple,
    vmem_violations,
)
from systolic.spec import MatmulSpec

DTYPES = st.sampled_from(["float32", "bfloat16", "int8"])


def sizes(most: int) -> st.SearchStrategy[tuple[int, int, int]]:
    return st.tuples(*[st.integers(1, most)] * 3)


def tiles_of(sides: tuple[int, int, int]) -> Tiles:
    return Tiles(tile_m=sides[0], tile_k=sides[1], tile_n=sides[2])


def rules(found: list) -> list[str]:
    return [violation.rule for violation in found]


@pytest.mark.parametrize("name", ["tile_m", "tile_k", "tile_n"])
@pytest.mark.parametrize("side", [0, -8])
def test_a_tile_has_elements(name: str, side: int) -> None:
    with pytest.raises(TilesError, match=f"{name}={side}"):
        Tiles(**({"tile_m": 8, "tile_k": 128, "tile_n": 128} | {name: side}))


def test_tiles() -> None:
    spec = MatmulSpec.of(10, 20, 30, "float32")
    assert str(Tiles.cube(4)) == "4/4/4"
    assert str(Tiles.whole(spec)) == "10/20/30"
    assert Tiles.cube(4).grid(spec) == (3, 8, 5)
    assert Tiles.cube(4).steps(spec) == 120
    assert Tiles.whole(spec).steps(spec) == 1


def test_size_rule_kept() -> None:
    spec = MatmulSpec.of(256, 384, 128, "float32")
    assert size_violations(spec, Tiles.cube(128)) == []
    assert size_violations(spec, Tiles.whole(spec)) == []


@pytest.mark.parametrize("letter", ["m", "k", "n"])
def test_size_rule_broken(letter: str) -> None:
    spec = MatmulSpec.of(*(200 if other == letter else 128 for other in "mkn"), dtype="float32")
    (found,) = size_violations(spec, Tiles.cube(128))
    assert found.rule == "tile-divides"
    assert str(found) == (
        f"tile-divides: {letter}=200 is not a multiple of tile_{letter}=128, the last 72 of {letter} would be lost; "
        f"use a divisor of 200 or pad {letter} to 256"
    )
    (found,) = size_violations(spec, Tiles(**({"tile_m": 1, "tile_k": 1, "tile_n": 1} | {f"tile_{letter}": 256})))
    assert found.rule == "tile-within-matrix"
    assert f"tile_{letter}=256 is above {letter}=200" in str(found)
    assert f"use tile_{letter}≤200" in str(found)


@given(sizes(40), sizes(48))
def test_size_rule_is_the_loss_of_a_grid_rounded_down(shape: tuple[int, int, int], sides: tuple[int, int, int]) -> None:
    m, k, n = shape
    done = np.zeros(shape, bool)
    tile_m, tile_k, tile_n = sides
    for i, j, kk in itertools.product(range(m // tile_m), range(n // tile_n), range(k // tile_k)):
        done[i * tile_m : (i + 1) * tile_m, kk * tile_k : (kk + 1) * tile_k, j * tile_n : (j + 1) * tile_n] = True
    found = size_violations(MatmulSpec.of(m, k, n, "float32"), tiles_of(sides))
    assert bool(found) == (not done.all())


@pytest.mark.parametrize(
    ("dtype", "tile_m", "legal"),
    [
        ("float32", 8, True),
        ("float32", 4, False),
        ("bfloat16", 8, True),
        ("bfloat16", 12, False),
        ("int8", 32, True),
        ("int8", 8, False),
        ("int8", 96, True),
        ("float32", 96, True),  # all of it
        ("float8_e4m3fn", 16, False),
    ],
)
def test_alignment_of_rows(dtype: str, tile_m: int, legal: bool) -> None:
    spec = MatmulSpec.of(96, 256, 256, dtype, "float32")
    found = alignment_violations(spec, Tiles(tile_m=tile_m, tile_k=128, tile_n=128))
    assert rules(found) == ([] if legal else ["tile-alignment"])
    assert legal or f"tile_m={tile_m} is not a multiple of {sublane_multiple(dtype)}" in str(found[0])


@pytest.mark.parametrize("letter", ["k", "n"])
@pytest.mark.parametrize(("tile", "legal"), [(128, True), (256, True), (300, True), (100, False), (64, False)])
def test_alignment_of_columns(letter: str, tile: int, legal: bool) -> None:
    spec = MatmulSpec.of(64, 300, 300, "float32")
    sides = {"tile_m": 64, "tile_k": 300, "tile_n": 300} | {f"tile_{letter}": tile}
    found = alignment_violations(spec, Tiles(**sides))
    assert rules(found) == ([] if legal else ["tile-alignment"])
    # 128 and 256 are aligned, but neither divides 300.
    assert legal or f"use tile_{letter}=300" in str(found[0])


@given(sizes(600), sizes(600), DTYPES)
def test_the_fix_of_a_misaligned_tile_is_aligned(
    shape: tuple[int, int, int], sides: tuple[int, int, int], dtype: str
) -> None:
    spec = MatmulSpec.of(*shape, dtype)
    for found in alignment_violations(spec, tiles_of(sides)):
        name, side = found.fix.removeprefix("use ").split("=")
        mended = Tiles(
            **{f"tile_{letter}": getattr(tiles_of(sides), f"tile_{letter}") for letter in "mkn"} | {name: int(side)}
        )
        assert len(alignment_violations(spec, mended)) < len(alignment_violations(spec, tiles_of(sides)))


def test_dtype_rule() -> None:
    int8 = MatmulSpec.of(128, 128, 128, "int8")
    assert rules(dtype_violations(int8, V4)) == ["dtype"]
    assert "v4 has no matrix multiplication of int8" in str(dtype_violations(int8, V4)[0])
    assert dtype_violations(int8, V5E) == []
    assert dtype_violations(int8, V7X) == []  # converted first, but taken
    assert dtype_violations(MatmulSpec.of(128, 128, 128, "bfloat16"), V4) == []


def test_vmem_rule() -> None:
    spec = MatmulSpec.of(2048, 2048, 2048, "float32")
    shape = (spec.m, spec.k)
    buffers = [VmemBuffer(name=name, shape=shape, dtype="float32", copies=1) for name in ("lhs", "rhs", "out")]
    (found,) = vmem_violations(buffers, V5E.scoped_vmem_bytes)
    assert found.rule == "vmem"
    assert "48.00 MiB" in found.value
    assert "16.00 MiB" in found.limit
    assert vmem_violations(buffers, 48 * 2**20) == []
