"""Plans of layers of experts: the parts and their times, and XLA's gather where no kernel can read the rows."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import systolic
from systolic.chips import CHIPS
from systolic.ops.moe import permuting
from systolic.ops.moe.forms import CHIP_FORMS, DEVICE_FORMS, Form, combine_form, scatter_form, spread_form
from systolic.ops.moe.schedule import CombineSpec, SpreadSpec
from systolic.ops.moe.wire import all_to_all_us
from systolic.spec import SpecError

LAYER = systolic.MoeSpec(m=4096, k=4096, n=1536, experts=128, top_k=8, dtype="bfloat16")
EIGHT = dataclasses.replace(LAYER, devices=8)


@pytest.mark.parametrize("chip", ["v5e", "v6e", "v7x"])
def test_kernels_move_rows_where_arithmetic_says_that_they_are_faster(chip: str) -> None:
    plan = systolic.plan_moe(LAYER, chip, form="sorted")
    assert [part.name for part in plan.parts] == ["rows of tokens", "gate and up", "down", "sums of tokens"]
    assert {part.by for part in plan.parts} == {"a kernel"}
    compute_s = LAYER.flops / CHIPS[chip].peak_ops_per_s("bfloat16")
    least_s = max(compute_s, LAYER.least_hbm_bytes / CHIPS[chip].hbm_bytes_per_s)
    assert 1 < plan.time_us / (least_s * 1e6) < 2


def test_experts_in_formats_that_no_kernel_reads_are_dequantized() -> None:
    squares = dataclasses.replace(LAYER, dtype_rhs="float8_e4m3fn", rhs_block=128, scale_columns=128)
    plan, floats = (systolic.plan_moe(spec, "v6e") for spec in (squares, LAYER))
    assert [part.name for part in plan.parts] == [part.name for part in floats.parts]
    assert all("codes of float8_e4m3fn are read as they are stored" in part.why for part in plan.parts)
    assert "float8_e4m3fn, a scale for 128 × 128" in str(plan)
    fewest = [dataclasses.replace(spec, m=128) for spec in (squares, LAYER)]
    times = [systolic.plan_moe(spec, "v6e").time_us for spec in fewest]
    assert times[0] < 0.6 * times[1]
    fp4 = dataclasses.replace(LAYER, dtype_rhs="float4_e2m1fn", rhs_block=32)
    for form in CHIP_FORMS:
        dequantized, floats = (systolic.plan_moe(spec, "v6e", form=form) for spec in (fp4, LAYER))
        parts = {part.name: part for part in dequantized.parts}
        names = [name.removeprefix("dequantize ") for name in parts if name.startswith("dequantize ")]
        assert names == ["gate and up", "down"]
        assert [part.by for part in parts.values()].count("XLA") == 2
        assert "does not read float4_e2m1fn, a scale for 32 × 1" in parts["dequantize gate and up"].why
        assert dequantized.time_us > floats.time_us + parts["dequantize down"].time_us
    rows = dataclasses.replace(LAYER, dtype_rhs="int8", quantize_lhs="int8")
    for chip, why in (("v6e", "each row to int8"), ("v7x", "v7x does not multiply both as they are")):
        parts = {part.name: part for part in systolic.plan_moe(rows, chip).parts}
        assert why in parts["quantize rows of down"].why
    with pytest.raises(SpecError, match="divisors of both"):
        dataclasses.replace(squares, rhs_block=1000)


def test_devices_share_the_experts_and_send_the_tokens() -> None:
    one, eight = (systolic.plan_moe(spec, "v6e") for spec in (LAYER, EIGHT))
    names = [part.name for part in eight.parts]
    assert names == ["all-gather", "gate and up", "down, sums of tokens and reduce-scatter"]
    times = [{part.name: part.time_us for part in plan.parts} for plan in (one, eight)]
    assert times[1]["gate and up"] < times[0]["gate and up"] / 4
    assert eight.time_us < one.time_us / 3
    with pytest.raises(SpecError, match="divisor"):
        dataclasses.replace(LAYER, devices=3)


def test_kernels_on_a_ring_read_codes_as_they_are_stored() -> None:
    squares = {"dtype_rhs": "float8_e4m3fn", "rhs_block": 128, "scale_columns": 128}
    names = [part.name for part in systolic.plan_moe(EIGHT, "v6e").parts]
    few = dataclasses.replace(EIGHT, m=1024)
    for changes in (squares, {"dtype_rhs": "int8"}):
        _, *products = systolic.plan_moe(dataclasses.replace(EIGHT, **changes), "v6e").parts
        assert [part.name for part in products] == names[1:]
        assert all(f"codes of {changes['dtype_rhs']} are read as they are stored" in part.why for part in products)
        floats, codes = (systolic.plan_moe(spec, "v6e") for spec in (few, dataclasses.replace(few, **changes)))
        assert codes.parts[1].time_us < 0.6 * floats.parts[1].time_us  # HBM binds
    fp4 = systolic.plan_moe(dataclasses.replace(EIGHT, dtype_rhs="float4_e2m1fn", rhs_block=32), "v6e").parts
    assert [part.name for part in fp4 if part.by == "XLA"] == [
        "all-gather",
        "dequantize gate and up",
        "dequantize down",
    ]
    assert [part.name for part in fp4 if part.by == "a kernel"] == names[1:]
    rows = systolic.plan_moe(dataclasses.replace(EIGHT, dtype_rhs="int8", quantize_lhs="int8"), "v6e")
    assert "kernels on the ring do not quantize rows" in rows.form
    assert "rows of tokens" in [part.name for part in rows.parts]


@pytest.mark.parametrize(
    ("chip", "changes", "form"),
    [
        ("v6e", {}, "all-gather"),  # 8 experts of a token on 8 devices
        ("v6e", {"top_k": 2, "experts": 8, "n": 14336}, "all-to-all"),
        ("v5e", {"top_k": 2, "devices": 16, "m": 8192}, "all-to-all"),
        ("v7x", {"devices": 64, "m": 16384, "experts": 256, "k": 7168, "n": 2048}, "all-to-all"),
    ],
)
def test_rows_are_sent_to_few_of_many_devices(chip: str, changes: dict[str, int], form: str) -> None:
    spec = dataclasses.replace(EIGHT, **changes)
    plan = systolic.plan_moe(spec, chip)
    plans = {name: systolic.plan_moe(spec, chip, form=name) for name in DEVICE_FORMS}
    assert plan == plans[form] == min(plans.values(), key=lambda plan: plan.time_us)
    (other,) = plans.keys() - {form}
    assert re.match(
        rf"{form}: .*; {plan.time_us:,.1f} µs by arithmetic, {other} {plans[other].time_us:,.1f}", plan.form
    )
    names = [part.name for part in plans["all-to-all"].parts]
    assert [name for name in names if "all-to-all" in name] == ["all-to-all", "all-to-all of results"]
    with pytest.raises(SpecError, match="over several devices"):
        systolic.plan_moe(dataclasses.replace(spec, devices=1), chip, form="all-to-all")


@pytest.mark.parametrize(("chip", "devices", "share"), [("v6e", 8, 1.0), ("v5e", 64, 2.0), ("v5e", 256, 2.0)])
def test_half_of_the_rows_pass_the_middle_of_a_slice(chip: str, devices: int, share: float) -> None:
    """2x4: 4 devices send half over two links. 8x8: 32 over eight. 16x16: 128 over sixteen rings, both ways round."""
    links = CHIPS[chip].links
    assert links is not None
    sent_bytes = 2**20
    assert all_to_all_us(sent_bytes, devices, CHIPS[chip]) == pytest.approx(
        share * sent_bytes / links.bytes_per_s * 1e6
    )


@pytest.mark.exhaustive  # four programs are traced
@pytest.mark.parametrize("top_k", [1, 4])
def test_the_layer_takes_the_form_of_its_plan(top_k: int) -> None:
    devices, tokens, d, f, experts = 8, 2048, 512, 256, 8
    spec = systolic.MoeSpec(
        m=devices * tokens, k=d, n=f, experts=experts, top_k=top_k, dtype="bfloat16", devices=devices
    )
    mesh = AbstractMesh((devices,), ("expert",), axis_types=(AxisType.Auto,))
    shapes = (devices * tokens, d), (devices * tokens, experts), (experts, d, f), (experts, d, f), (experts, f, d)

    def text(**more: Any) -> str:
        local = functools.partial(systolic.moe, top_k=top_k, axis_name="expert", chip="v6e", **more)
        layer = jax.shard_map(local, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"))
        return str(jax.make_jaxpr(layer)(*(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)))

    is_sent = systolic.plan_moe(spec, "v6e").form.startswith("all-to-all")
    assert is_sent == (top_k == 1)
    name = "systolic_ragged_all_to_all"
    assert (name in text()) == is_sent
    assert name in text(form="all-to-all")
    assert name not in text(form="all-gather")
    assert name not in text(implementation="xla")


def test_sums_are_sent_by_another_kernel_where_their_pieces_are_no_whole_granules() -> None:
    few = systolic.plan_moe(dataclasses.replace(EIGHT, m=1024), "v6e")
    *_, adding, scatter = few.parts
    assert (adding.name, scatter.name, scatter.by) == ("sums of tokens", "reduce-scatter", "XLA")
    assert "1024 tokens of 8 devices" in scatter.why
    sums = CombineSpec.of(tokens=4096, top_k=8, experts=16, d=4096, dtype="bfloat16", dtype_out="bfloat16")
    (together,) = scatter_form(sums, 8, CHIPS["v6e"], 32768, 4096)
    assert together.by_kernel


def test_rows_of_another_dtype_or_more_tokens_than_vmem_holds_are_gathered_by_xla() -> None:
    chip, many = CHIPS["v6e"], 2**20
    form = spread_form(SpreadSpec.of(many, 2 * many, 256, "bfloat16"), chip)
    assert not form.by_kernel
    assert "not all tokens fit in VMEM" in form.reason
    form = spread_form(SpreadSpec.of(64, 128, 256, "float16"), chip)
    assert not form.by_kernel
    assert "not of float16" in form.reason
    sums = CombineSpec.of(tokens=64, top_k=2, experts=4, d=200, dtype="int8", dtype_out="int8")
    assert sums.d == 256
    assert not combine_form(sums, chip, 128).by_kernel


def test_the_layer_decides_as_its_plan_does() -> None:
    """A program with too many tokens for VMEM says why XLA gathers their rows; the sums are still a kernel's."""
    tokens, d = 2**20, 128
    x, logits, *weights = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16)
        for shape in ((tokens, d), (tokens, 2), (2, d, d), (2, d, d), (2, d, d))
    )
    layer = functools.partial(systolic.moe, top_k=1, chip="v6e")
    text = str(jax.make_jaxpr(layer)(x, logits, *weights))
    assert "not all tokens fit in VMEM" in text
    assert "systolic_combine" in text
    assert "systolic_spread" not in text


def test_on_a_device_only_the_rows_of_its_experts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """All devices' tokens are there, and their choices, but most choices have an expert elsewhere."""
    used: list[int | None] = []

    def recorded(spec: SpreadSpec, chip: systolic.Chip, used_rows: int | None) -> Form:
        used.append(used_rows)
        return spread_form(spec, chip, used_rows)

    monkeypatch.setattr(permuting, "spread_form", recorded)
    mesh = AbstractMesh((4,), ("expert",), axis_types=(AxisType.Auto,))
    layer = jax.shard_map(
        functools.partial(systolic.moe, top_k=2, axis_name="expert", chip="v6e"),
        mesh=mesh,
        in_specs=P("expert"),
        out_specs=P("expert"),
    )
    shapes = (64, 256), (64, 8), (8, 256, 128), (8, 256, 128), (8, 128, 256)
    assert jax.eval_shape(layer, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)).shape == (64, 256)
    assert used == [64 * 2 // 4]
