"""Layers of experts: their sizes of groups, what they count, and which cases there are."""

from __future__ import annotations

import itertools

import jax
import pytest

from systolic.bench import moe_programs
from systolic.bench.moe import MODELS, ROWS, MoeSpec, group_of, moe
from systolic.bench.moe_peers import peers
from systolic.chips import chip
from systolic.ops.grouped.cost import typical_sizes
from systolic.ops.grouped.spec import GroupedGradientSpec
from systolic.ops.op import op_of

CASES = list(moe("bfloat16"))


def test_all_rows_have_a_group() -> None:
    for case in CASES:
        assert len(case.spec.sizes) == case.spec.groups
        assert sum(case.spec.sizes) == case.spec.m
        assert min(case.spec.sizes) >= 0
        if case.spec.routing == "even":
            assert max(case.spec.sizes) - min(case.spec.sizes) <= 1
        if case.spec.routing == "one expert":
            assert max(case.spec.sizes) == case.spec.m


def test_the_planner_does_not_know_the_sizes() -> None:
    for case in (case for case in CASES if case.spec.routing == "skewed"):
        planned = case.spec.planned
        assert case.spec.sizes != typical_sizes(planned.groups, planned.m, planned.rows_per_group)


def test_every_model_comes_with_every_number_of_rows_and_every_routing() -> None:
    for kind in ("forward", "dlhs", "drhs", "gated"):
        of_kind = [case.spec for case in CASES if case.spec.kind == kind]
        skewed = {(spec.groups, spec.k, spec.n, spec.m) for spec in of_kind if spec.routing == "skewed"}
        assert skewed == {(*model[1:], m) for model, m in itertools.product(MODELS, ROWS)}
        for routing in ("even", "one expert"):
            assert len({(spec.k, spec.n) for spec in of_kind if spec.routing == routing}) == len(MODELS)
    assert {case.group for case in CASES if case.spec.kind == "forward"} == {
        "few rows",
        "hundreds of rows",
        "thousands of rows",
    }


def test_what_is_counted() -> None:
    spec = MoeSpec(kind="forward", m=64, k=32, n=128, groups=16, routing="one expert", dtype="bfloat16")
    assert spec.flops == 2 * 64 * 32 * 128
    assert spec.least_hbm_bytes == 2 * (64 * (32 + 128) + 32 * 128)
    assert group_of(spec) == "few rows"


@pytest.mark.parametrize("kind", ["forward", "dlhs", "drhs", "gated"])
def test_all_programs_make_the_same_of_the_same_arguments(kind: str) -> None:
    spec = next(case.spec for case in CASES if case.spec.kind == kind and case.spec.m == 1024)
    raced = moe_programs.raced(spec, chip("v6e"))
    programs = [raced.ours, raced.xla, *(peer.program for peer in peers(spec) if peer.program is not None)]
    out = jax.eval_shape(raced.ours, *raced.arguments)
    assert out.dtype == "bfloat16"
    assert {jax.eval_shape(program, *raced.arguments).shape for program in programs} == {out.shape}
    planned = spec.planned
    assert op_of(planned).name
    assert isinstance(planned, GroupedGradientSpec) == (kind == "drhs")
