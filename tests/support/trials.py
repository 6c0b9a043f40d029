"""Trials of one product, for tests of the store and of what reads it."""

from __future__ import annotations

from dataclasses import replace

from systolic.schedule import KernelConfig, Tiles
from systolic.spec import MatmulSpec
from systolic.store import Subject, Trial

SUBJECT = Subject(
    op="matmul",
    spec=MatmulSpec.of(512, 1024, 2048, "bfloat16"),
    chip="v6e",
    kernel_version=1,
    jax="0.10.2",
    libtpu="0.0.42",
    constants="c0ffee",
)


def config(tile_m: int = 128, **changes: int) -> KernelConfig:
    tiles = Tiles(tile_m=tile_m, tile_k=256, tile_n=512)
    return replace(KernelConfig(tiles=tiles, subtile_m=tile_m, subtile_n=512), **changes)


def trial(number: int = 128, time_us: float | None = 10.0) -> Trial:
    status = "ok" if time_us is not None else "refused"
    return Trial(config=config(number), status=status, modelled_us=9.5, simulated_us=time_us, stalls={"copy": 0.3})
