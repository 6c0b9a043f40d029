"""The estimate of a step beside the simulated steps in the profiles of tiles, of the same model of the chip."""

import math
import statistics

import pytest

from systolic.chips import chip
from systolic.cost.estimate import estimated_cost
from systolic.cost.profile import Kind, Profile, shipped_profiles
from systolic.spec import MatmulSpec

NARROW = {"v5e": "int8", "v6e": "int8", "v7x": "float8_e4m3fn"}
# The root mean square of the logarithm of estimated over simulated cycles that a number of rows may have.
MAX_RMS = {256: 0.1, 512: 0.04, 1024: 0.03, 2048: 0.03}


def error(profile: Profile, dtype: str, name: str) -> float:
    """Return the logarithm of the estimated over the simulated cycles of a step that ends a tile."""
    tile = profile.tile
    sides = tile.tiles
    spec = MatmulSpec.of(sides.tile_m, sides.tile_k * (1 if tile.whole_k else 3), sides.tile_n * 2, dtype)
    return math.log(estimated_cost(spec, tile.config, chip(name)).end / profile.cost.end)


@pytest.mark.parametrize("is_narrow", [False, True], ids=["bfloat16", "narrow"])
@pytest.mark.parametrize("name", ["v5e", "v6e", "v7x"])
def test_the_estimate_agrees_with_profiles(name: str, is_narrow: bool) -> None:
    dtype = NARROW[name] if is_narrow else "bfloat16"
    kind = Kind.of(MatmulSpec.of(1, 1, 1, dtype), chip(name))
    profiles = shipped_profiles(kind) if kind is not None else None
    assert profiles is not None
    for rows, max_rms in MAX_RMS.items():
        errors = [error(profile, dtype, name) for profile in profiles.profiles if profile.tile.subtile_m == rows]
        if errors:
            rms = math.sqrt(statistics.fmean(value**2 for value in errors))
            assert rms < max_rms, f"{rows} rows: {rms:.3f}"
