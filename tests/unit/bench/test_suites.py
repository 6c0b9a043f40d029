"""The suites hold what they promise, and a case's spec is the one that `systolic.matmul` plans."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections import Counter

import jax
import numpy as np
import pytest

from systolic.bench import layer_programs
from systolic.bench.suites import (
    DECODE,
    FUSED_SIZES,
    OPERAND_STACKS,
    PREFILL,
    STACKS,
    SUITES,
    WEIGHTS,
    UnknownSuiteError,
    suite,
)
from systolic.chips import chip
from systolic.ops.op import op_of
from systolic.ops.planner import Planner, use
from systolic.ops.quantized.peers import peers as quantized_peers
from systolic.spec import MatmulSpec


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8", "float8_e5m2"])
def test_no_case_comes_twice(name: str, dtype: str) -> None:
    cases = suite(name, dtype)
    if name in ("layers", "loss", "moe", "moe-layer", "sharded") and dtype not in ("bfloat16", "float32"):
        assert not cases, "what has no gradient is in no such layer"
        return
    if name in ("quantized", "sparse") and dtype != "bfloat16":
        assert not cases, "rows of lhs are bfloat16"
        return
    assert len({case.name for case in cases}) == len(cases)
    assert len({(case.spec, case.even) for case in cases}) == len(cases)
    assert {case.suite for case in cases} == {name}
    # What is multiplied of quantized rows is what they are quantized to.
    kept = {"quantized": "dtype_lhs", "moe-layer": "dtype"}.get(name, "dtype_multiplied")
    assert {getattr(case.spec, kept) for case in cases} == {dtype}


@pytest.mark.parametrize(("group", "rows"), [("prefill", PREFILL), ("decode", DECODE)])
def test_llm_covers_every_weight_and_every_number_of_rows(group: str, rows: tuple[int, ...]) -> None:
    cases = [case for case in suite("llm") if case.group == group]
    assert len(cases) <= 36
    assert {(case.spec.k, case.spec.n) for case in cases} == {(k, n) for _, k, n in WEIGHTS}
    times = Counter(case.spec.m for case in cases)
    assert set(times) == set(rows)
    assert max(times.values()) - min(times.values()) <= 2


def test_every_stack_comes_with_every_size() -> None:
    cases = suite("fused")
    assert len(cases) == len(FUSED_SIZES) * len(STACKS + OPERAND_STACKS)
    assert {case.spec for case in cases if case.spec.m == 16} == {
        stack(*FUSED_SIZES[-1], "bfloat16") for _, stack in STACKS + OPERAND_STACKS
    }
    # What an operand's function makes has to be a float.
    assert all(case.spec.lhs_prologue is case.spec.rhs_prologue is None for case in suite("fused", "int8"))


def test_edges_are_compared_with_sizes_that_tiles_divide() -> None:
    for case in suite("edges"):
        for size, larger in ((getattr(case.spec, name), getattr(case.even, name)) for name in "mkn"):
            assert size <= larger < size + 512
            assert larger % 512 == 0 or (larger < 512 and larger & (larger - 1) == 0)
    ragged = {(case.spec.m % 128 > 0, case.spec.k % 128 > 0, case.spec.n % 128 > 0) for case in suite("edges")}
    assert {(True, False, False), (False, True, False), (False, False, True), (True, True, True)} <= ragged


@pytest.mark.exhaustive
def test_layers() -> None:
    cases = suite("layers")
    assert Counter(case.group for case in cases) == {"few tokens": 12, "many tokens": 8, "gated": 2}
    forward, both = (case.spec for case in cases[:2])
    assert (forward.backward, both.backward, both.flops) == (False, True, 3 * forward.flops)
    weights, x = 2 * 3 * 4096 * 14336, 16 * 4096
    assert forward.flops == 2 * 16 * weights
    assert (forward.least_hbm_bytes, both.least_hbm_bytes) == (2 * (weights + 2 * x), 2 * (3 * weights + 4 * x))
    raced = layer_programs.raced(both, chip("v6e"))
    outs = [jax.eval_shape(fn, *raced.arguments) for fn in (raced.ours, raced.xla)]
    assert outs[0] == outs[1]
    assert [one.shape for one in jax.tree.leaves(outs[0])] == [(16, 4096), (16, 4096), *both.weights]


def test_layers_of_experts() -> None:
    few = next(case.spec for case in suite("layers") if case.spec.experts)
    assert (few.m, len(few.sizes), sum(few.sizes)) == (16 * 8, 128, 16 * 8)
    used = sum(size > 0 for size in few.sizes)
    assert used < 128
    assert few.flops == 2 * 128 * 6 * 2048 * 768
    assert few.least_hbm_bytes == 2 * (used * 6 * 2048 * 768 + 2 * 128 * 2048)
    every = dataclasses.replace(few, backward=True)
    assert every.least_hbm_bytes == 2 * ((2 * used + 128) * 6 * 2048 * 768 + 4 * 128 * 2048)


def test_quantized_has_every_format_with_every_number_of_rows() -> None:
    cases = [case for case in suite("quantized") if not case.spec.gated]
    specs = [case.spec for case in cases]
    combinations = {(one.row_format, one.dtype_rhs, one.block < one.k, one.m, one.k) for one in specs}
    assert len(combinations) == len(cases) == (5 + 4) * 7 * 3
    for spec in (specs[0], next(one for one in specs if one.quantize_lhs == "float8_e4m3fn")):
        raced = op_of(spec).raced(spec, chip("v6e"))
        outs = [jax.eval_shape(fn, *raced.arguments) for fn in (raced.ours, raced.xla, *raced.xla_forms.values())]
        assert set(outs) == {jax.ShapeDtypeStruct((1, 14336), "bfloat16")}
        assert "dequantized" not in raced.xla_forms  # for few rows the slowest of all
        assert "dequantized" in op_of(spec).raced(dataclasses.replace(spec, m=512), chip("v6e")).xla_forms


def test_quantized_has_gated_products_beside_plain_ones() -> None:
    gated = [case for case in suite("quantized") if case.spec.gated]
    assert len(gated) == 4 * 7
    assert all(case.name.startswith("gated-") for case in gated)
    raced = op_of(gated[0].spec).raced(gated[0].spec, chip("v5e"))
    outs = [jax.eval_shape(fn, *raced.arguments) for fn in (raced.ours, raced.xla, *raced.xla_forms.values())]
    assert set(outs) == {jax.ShapeDtypeStruct((1, 14336), "bfloat16")}


def test_tpu_inference_races_what_its_kernel_takes_or_says_why_not() -> None:
    by_name = {case.name: case.spec for case in suite("quantized")}
    assert not list(quantized_peers(by_name["int4/128 llama3-8b gate 16"], chip("v6e")))
    assert not list(quantized_peers(by_name["gated-w8a8 llama3-8b mlp 16"], chip("v6e")))
    (peer,) = quantized_peers(by_name["w8a8 llama3-8b gate 16"], chip("v6e"))
    assert (peer.program is None) == bool(peer.reason)
    if importlib.util.find_spec("tpu_inference") is None:
        assert "not installed" in peer.reason


def test_an_unknown_suite_is_named() -> None:
    with pytest.raises(
        UnknownSuiteError,
        match="'sqare' is unknown; did you mean square\\? choose from square, llm, fused, edges, layers, moe",
    ):
        suite("sqare")


@pytest.mark.parametrize(
    ("dtype", "plain", "fused"),
    [
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float32", "float32", "float32"),
        ("int8", "int32", "bfloat16"),
        ("float8_e4m3fn", "bfloat16", "bfloat16"),
    ],
)
def test_what_comes_out(dtype: str, plain: str, fused: str) -> None:
    assert {case.spec.dtype_out for case in suite("square", dtype)} == {plain}
    assert next(case.spec.dtype_out for case in suite("fused", dtype) if case.spec.epilogue.bias) == fused


class PlannedError(Exception):
    def __init__(self, spec: MatmulSpec) -> None:
        super().__init__()
        self.spec = spec


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "dtype"), [("fused", "bfloat16"), ("fused", "float32"), ("edges", "int8")])
def test_the_spec_of_a_case_is_what_matmul_plans(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def caught(self: Planner, spec: MatmulSpec, *_: object) -> None:
        raise PlannedError(spec)

    monkeypatch.setattr(Planner, "_planned", caught)
    for case in suite(name, dtype):
        raced = op_of(case.spec).raced(case.spec, chip("v5e"))
        with use(store=None), pytest.raises(PlannedError) as planned:
            jax.eval_shape(raced.ours, *raced.arguments)
        assert planned.value.spec == raced.spec, case.name


def test_sparse_has_every_pattern_with_as_many_blocks_as_planned() -> None:
    cases = suite("sparse")
    assert {(case.spec.pattern, case.spec.planned.kind) for case in cases} == {
        *((pattern, "dsd") for pattern in ("random", "banded", "power law")),
        ("random", "dds"),
        *((pattern, "sdd") for pattern in ("random", "banded", "causal")),
    }
    for case in cases:
        its = case.spec.planned
        rows, columns = case.spec.places
        is_block = rows < its.grid_rows
        assert is_block.sum() == its.blocks
        assert len(set(zip(rows[is_block], columns[is_block], strict=True))) == its.blocks
        assert (np.diff(rows * its.grid_columns + columns)[: its.blocks - 1] > 0).all()
        if case.spec.pattern == "causal":
            assert (rows >= columns).all()


def test_least_bytes_of_both_gradients_of_a_sparse_product() -> None:
    """Blocks and their gradient; the dense operand, its gradient, and the cotangent."""
    spec = next(case.spec for case in suite("sparse") if case.spec.backward and case.spec.m == case.spec.k)
    its = spec.planned
    blocks, dense = its.blocks * its.block_rows * its.block_columns, its.m * its.n
    assert spec.least_hbm_bytes == 2 * (2 * blocks + 3 * dense)


@pytest.mark.parametrize(("group", "products"), [("forward", 1), ("with gradients", 4), ("keeping logits", 3)])
def test_the_limit_of_a_loss_counts_both_kernels(group: str, products: int) -> None:
    case = next(case for case in suite("loss", "bfloat16") if case.group == group)
    assert sum(spec.products for spec in case.contest.counted(case.spec)) == products
