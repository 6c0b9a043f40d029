"""`systolic.plan_moe`: what computes each part of a layer of experts, why, and how long by arithmetic."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from systolic.chips import Chip
from systolic.chips import chip as chip_named
from systolic.ops.grouped.spec import GroupedSpec, multiplies_codes, reads_codes, shared_columns
from systolic.ops.moe.forms import Form, combine_form, ring_us, scatter_form, spread_form
from systolic.ops.moe.ring_products import RingProductsSchedule, RingProductsSpec, ScatterProductsSchedule
from systolic.ops.moe.schedule import CombineSpec, SpreadSpec
from systolic.ops.moe.spec import MoeLayers, MoeSpec
from systolic.ops.planner import plan
from systolic.spec import dtype_bytes, format_bytes
from systolic.support.summary import Summarised, Summary

# Of XLA's all-gather, the share of the time that links are busy.
# Source: simulated on v6e 2x4, 4,096 tokens of 4,096 bfloat16: 163 µs of 170.
_GATHER_SHARE = 0.96


@dataclass(frozen=True, slots=True, kw_only=True)
class MoePart:
    """One part of a layer.

    Attributes:
      name: such as "down".
      by: "a kernel" or "XLA".
      why: the kernel and its tiles, or the reason for XLA.
      time_us: by arithmetic, or of the winner of `systolic tune`.
    """

    name: str
    by: str
    why: str
    time_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MoePlan(Summarised):
    """A layer of experts on one device of a chip, or on each device of several."""

    spec: MoeSpec
    chip: str
    form: str
    parts: tuple[MoePart, ...]  # in the order in which they run

    @property
    def time_us(self) -> float:
        """The time of all parts, without that of the router and the sort."""
        return sum(part.time_us for part in self.parts)

    def summary(self) -> Summary:
        """Describe what computes each part, why, and how long it takes."""
        sizes, dtype, _ = MoeLayers().words(self.spec)
        experts = f", experts of {self.spec.experts_named}" if self.spec.dtype_rhs else ""
        return Summary(
            heading=f"{sizes}, {dtype}{experts} on {self.chip}",
            facts={
                "form": self.form,
                "time": f"{self.time_us:,.1f} µs by arithmetic, without the router and the sort",
                **{part.name: f"{part.by}, {part.time_us:,.1f} µs: {part.why}" for part in self.parts},
            },
        )

    def record(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        parts = [asdict(part) for part in self.parts]
        return {"chip": self.chip, "op": "moe", "spec": asdict(self.spec), "form": self.form, "parts": parts}


def plan_moe(spec: MoeSpec, chip: str | Chip = "v5e") -> MoePlan:
    """Return the plan of `systolic.moe` for a layer on a chip, without compiling anything.

    All experts are taken as equally likely. `systolic.moe` decides by the same arithmetic.

    Raises:
      SpecError: over several devices, a chip without links.
      UnsupportedDtypeError: the chip does not multiply this dtype.
    """
    chip = chip_named(chip)
    here, rows = spec.experts // spec.devices, spec.m * spec.top_k
    used_rows = -(-rows // spec.devices)
    rows_per_expert = -(-rows // spec.experts)
    spread = spread_form(SpreadSpec.of(spec.m, rows, spec.k, spec.dtype), chip, used_rows)
    sums = CombineSpec.of(
        tokens=spec.m, top_k=spec.top_k, experts=here, d=spec.k, dtype=spec.dtype, dtype_out=spec.dtype
    )
    down = _product("down", spec, chip, here, rows_per_expert, k=spec.n, n=spec.k, gated=False)
    gate_up = _product("gate and up", spec, chip, here, rows_per_expert, k=spec.k, n=spec.n, gated=True)
    parts = [_moved("rows of tokens", spread), *gate_up, *down]
    form = (
        f"sorted: {used_rows:,} rows of tokens are copied in the order of experts, "
        f"{used_rows * spec.k * dtype_bytes(spec.dtype) / 1e6:,.1f} MB written and read again"
    )
    if spec.devices == 1:
        parts.append(_moved("sums of tokens", combine_form(sums, chip, rows, used_rows)))
    else:
        gather_us = ring_us(sums, spec.devices, chip) / _GATHER_SHARE
        why = "tokens of all devices, while their choices are sorted"
        ring_spec = RingProductsSpec(
            devices=spec.devices,
            tokens=spec.m,
            choices=rows,
            experts=here,
            d=spec.k,
            f=spec.n,
            products=2,
            dtype=spec.dtype,
        )
        ring = RingProductsSchedule.of(ring_spec, chip)
        if ring is not None:
            gather_us /= ring.slabs
            why = f"the first {ring.columns:,} columns of all devices' tokens, while their choices are sorted"
            parts = [_on_ring(ring_spec, ring, chip), *down]
            form = f"tokens travel {ring.columns:,} columns at a time round the ring of a mesh that is set, in products"
        scattering = scatter_form(sums, spec.devices, chip, rows, used_rows)
        names = ("sums of tokens", "reduce-scatter") if len(scattering) > 1 else ("sums of tokens and reduce-scatter",)
        rest = [_moved(name, form) for name, form in zip(names, scattering, strict=True)]
        if ring is not None:
            scatter = ScatterProductsSchedule.of(ring_spec, spec.top_k, ring.rows, chip)
            if scatter is not None:
                parts, rest = parts[:1], [_with_sums(ring_spec, scatter, chip, ring_us(sums, spec.devices, chip))]
        parts = [MoePart(name="all-gather", by="XLA", why=why, time_us=gather_us), *parts, *rest]
    return MoePlan(spec=spec, chip=chip.name, form=form, parts=tuple(parts))


def _moved(name: str, form: Form) -> MoePart:
    by = "a kernel" if form.by_kernel else "XLA"
    return MoePart(name=name, by=by, why=form.reason, time_us=form.time_us)


def _on_ring(spec: RingProductsSpec, schedule: RingProductsSchedule, chip: Chip) -> MoePart:
    why = (
        f"tokens travel meanwhile, {schedule.columns:,} columns at a time, and sums of {schedule.panel:,} rows stay in "
        "VMEM: weights are read once for so many rows"
    )
    return MoePart(name="gate and up", by="a kernel", why=why, time_us=schedule.time_us(spec, chip))


def _with_sums(spec: RingProductsSpec, schedule: ScatterProductsSchedule, chip: Chip, links_us: float) -> MoePart:
    why = f"sums of {schedule.columns:,} columns are sent round the ring while the next ones are multiplied"
    name = "down, sums of tokens and reduce-scatter"
    return MoePart(name=name, by="a kernel", why=why, time_us=schedule.time_us(spec, chip, links_us))


def _product(
    name: str, spec: MoeSpec, chip: Chip, groups: int, rows: int, *, k: int, n: int, gated: bool
) -> list[MoePart]:
    """Return a product, after the part that dequantizes its matrices if the kernel does not read their codes."""
    parts, dtype_rhs = list[MoePart](), spec.dtype_rhs
    if dtype_rhs and not reads_codes(dtype_rhs, k, spec.rhs_block or k, chip):
        numbers = groups * k * n * (2 if gated else 1)
        moved_bytes = format_bytes(dtype_rhs, numbers) + numbers * dtype_bytes(spec.dtype)
        why = f"the kernel does not read {spec.experts_named}: all experts are written in {spec.dtype}"
        time_us = moved_bytes / chip.machine.hbm_bytes_per_s * 1e6
        parts.append(MoePart(name=f"dequantize {name}", by="XLA", why=why, time_us=time_us))
        dtype_rhs = None
    row_format = spec.quantize_lhs if dtype_rhs else None
    if row_format:
        rows_here, is_multiplied = (
            spec.m * spec.top_k // spec.devices,
            multiplies_codes(row_format, dtype_rhs or "", k, chip),
        )
        moved_bytes = (
            rows_here * k * (dtype_bytes(spec.dtype) + dtype_bytes(row_format if is_multiplied else spec.dtype))
        )
        why = (
            f"each row to {row_format}"
            if is_multiplied
            else f"to {row_format}, and back to {spec.dtype}: {chip.name} does not multiply both as they are"
        )
        time_us = moved_bytes / chip.machine.hbm_bytes_per_s * 1e6
        parts.append(MoePart(name=f"quantize rows of {name}", by="XLA", why=why, time_us=time_us))
        row_format = row_format if is_multiplied else None
    has_blocks = dtype_rhs is not None and spec.rhs_block not in (None, k)
    product = GroupedSpec(
        m=spec.m * spec.top_k,
        k=k,
        n=n,
        groups=groups,
        rows_per_group=rows,
        dtype=row_format or spec.dtype,
        dtype_out=spec.dtype,
        activation="silu" if gated else "",
        gated=gated,
        existing_out=spec.devices > 1,
        dtype_rhs=dtype_rhs,
        lhs_scale=row_format is not None,
        rhs_block=spec.rhs_block if has_blocks else None,
        scale_columns=shared_columns(n, spec.scale_columns) if has_blocks else 1,
    )
    chosen = plan(product, chip)
    why = f"{chosen.config}, {chosen.provenance}"
    if dtype_rhs:
        why = f"codes of {dtype_rhs} are read as they are stored, {why}"
    return [*parts, MoePart(name=name, by="a kernel", why=why, time_us=chosen.time_us)]
