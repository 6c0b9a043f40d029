"""`KernelConfig`: what cannot be is refused with the value and a fix, and its name comes from its pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from systolic.schedule import KernelConfig, Tiles, TilesError


def config(**changes: Any) -> KernelConfig:
    tiles = Tiles(tile_m=256, tile_k=512, tile_n=256)
    return KernelConfig(**({"tiles": tiles, "subtile_m": 128, "subtile_n": 256} | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"subtile_m": 96}, r"subtile_m=96 .* use a divisor of 256"),
        ({"subtile_n": 0}, r"subtile_n=0 .* use a divisor of 256"),
        ({"pipeline": "streamed"}, r"pipeline='streamed' is unknown; choose from auto, emit, manual"),
        ({"num_stages": 3}, r"num_stages=3: pipeline='auto' has 2; use 2"),
        ({"pipeline": "emit"}, r"num_stages=2: pipeline='emit' has 3; use 3"),
        ({"pipeline": "manual", "num_stages": 4}, r"num_stages=4: pipeline='manual' has 2 or 3; use 2 or 3"),
        ({"pipeline": "manual", "fill_chunks": 0}, r"fill_chunks=0 .* use a divisor of 512"),
        ({"pipeline": "manual", "fill_chunks": 3}, r"fill_chunks=3 .* use a divisor of 512"),
        ({"fill_chunks": 2}, r"fill_chunks=2: .* use fill_chunks=1, or pipeline=\"manual\""),
        ({"pipeline": "emit", "num_stages": 3, "fill_chunks": 2}, r"fill_chunks=2: pipeline='emit'"),
    ],
)
def test_what_no_pipeline_has_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TilesError, match=said):
        config(**changes)


def test_what_pipelines_have_is_taken_and_named_by_the_pipeline() -> None:
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"pipeline": "emit", "num_stages": 3},
        {"pipeline": "manual"},
        {"pipeline": "manual", "num_stages": 3, "fill_chunks": 4, "grid_order": "n"},
    )
    found = [config(**changes) for changes in kinds]
    assert [one.kernel for one in found] == ["auto pipeline", "emit_pipeline", "manual DMA", "manual DMA"]
    assert all(one.kernel in str(one) for one in found)
    assert len(set(map(str, found))) == len(found)
