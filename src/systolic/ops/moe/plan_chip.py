"""The plans of layers on one device: tokens and their sums stay in VMEM, or rows are copied in the order of experts."""

from __future__ import annotations

from systolic.chips import Chip
from systolic.ops.moe.forms import combine_form, spread_form
from systolic.ops.moe.fused.rules import FusedSchedules
from systolic.ops.moe.plan_parts import (
    MoePart,
    dequantized,
    experts_spec,
    moved,
    of_codes,
    products,
    sorted_rows,
)
from systolic.ops.moe.schedule import CombineSpec, SpreadSpec
from systolic.ops.moe.spec import MoeSpec


def fused_parts(spec: MoeSpec, chip: Chip) -> tuple[str, list[MoePart]]:
    """Return the form in words, and the parts of a layer whose tokens and sums of tokens stay in VMEM.

    Raises:
      IllegalTilesError: the kernels cannot run; the message has each reason.
    """
    experts = experts_spec(spec, chip)
    schedules = FusedSchedules.of(experts, chip, quantizes_rows=spec.quantize_lhs is not None)
    gate_up, sums = schedules.products, schedules.sums
    rows = "the rows of all experts stay too" if sums.keeps_rows else "rows are read again for each of them"
    parts = [
        *dequantized("gate and up", spec, chip, spec.experts, k=spec.k, n=spec.n, gated=True),
        MoePart(
            name="gate and up",
            by="a kernel",
            why=f"{of_codes(experts.matrices)}all tokens in VMEM, {gate_up.columns:,} columns of an expert at a time",
            time_us=gate_up.time_us(experts, chip),
        ),
        *dequantized("down", spec, chip, spec.experts, k=spec.n, n=spec.k, gated=False),
        MoePart(
            name="down and sums of tokens",
            by="a kernel",
            why=f"{of_codes(experts.down)}sums of all tokens in VMEM, {sums.columns:,} columns at a time, and {rows}",
            time_us=sums.time_us(experts, chip),
        ),
    ]
    return "tokens and their sums stay in VMEM, and no row is copied in the order of experts", parts


def sorted_parts(spec: MoeSpec, chip: Chip) -> tuple[str, list[MoePart]]:
    """Return the form in words, and the parts of a layer whose rows are copied in the order of experts."""
    rows = spec.m * spec.top_k
    gate_up, down = products(spec, chip, rows)
    sums = CombineSpec.of(
        tokens=spec.m, top_k=spec.top_k, experts=spec.experts, d=spec.k, dtype=spec.dtype, dtype_out=spec.dtype
    )
    return sorted_rows(spec), [
        moved("rows of tokens", spread_form(SpreadSpec.of(spec.m, rows, spec.k, spec.dtype), chip, rows)),
        *gate_up,
        *down,
        moved("sums of tokens", combine_form(sums, chip, rows, rows)),
    ]
