"""Plans of sizes up to 2³¹ − 1 take a bounded number of steps; those of ordinary sizes are what they were."""

from __future__ import annotations

import dataclasses

import pytest

import systolic
from systolic.chips import chip
from systolic.cost import estimated_config, pipeline, repetition
from systolic.ops.gated.spec import GatedSpec
from systolic.ops.grouped import cost as grouped
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles
from systolic.schedule.legality import legal_sides
from systolic.schedule.sizes import is_ragged_side, ragged_sides
from systolic.spec import MatmulSpec

LARGEST = 2**31 - 1
# Past the limit every loop is still sampled: a few hundred steps for each of four loops, and the ends of each.
SAMPLED_STEPS = 10_000


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps of each pipeline that was followed."""
    steps = list[int]()
    go = pipeline._Pipeline.go

    def counted(self: pipeline._Pipeline) -> None:
        go(self)
        steps.append(self.followed)

    monkeypatch.setattr(pipeline._Pipeline, "go", counted)
    return steps


@pytest.mark.parametrize(
    "spec",
    [
        MatmulSpec.of(LARGEST, 128, 128, "bfloat16"),
        MatmulSpec.of(128, LARGEST, 128, "float32"),
        GatedSpec.of(LARGEST, 256, 128, "bfloat16"),
        dataclasses.replace(MatmulSpec.of(512, 256, 300, "bfloat16"), batch=LARGEST, batch_lhs=LARGEST, batch_rhs=1),
    ],
    ids=["rows", "k", "gated", "batch"],
)
def test_pipelines_are_followed_for_a_bounded_number_of_steps(
    spec: MatmulSpec, followed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repetition, "MAX_FOLLOWED_STEPS", 512)  # with the default, plans take seconds
    assert systolic.plan(spec, "v6e").time_us > 0
    assert max(followed) <= 512 + SAMPLED_STEPS


# Rounds repeat in threes here; in the batch a block of rhs stays for four rows of tiles.
IN_THREES = (MatmulSpec.of(3072 * 2048 + 5, 128, 128, "bfloat16"), "v6e", Tiles(tile_m=3072, tile_k=128, tile_n=128))
BATCH = (
    dataclasses.replace(MatmulSpec.of(1024, 512, 512, "bfloat16"), batch=3000, batch_lhs=3000, batch_rhs=3000),
    "v5e",
    Tiles(tile_m=256, tile_k=512, tile_n=512),
)


@pytest.mark.parametrize(("spec", "name", "tiles"), [IN_THREES, BATCH], ids=["in threes", "batch"])
def test_what_is_sampled_is_near_what_is_followed(
    spec: MatmulSpec, name: str, tiles: Tiles, followed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = KernelConfig(tiles=tiles, subtile_m=tiles.tile_m, subtile_n=tiles.tile_n, pipeline="auto")
    exact = estimated_config(spec, config, chip(name)).modelled
    monkeypatch.setattr(repetition, "MAX_FOLLOWED_STEPS", 512)
    sampled = estimated_config(spec, config, chip(name)).modelled
    assert followed[1] < followed[0]
    for field in ("time_us", "compute_us", "copy_us"):
        assert getattr(sampled, field) == pytest.approx(getattr(exact, field), rel=1e-4), field


def test_the_whole_limit_holds_where_nothing_repeats(followed: list[int]) -> None:
    spec, name, tiles = IN_THREES
    huge = dataclasses.replace(spec, m=LARGEST)
    config = KernelConfig(tiles=tiles, subtile_m=tiles.tile_m, subtile_n=tiles.tile_n, pipeline="emit", num_stages=3)
    assert estimated_config(huge, config, chip(name)).modelled_us > 0
    assert followed[0] <= repetition.MAX_FOLLOWED_STEPS + SAMPLED_STEPS


def test_groups_are_sampled_beyond_a_number_of_rows_and_groups() -> None:
    sizes = {"k": 512, "n": 512, "dtype": "bfloat16", "dtype_out": "bfloat16"}
    for m, groups, rows_per_group in ((LARGEST, LARGEST, 1), (LARGEST, 1, LARGEST), (8192, LARGEST, 64), (7, 3, 2)):
        spec = GroupedSpec(m=m, groups=groups, rows_per_group=rows_per_group, **sizes)
        sampled = grouped._sampled_sizes(spec)
        assert len(sampled) <= grouped._MAX_GROUPS
        assert 0 < sum(sampled) <= grouped._MAX_ROWS
    # Fewer and larger groups have fewer ends; else the time is in proportion.
    for spec_type in (GroupedSpec, GroupedGradientSpec):
        rows = 4 * grouped._MAX_ROWS
        times = [
            systolic.plan(spec_type(m=m, groups=8, rows_per_group=m // 8, **sizes), "v6e").time_us
            for m in (rows, rows // 4)
        ]
        assert times[0] == pytest.approx(4 * times[1], rel=0.02)


def test_huge_sizes_end_in_a_time_or_a_named_error() -> None:
    sizes = {"m": LARGEST, "dtype_lhs": "bfloat16", "dtype_rhs": "int8", "dtype_out": "bfloat16"}
    assert systolic.plan(QuantizedSpec(k=4096, n=4096, block=4096, **sizes), "v6e").time_us > 0
    with pytest.raises(IllegalTilesError, match="vmem"):
        systolic.plan(
            GroupedSpec(m=8, k=LARGEST, n=128, groups=2, rows_per_group=4, dtype="bfloat16", dtype_out="bfloat16"),
            "v6e",
        )


def test_sides_from_square_roots_are_those_of_every_number() -> None:
    for size in (1, 7, 128, 129, 384, 1440, 2880, 4097, 5040, 65536 + 64):
        for multiple in (1, 8, 128, 256):
            every = [side for side in range(multiple, size, multiple) if size % side == 0] + [size]
            assert legal_sides(size, multiple) == every
        for least in (128, 256):
            every = []
            for count in range(2, size // least + 1) if size % 128 else ():
                tile = size - (count - 1) * (size // count // 128 * 128)
                if count * tile <= size * 1.125 and -(-size // tile) == count:
                    every.append(tile)
            assert ragged_sides(size, least) == every
        assert [tile for tile in range(1, size + 1) if is_ragged_side(size, tile)] == sorted(ragged_sides(size, 128))
