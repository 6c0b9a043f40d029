"""The plans of layers over devices: all get all tokens, or rows go to the devices of their experts."""

from __future__ import annotations

from systolic.chips import Chip
from systolic.ops.moe.blocks import ExpertsSpec
from systolic.ops.moe.forms import combine_form, exchange_form, scatter_form, spread_form
from systolic.ops.moe.plan_parts import MoePart, experts_spec, moved, of_codes, products, sorted_rows
from systolic.ops.moe.ring.products import RingProductsSchedule, ScatterProductsSchedule
from systolic.ops.moe.schedule import CombineSpec, SpreadSpec
from systolic.ops.moe.spec import MoeSpec
from systolic.ops.moe.wire import ring_us

# Of XLA's all-gather, the share of the time that links are busy.
# Source: simulated on v6e 2x4, 4,096 tokens of 4,096 bfloat16: 163 µs of 170.
_GATHER_SHARE = 0.96


def all_gather_parts(spec: MoeSpec, chip: Chip) -> tuple[str, list[MoePart]]:
    """Return the form in words, and the parts of a layer whose tokens are gathered by all devices."""
    rows = spec.m * spec.top_k
    used_rows = -(-rows // spec.devices)
    sums = CombineSpec.of(
        tokens=spec.m,
        top_k=spec.top_k,
        experts=spec.experts // spec.devices,
        d=spec.k,
        dtype=spec.dtype,
        dtype_out=spec.dtype,
    )
    gate_up, down = products(spec, chip, rows)
    form = sorted_rows(spec)
    parts = [
        moved("rows of tokens", spread_form(SpreadSpec.of(spec.m, rows, spec.k, spec.dtype), chip, used_rows)),
        *gate_up,
        *down,
    ]
    gather_us = ring_us(sums, spec.devices, chip) / _GATHER_SHARE
    why = "tokens of all devices, while their choices are sorted"
    ring_spec = experts_spec(spec, chip)
    ring = None if spec.quantize_lhs else RingProductsSchedule.of(ring_spec, chip)
    if spec.quantize_lhs:
        form += "; kernels on the ring do not quantize rows"
    if ring is not None:
        gather_us /= ring.slabs
        why = f"the first {ring.columns:,} columns of all devices' tokens, while choices are sorted and weights arrive"
        parts = [*gate_up[:-1], _on_ring(ring_spec, ring, chip)]
        form = f"tokens travel {ring.columns:,} columns at a time round the ring of a mesh that is set, in products"
    scattering = scatter_form(sums, spec.devices, chip, rows, used_rows)
    names = ("sums of tokens", "reduce-scatter") if len(scattering) > 1 else ("sums of tokens and reduce-scatter",)
    rest = [moved(name, form) for name, form in zip(names, scattering, strict=True)]
    if ring is not None:
        scatter = ScatterProductsSchedule.of(ring_spec, spec.top_k, ring.rows, chip)
        if scatter is None:
            parts += down
        else:
            parts += down[:-1]
            rest = [_with_sums(ring_spec, scatter, chip, ring_us(sums, spec.devices, chip))]
    parts = [MoePart(name="all-gather", by="XLA", why=why, time_us=gather_us), *parts, *rest]
    return form, parts


def _on_ring(spec: ExpertsSpec, schedule: RingProductsSchedule, chip: Chip) -> MoePart:
    why = (
        f"{of_codes(spec.matrices)}tokens travel meanwhile, {schedule.columns:,} columns at a time, and sums of "
        f"{schedule.panel:,} rows stay in VMEM: weights are read once for so many rows"
    )
    return MoePart(name="gate and up", by="a kernel", why=why, time_us=schedule.time_us(spec, chip))


def _with_sums(spec: ExpertsSpec, schedule: ScatterProductsSchedule, chip: Chip, links_us: float) -> MoePart:
    why = (
        f"{of_codes(spec.down)}sums of {schedule.columns:,} columns are sent round the ring while the next ones are "
        "multiplied"
    )
    name = "down, sums of tokens and reduce-scatter"
    return MoePart(name=name, by="a kernel", why=why, time_us=schedule.time_us(spec, chip, links_us))


def all_to_all_parts(spec: MoeSpec, chip: Chip) -> tuple[str, list[MoePart]]:
    """Return the form in words, and the parts of a layer whose rows go to the devices of their experts."""
    here, tokens = spec.experts // spec.devices, spec.m // spec.devices
    rows = tokens * spec.top_k
    sums = CombineSpec.of(
        tokens=tokens,
        top_k=spec.top_k,
        experts=spec.experts,
        d=spec.k,
        dtype=spec.dtype,
        dtype_out=spec.dtype,
    )
    room = spec.m * min(spec.top_k, here)
    regrouped = spread_form(SpreadSpec.of(room, room, spec.k, spec.dtype, permutes=True), chip, rows)
    gate_up, down = products(spec, chip, room)
    sent = exchange_form(spec, chip)
    form = f"{rows:,} rows of each device are sent to the devices of their experts, and as many results back"
    return form, [
        moved("rows of tokens", spread_form(SpreadSpec.of(tokens, rows, spec.k, spec.dtype), chip)),
        moved("all-to-all", sent),
        moved("rows of experts", regrouped),
        *gate_up,
        *down,
        moved("rows of devices", regrouped),
        moved("all-to-all of results", sent),
        moved("sums of tokens", combine_form(sums, chip, rows)),
    ]
