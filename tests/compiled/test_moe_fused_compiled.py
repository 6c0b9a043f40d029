"""The TPU compiler takes the two kernels of a layer whose tokens and sums of tokens are in VMEM."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import systolic

TOKENS, D, F, EXPERTS, TOP_K = 256, 512, 384, 16, 4
MAX_BUNDLES = 16_000  # of one kernel
FORMATS: dict[str, dict[str, Any]] = {
    "int8": {"dtype": "int8"},
    "int4, 128": {"dtype": "int4", "block": 128},
    "e4m3, 128 × 128": {"dtype": "e4m3", "axis": (-2, -1), "block": (128, 128)},
}


def simulated(chip: str, form: str, tokens: int, experts: int, *, routed: bool = False) -> systolic.SimulatedRun:
    """Simulate a layer with a router's logits, or with `routed` ids, by which a token may have an expert twice."""
    shapes = (tokens, D), (experts, D, F), (experts, D, F), (experts, F, D)
    x, *weights = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    if form != "bfloat16":
        weights = [jax.eval_shape(functools.partial(systolic.quantize, **FORMATS[form]), array) for array in weights]
    top_k = min(TOP_K, experts)
    ids, shares = (jax.ShapeDtypeStruct((tokens, top_k), dtype) for dtype in (jnp.int32, jnp.float32))
    logits = jax.ShapeDtypeStruct((tokens, experts), jnp.float32)
    layer = functools.partial(systolic.moe, top_k=top_k, form="fused")
    run = systolic.simulate(layer, x, (ids, shares) if routed else logits, *weights, chip=chip)
    dtypes = "bfloat16" if form == "bfloat16" else f"bfloat16_{weights[0].dtype.name}"
    names = [op.name for op in run.cores[0].ops if op.is_pallas and "fused" in op.name]
    products, sums = (f"systolic_fused_{kernel}_{dtypes}_{experts}_" for kernel in ("products", "sums"))
    assert [name.startswith(start) for name, start in zip(names, (products, sums), strict=True)] == [True, True], names
    return run


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("chip", "form"),
    [("v5e", "bfloat16"), ("v5p", "bfloat16"), ("v7x", "bfloat16"), ("v6e", "bfloat16")]
    + [("v6e", form) for form in FORMATS]
    + [pytest.param(chip, form, marks=pytest.mark.slow) for chip in ("v5e", "v7x") for form in FORMATS],
)
@pytest.mark.parametrize("routed", [False, True], ids=["logits", "ids"])
def test_two_kernels_compute_a_layer(chip: str, form: str, routed: bool) -> None:
    assert simulated(chip, form, TOKENS, EXPERTS, routed=routed).bundles < 2 * MAX_BUNDLES


@pytest.mark.exhaustive
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_the_code_of_the_largest_blocks_is_short(chip: str) -> None:
    """Two experts of 2,048 tokens: blocks have 640 rows."""
    assert simulated(chip, "bfloat16", 2048, 2).bundles < 2 * MAX_BUNDLES
