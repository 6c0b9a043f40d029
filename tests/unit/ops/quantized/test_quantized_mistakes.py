"""Specs, tiles, arguments and operands that do not go with a quantized weight."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import IllegalTilesError, KernelConfig, Tiles
from systolic.spec import QuantizationError, SpecError


def spec(**changes: Any) -> QuantizedSpec:
    plain = QuantizedSpec(
        m=16, k=4096, n=14336, dtype_lhs="bfloat16", dtype_rhs="int4", dtype_out="bfloat16", block=4096
    )
    return dataclasses.replace(plain, **changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"block": 100}, QuantizationError),
        ({"dtype_rhs": "bfloat16"}, QuantizationError),  # beside rows that are not quantized either
        ({"dtype_rhs": "float16", "quantize_lhs": "int8"}, QuantizationError),
        ({"gated": True, "bias": True}, SpecError),
        ({"gated": True, "out_scale": True}, SpecError),
        ({"dtype_scale": "float16"}, QuantizationError),
        ({"dtype_lhs": "int8"}, SpecError),
        ({"m": 0}, SpecError),
        ({"dtype_lhs": "int8", "lhs_block": 128}, QuantizationError),
        ({"quantize_lhs": "float4_e2m1fn"}, QuantizationError),
        ({"dtype_lhs": "int8", "lhs_block": 4096, "quantize_lhs": "int8"}, QuantizationError),
    ],
)
def test_specs_that_cannot_be(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        spec(**changes)


@pytest.mark.parametrize(
    ("tiles", "subtile", "rule"),
    [
        ((16, 4096, 1000), 1000, "tile-divides"),
        ((16, 64, 1024), 512, "tile-of-scales"),
        ((16, 4096, 1024), 64, "tile-alignment"),
        ((16, 4096, 14336), 14336, "code-size"),
    ],
)
def test_tiles_that_break_rules(tiles: tuple[int, int, int], subtile: int, rule: str) -> None:
    tile_m, tile_k, tile_n = tiles
    config = KernelConfig(
        tiles=Tiles(tile_m=tile_m, tile_k=tile_k, tile_n=tile_n), subtile_m=16, subtile_n=subtile, pipeline="manual"
    )
    with pytest.raises(IllegalTilesError) as caught:
        systolic.plan(spec(block=128), "v6e", tiles=config)
    assert rule in [one.rule for one in caught.value.violations]
    with pytest.raises(IllegalTilesError):
        systolic.plan(spec(), "v6e", tiles=Tiles(tile_m=16, tile_k=64, tile_n=64))


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"transpose_rhs": True}, "transpose_rhs"),
        ({"out_scale": np.ones((2, 1), np.float32)}, "out_scale"),
        ({"rhs_fn": jnp.abs}, "rhs_fn"),
        ({"precision": "highest"}, "precision"),
        ({"bias": np.ones(3, np.float32)}, "bias"),
        ({"residual": np.ones((3, 3), np.float32)}, "residual"),
    ],
)
def test_arguments_that_do_not_go_with_it(keywords: dict[str, Any], said: str) -> None:
    q = systolic.quantize(np.ones((8, 4), np.float32))
    with pytest.raises(SpecError, match=said):
        systolic.matmul(np.ones((2, 8), np.float32), q, **keywords)


@pytest.mark.exhaustive
def test_operands_that_do_not_go_with_it() -> None:
    q = systolic.quantize(np.ones((8, 4), np.float32))
    lhs = np.ones((2, 8), np.float32)
    for left, right, said in (
        (q, lhs.T[:4].astype(np.int32), "int32"),
        (q, lhs[0, :4], "matrix"),
        (lhs[:, :4], q, "k=4"),
        (lhs.astype(np.int8), q, "int8"),
        (np.ones((3, 2, 8), np.float32), systolic.quantize(np.ones((2, 8, 4), np.float32)), "broadcast"),
        (lhs, systolic.quantize(np.ones(8, np.float32), axis=0), "matrix"),
    ):
        with pytest.raises(SpecError, match=said):
            systolic.matmul(left, right)
    for left, right, name, error, said in (
        (systolic.quantize(lhs, axis=-1), q, "int8", SpecError, "lhs is quantized"),
        (lhs, q, "fp4", QuantizationError, "quantize_lhs='fp4'"),
        (lhs, q, "float16", QuantizationError, "float16"),
    ):
        with pytest.raises(error, match=said):
            systolic.matmul(left, right, quantize_lhs=name)
