"""The suite of whole layers of experts."""

from __future__ import annotations

from collections import Counter

import jax
import pytest

from systolic.bench import moe_layer_programs
from systolic.bench.suites import suite
from systolic.chips import chip


def test_layers_count_weights_once_and_the_products_of_every_choice() -> None:
    cases = suite("moe-layer")
    assert Counter(case.group for case in cases) == {"layer of few tokens": 5, "layer of many tokens": 10}
    layer = next(case.spec for case in cases if case.name == "qwen3-30b layer 2048")
    assert layer.flops == 2048 * 8 * 3 * 2 * 2048 * 768
    assert layer.least_hbm_bytes == 2 * (3 * 128 * 2048 * 768 + 2 * 2048 * 2048) + 4 * 2048 * 128


@pytest.mark.exhaustive
def test_both_programs_return_a_row_for_each_token() -> None:
    for case in suite("moe-layer")[::3]:  # each model once
        raced = moe_layer_programs.raced(case.spec, chip("v6e"))
        assert raced.arguments[-1].sum() == case.spec.m * case.spec.top_k
        assert [jax.eval_shape(fn, *raced.arguments).shape for fn in (raced.ours, raced.xla)] == [
            (case.spec.m, case.spec.k)
        ] * 2
