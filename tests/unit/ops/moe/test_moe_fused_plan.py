"""The choice between the fused and the sorted form on one device, and the rules of the fused one."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import systolic
from systolic.analysis import kernel_calls
from systolic.chips import CHIPS
from systolic.ops.moe.blocks import block_rows, small_rows
from systolic.ops.moe.forms import CHIP_FORMS
from systolic.ops.moe.fused.rules import FusedSchedules
from systolic.ops.moe.plan_parts import experts_spec
from systolic.schedule import IllegalTilesError
from systolic.schedule.buffers import total_bytes
from systolic.schedule.vmem import buffer_bytes
from systolic.spec import SpecError

QWEN = systolic.MoeSpec(m=2048, k=2048, n=768, experts=128, top_k=8, dtype="bfloat16")
FORMATS: dict[str, dict[str, Any]] = {
    "bfloat16": {},
    "int8": {"dtype_rhs": "int8"},
    "int4, 128": {"dtype_rhs": "int4", "rhs_block": 128},
    "e4m3, 128 × 128": {"dtype_rhs": "float8_e4m3fn", "rhs_block": 128, "scale_columns": 128},
}


def changed(**changes: Any) -> systolic.MoeSpec:
    return dataclasses.replace(QWEN, **changes)


@pytest.mark.parametrize("chip", ["v5e", "v6e", "v7x"])
@pytest.mark.parametrize("changes", FORMATS.values(), ids=FORMATS)
def test_tokens_and_their_sums_stay_in_vmem_where_that_is_faster(chip: str, changes: dict[str, Any]) -> None:
    spec = changed(**changes)
    plan = systolic.plan_moe(spec, chip)
    plans = {form: systolic.plan_moe(spec, chip, form=form) for form in CHIP_FORMS}
    assert plan == plans["fused"]
    assert plan.time_us < plans["sorted"].time_us
    times = f"{plan.time_us:,.1f} µs by arithmetic, sorted {plans['sorted'].time_us:,.1f} µs"
    assert re.fullmatch(f"fused: tokens and their sums stay in VMEM.*; {times}", plan.form)
    assert [(part.name, part.by) for part in plan.parts] == [
        ("gate and up", "a kernel"),
        ("down and sums of tokens", "a kernel"),
    ]
    assert plan.time_us >= spec.least_hbm_bytes / CHIPS[chip].hbm_bytes_per_s * 1e6


def test_rows_are_sorted_where_that_is_faster() -> None:
    """The kernels of the fused form run on one core of v5p's two."""
    plan, fused = (systolic.plan_moe(changed(m=4096), "v5p", form=form) for form in (None, "fused"))
    assert plan.time_us < fused.time_us
    assert re.fullmatch(rf"sorted: 32,768 rows are copied .*, fused {fused.time_us:,.1f} µs", plan.form)


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "quantized rows": ({"dtype_rhs": "int8", "quantize_lhs": "int8"}, ["quantize_lhs"]),
    "few tokens": ({"m": 24}, ["size: 24 tokens"]),
    "odd sizes": ({"k": 2000, "n": 200}, ["size: d=2000", "size: f=200"]),
    "another dtype": ({"dtype": "float32"}, ["dtype: float32"]),
    "many choices": ({"m": 16384, "k": 256}, ["SMEM: 131,072 choices"]),
    "large tokens": ({"m": 8192, "k": 7168}, ["VMEM: 8,192 tokens × 7,168"]),
    "a large expert": ({"m": 4096, "n": 32768}, ["VMEM: sums of 4,096 tokens × 512, beside 32,768 rows of down"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_plan_says_why_the_kernels_of_the_fused_form_cannot_run(name: str) -> None:
    changes, reasons = REFUSED[name]
    plan = systolic.plan_moe(changed(**changes), "v6e")
    with pytest.raises(IllegalTilesError) as refused:
        systolic.plan_moe(changed(**changes), "v6e", form="fused")
    assert plan == systolic.plan_moe(changed(**changes), "v6e", form="sorted")
    assert re.match(r"sorted: .* µs by arithmetic; fused: ", plan.form)
    assert plan.form.endswith(str(refused.value))
    shown = [str(violation) for violation in refused.value.violations]
    assert len(shown) == len(reasons)
    assert all(text.startswith(reason) for text, reason in zip(shown, reasons, strict=True))


def test_forms_of_one_device_are_not_of_several() -> None:
    with pytest.raises(SpecError, match="on one device; over several, use one of all-gather"):
        systolic.plan_moe(changed(devices=8), "v6e", form="fused")


@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e", "v7x"])
@pytest.mark.parametrize("tokens", [16, 2048, 8192])
@pytest.mark.parametrize("changes", FORMATS.values(), ids=FORMATS)
def test_both_kernels_fit_in_vmem(chip: str, tokens: int, changes: dict[str, Any]) -> None:
    spec = experts_spec(changed(m=tokens, **changes), CHIPS[chip])
    kernels = FusedSchedules.of(spec, CHIPS[chip])
    for schedule, columns in ((kernels.products, spec.f), (kernels.sums, spec.d)):
        assert total_bytes(schedule.buffers) <= buffer_bytes(CHIPS[chip])
        assert schedule.tiles * schedule.columns == columns
        assert schedule.columns % schedule.block_columns == 0
    assert tokens % kernels.sums.piece == 0


def test_blocks_of_rows_are_those_of_a_typical_expert() -> None:
    def rows(tokens: int) -> tuple[int, int]:
        return block_rows(experts_spec(changed(m=tokens), CHIPS["v6e"]))

    assert [rows(tokens) for tokens in (64, 2048, 2**15)] == [(64, 64), (160, 64), (640, 64)]
    assert small_rows(rows(2048)) == 64


def shapes(spec: systolic.MoeSpec) -> list[jax.ShapeDtypeStruct]:
    sizes = (spec.m, spec.k), (spec.m, spec.experts), *((spec.experts, *matrix) for matrix in spec.matrices)
    return [jax.ShapeDtypeStruct(size, jnp.dtype(spec.dtype)) for size in sizes]


def program(spec: systolic.MoeSpec, **options: Any) -> str:
    layer = functools.partial(systolic.moe, top_k=spec.top_k, **{"chip": "v6e", **options})
    return str(jax.make_jaxpr(layer)(*shapes(spec)))


FEW = systolic.MoeSpec(m=64, k=256, n=128, experts=8, top_k=2, dtype="bfloat16")


@pytest.mark.parametrize(
    ("options", "is_fused"),
    [
        ({}, True),
        ({"form": "fused"}, True),
        ({"form": "sorted"}, False),
        ({"form": "fused", "implementation": "xla"}, False),
        ({"form": "fused", "chip": None}, False),  # no TPU is in sight
        ({"bias_down": np.zeros((8, 256), np.float32)}, False),
    ],
    ids=["as planned", "fused", "sorted", "by XLA", "for no chip", "bias"],
)
def test_the_layer_takes_the_form_of_its_plan(options: dict[str, Any], is_fused: bool) -> None:
    assert systolic.plan_moe(FEW, "v6e").form.startswith("fused")
    text = program(FEW, **options)
    assert [kernel in text for kernel in ("systolic_fused_products", "systolic_fused_sums")] == [is_fused] * 2
    assert not (is_fused and "systolic_grouped" in text)


def test_the_layer_sorts_rows_where_the_kernels_cannot_run() -> None:
    many = dataclasses.replace(FEW, m=65536)
    assert systolic.plan_moe(many, "v6e").form.startswith("sorted")
    assert "systolic_fused" not in program(many)


def test_the_layer_sorts_rows_where_arithmetic_says_that_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[tuple[systolic.MoeSpec, str]] = []

    def sorts(spec: systolic.MoeSpec, chip: systolic.Chip) -> str:
        planned.append((spec, chip.name))
        return "sorted"

    monkeypatch.setattr("systolic.ops.moe.layer.faster_form", sorts)
    assert "systolic_fused" not in program(FEW)
    assert planned == [(FEW, "v6e")]
    assert "systolic_fused" in program(FEW, form="fused")


def test_a_layer_says_why_the_kernels_that_it_requires_cannot_run() -> None:
    spec = dataclasses.replace(FEW, m=24)
    x, logits, *matrices = shapes(spec)
    codes = [jax.eval_shape(systolic.quantize, matrix) for matrix in matrices]

    def layer(*given: Any) -> jax.Array:
        bias = jnp.zeros((FEW.experts, FEW.k))
        options: dict[str, Any] = {"quantize_lhs": "int8", "bias_down": bias, "form": "fused", "chip": "v6e"}
        return systolic.moe(*given, top_k=2, **options)

    with pytest.raises(IllegalTilesError) as refused:
        jax.eval_shape(layer, x, logits, *codes)
    assert [violation.rule for violation in refused.value.violations] == ["bias", "quantize_lhs", "size"]
    with pytest.raises(IllegalTilesError, match="size: 24 tokens"):
        program(spec, form="fused")
    assert "systolic_fused" not in program(spec)


def test_tokens_are_cut_over_devices_that_have_all_experts() -> None:
    mesh = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))
    layer = functools.partial(systolic.moe, top_k=2, form="fused", chip="v6e")
    specs = P("data"), P("data"), P(), P(), P()
    cut = jax.shard_map(layer, mesh=mesh, in_specs=specs, out_specs=P("data"))
    (call,) = [call for call in kernel_calls(jax.make_jaxpr(cut)(*shapes(FEW))) if "fused_sums" in call.name]
    assert [operand.shape for operand in call.of("output")] == [(FEW.m // 4, FEW.k)]


def test_no_tokens_need_no_kernel() -> None:
    _, _, *matrices = (jnp.zeros(array.shape, array.dtype) for array in shapes(FEW))
    layer = functools.partial(systolic.moe, top_k=2, form="fused", chip="v6e")
    text = str(jax.make_jaxpr(layer)(jnp.zeros((0, FEW.k), jnp.bfloat16), jnp.zeros((0, FEW.experts)), *matrices))
    assert "systolic_" not in text
