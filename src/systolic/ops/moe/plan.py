"""`systolic.plan_moe`: what computes each part of a layer of experts, why, and how long by arithmetic."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

from systolic.chips import Chip
from systolic.chips import chip as chip_named
from systolic.ops.moe.forms import DEVICE_FORMS, DeviceForm, combine_form, require_form, spread_form
from systolic.ops.moe.plan_devices import all_gather_parts, all_to_all_parts, products, sorted_form
from systolic.ops.moe.plan_parts import MoePart, moved
from systolic.ops.moe.schedule import CombineSpec, SpreadSpec
from systolic.ops.moe.spec import MoeLayers, MoeSpec
from systolic.support.summary import Summarised, Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class MoePlan(Summarised):
    """A layer of experts on one device of a chip, or on each device of several."""

    spec: MoeSpec
    chip: str
    form: str
    parts: tuple[MoePart, ...]  # in the order in which they run

    @property
    def time_us(self) -> float:
        """The time of all parts, without the router and the sort."""
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


def plan_moe(spec: MoeSpec, chip: str | Chip = "v5e", *, form: DeviceForm | None = None) -> MoePlan:
    """Return the plan of `systolic.moe` for a layer on a chip, without compiling anything.

    All experts are taken as equally likely. `systolic.moe` decides by the same arithmetic.

    Args:
      form: of a layer over several devices, as in `systolic.moe`; None: the one that takes less time. Devices are taken
        to be the most compact slice of this size.

    Raises:
      SpecError: over several devices, a chip without links; an unknown form, or a form on one device.
      UnsupportedDtypeError: the chip does not multiply this dtype.
    """
    chip = chip_named(chip)
    if form is not None:
        require_form(form, over="" if spec.devices == 1 else "devices")
    if spec.devices == 1:
        return _on_one_device(spec, chip)
    plans = plans_over_devices(spec, chip)
    return plans[form or faster_form(spec, chip)]


def faster_form(spec: MoeSpec, chip: Chip) -> DeviceForm:
    """Return the form over several devices that takes less time by arithmetic."""
    plans = plans_over_devices(spec, chip)
    return min(plans, key=lambda form: plans[form].time_us)


@functools.lru_cache(maxsize=256)
def plans_over_devices(spec: MoeSpec, chip: Chip) -> dict[DeviceForm, MoePlan]:
    """Return the plans of all forms; each also says how long the others take."""
    made = {"all-gather": all_gather_parts(spec, chip), "all-to-all": all_to_all_parts(spec, chip)}
    times = {name: sum(part.time_us for part in parts) for name, (_, parts) in made.items()}
    plans = dict[DeviceForm, MoePlan]()
    for name in DEVICE_FORMS:
        words, parts = made[name]
        others = ", ".join(f"{other} {time_us:,.1f} µs" for other, time_us in times.items() if other != name)
        form = f"{name}: {words}; {times[name]:,.1f} µs by arithmetic, {others}"
        plans[name] = MoePlan(spec=spec, chip=chip.name, form=form, parts=tuple(parts))
    return plans


def _on_one_device(spec: MoeSpec, chip: Chip) -> MoePlan:
    rows = spec.m * spec.top_k
    gate_up, down = products(spec, chip, rows)
    sums = CombineSpec.of(
        tokens=spec.m, top_k=spec.top_k, experts=spec.experts, d=spec.k, dtype=spec.dtype, dtype_out=spec.dtype
    )
    parts = (
        moved("rows of tokens", spread_form(SpreadSpec.of(spec.m, rows, spec.k, spec.dtype), chip, rows)),
        *gate_up,
        *down,
        moved("sums of tokens", combine_form(sums, chip, rows, rows)),
    )
    return MoePlan(spec=spec, chip=chip.name, form=sorted_form(spec), parts=parts)
