"""Tiles that break rules are refused with every rule, and with a fix that is legal."""

from __future__ import annotations

import dataclasses

import pytest

import systolic
from systolic.chips import UnknownChipError, UnsupportedDtypeError
from systolic.schedule import (
    IllegalTilesError,
    Tiles,
)
from systolic.spec import MatmulSpec

ILLEGAL: dict[str, tuple[MatmulSpec, Tiles, list[tuple[str, str]]]] = {
    "above every side": (
        MatmulSpec.of(256, 256, 256, "bfloat16"), Tiles.cube(512),
        [("tile-within-matrix", f"tile_{letter}=512 is above {letter}=256") for letter in "mkn"]),
    "not aligned": (
        MatmulSpec.of(1024, 1024, 1024, "float32"), Tiles(tile_m=100, tile_k=100, tile_n=100),
        [("tile-alignment", f"tile_{letter}=100 is not a multiple of {multiple}")
         for letter, multiple in (("m", 8), ("k", 128), ("n", 128))]),
    "rows of 8 bits": (
        MatmulSpec.of(1024, 1024, 1024, "int8"), Tiles(tile_m=8, tile_k=128, tile_n=128),
        [("tile-alignment", "tile_m=8 is not a multiple of 32")]),
    "lhs transposed": (
        dataclasses.replace(MatmulSpec.of(1024, 1024, 1024, "float32"), transpose_lhs=True),
        Tiles(tile_m=64, tile_k=64, tile_n=256), [("tile-alignment", "tile_m=64 is not a multiple of 128")]),
    "rhs transposed": (
        dataclasses.replace(MatmulSpec.of(1024, 1024, 1024, "float32"), transpose_rhs=True),
        Tiles(tile_m=64, tile_k=64, tile_n=256), [("tile-alignment", "tile_k=64 is not a multiple of 128")]),
    "no room": (
        MatmulSpec.of(8192, 8192, 8192, "float32"), Tiles.cube(8192), [("vmem", "MiB of VMEM (lhs ")]),
    "all at once": (
        MatmulSpec.of(16384, 15872, 256, "float32"), Tiles(tile_m=16001, tile_k=15999, tile_n=199),
        [("tile-alignment", "tile_m=16001"), ("tile-within-matrix", "tile_k=15999 is above k=15872"),
         ("tile-alignment", "tile_n=199"), ("vmem", "MiB of VMEM")]),
    # Computed as the product of the transposes; said in the caller's letters.
    "turned": (
        MatmulSpec.of(1536, 4096, 5, "bfloat16"), Tiles(tile_m=1000, tile_k=100, tile_n=6),
        [("tile-within-matrix", "tile_n=6 is above n=5"), ("tile-alignment", "tile_k=100 is not a multiple of 128"),
         ("tile-alignment", "tile_m=1000 is not a multiple of 128")]),
}  # fmt: skip


@pytest.mark.parametrize("case", ILLEGAL)
def test_illegal_tiles_are_refused_with_every_rule(case: str) -> None:
    spec, tiles, rules = ILLEGAL[case]
    with pytest.raises(IllegalTilesError) as caught:
        systolic.plan(spec, "v5e", tiles=tiles)
    assert isinstance(caught.value, ValueError)
    assert str(tiles) in str(caught.value)
    for (rule, value), violation in zip(rules, caught.value.violations, strict=True):
        assert violation.rule == rule
        assert value in violation.value
        assert violation.fix in str(caught.value)


def test_a_refusal_says_that_the_product_is_computed_transposed() -> None:
    spec = MatmulSpec.of(4096, 512, 100, "bfloat16")
    with pytest.raises(IllegalTilesError) as caught:
        systolic.plan(spec, "v5e", tiles=Tiles(tile_m=1000, tile_k=512, tile_n=100))
    said = "tiles 1000/512/100 of lhs · rhs, computed as rhsᵀ · lhsᵀ because XLA stores the output by columns: "
    assert str(caught.value).startswith(said)
    assert "tile_m=1000 is not a multiple of 128" in str(caught.value)
    # A whole configuration is of what the kernel computes, and so is what is said of it.
    whole = systolic.plan(spec, "v5e").config
    kernels = dataclasses.replace(whole, subtile_n=500, tiles=Tiles(tile_m=100, tile_k=512, tile_n=1000))
    with pytest.raises(
        IllegalTilesError, match=r"of rhsᵀ · lhsᵀ, which the kernel computes: .*tile_n=1000 is not a mult"
    ):
        systolic.plan(spec, "v5e", tiles=kernels)
    with pytest.raises(IllegalTilesError) as plain:
        systolic.plan(MatmulSpec.of(4096, 512, 4096, "bfloat16"), tiles=Tiles(tile_m=1001, tile_k=512, tile_n=128))
    assert "rhsᵀ" not in str(plain.value)


def test_the_fix_of_a_refusal_is_legal() -> None:
    with pytest.raises(IllegalTilesError) as caught:
        systolic.plan(MatmulSpec.of(300, 300, 300, "float32"), tiles=Tiles(tile_m=301, tile_k=100, tile_n=99))
    fixes = [violation.fix for violation in caught.value.violations]
    assert fixes == ["use tile_m≤300", "use tile_k=104", "use tile_n=128"] or fixes[0] == "use tile_m≤300"
    sides = [int("".join(letter for letter in fix.split("tile_")[1][1:] if letter.isdecimal())) for fix in fixes]
    tiles = Tiles(tile_m=sides[0], tile_k=sides[1], tile_n=sides[2])
    assert systolic.plan(MatmulSpec.of(300, 300, 300, "float32"), tiles=tiles).config.tiles == tiles


def test_errors() -> None:
    with pytest.raises(UnsupportedDtypeError, match=r"v4 has no matrix multiplication of int8; it takes float32, bf"):
        systolic.plan(MatmulSpec.of(128, 128, 128, "int8"), "v4")
    with pytest.raises(UnsupportedDtypeError, match=r"v7x has no .* of float8_e4m3b11fnuz"):
        systolic.plan(MatmulSpec.of(128, 128, 128, "float8_e4m3b11fnuz", "float32"), "v7x")
    with pytest.raises(UnknownChipError, match="v9"):
        systolic.plan(MatmulSpec.of(128, 128, 128, "int8"), "v9")
