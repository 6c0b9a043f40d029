"""`systolic.plan_moe`: what computes each part of a layer of experts, why, and how long by arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from systolic.chips import Chip
from systolic.chips import chip as chip_named
from systolic.ops.moe.forms import MoeForm, require_form
from systolic.ops.moe.plan_chip import fused_parts, sorted_parts
from systolic.ops.moe.plan_devices import all_gather_parts, all_to_all_parts
from systolic.ops.moe.plan_parts import MoePart
from systolic.ops.moe.spec import MoeLayers, MoeSpec
from systolic.schedule import IllegalTilesError
from systolic.support.summary import Summarised, Summary

_PartsOf = Callable[[MoeSpec, Chip], tuple[str, list[MoePart]]]
_ON_ONE_DEVICE: Mapping[MoeForm, _PartsOf] = {"fused": fused_parts, "sorted": sorted_parts}
_OVER_DEVICES: Mapping[MoeForm, _PartsOf] = {"all-gather": all_gather_parts, "all-to-all": all_to_all_parts}


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


_Plans = dict[MoeForm, MoePlan]


def plan_moe(spec: MoeSpec, chip: str | Chip = "v5e", *, form: MoeForm | None = None) -> MoePlan:
    """Return the plan of `systolic.moe` for a layer on a chip, without compiling anything.

    All experts are taken as equally likely. `systolic.moe` decides by the same arithmetic.

    Args:
      form: as in `systolic.moe`; None: the one that takes less time. Several devices are taken to be the most compact
        slice of this size.

    Raises:
      SpecError: over several devices, a chip without links; an unknown form, or one for another number of devices.
      IllegalTilesError: form="fused", and its kernels cannot run; the message has each reason.
      UnsupportedDtypeError: the chip does not multiply this dtype.
    """
    chip = chip_named(chip)
    if form is not None:
        require_form(form, over="" if spec.devices == 1 else "devices")
    if form == "fused":
        fused_parts(spec, chip)  # raises the reasons why they cannot run
    plans = _plans(spec, chip)
    return plans[form or _fastest(plans)]


def faster_form(spec: MoeSpec, chip: Chip) -> MoeForm:
    """Return the form that takes less time by arithmetic."""
    return _fastest(_plans(spec, chip))


def _fastest(plans: _Plans) -> MoeForm:
    return min(plans, key=lambda form: plans[form].time_us)


def _plans(spec: MoeSpec, chip: Chip) -> _Plans:
    """Return the plans of all forms that can run; each also says how long the others take, or why they cannot run."""
    made: dict[MoeForm, tuple[str, list[MoePart]]] = {}
    refused = list[str]()
    for name, parts_of in (_ON_ONE_DEVICE if spec.devices == 1 else _OVER_DEVICES).items():
        try:
            made[name] = parts_of(spec, chip)
        except IllegalTilesError as error:
            if name != "fused":
                raise
            refused.append(str(error))
    times = {name: sum(part.time_us for part in parts) for name, (_, parts) in made.items()}
    plans: _Plans = {}
    for name, (words, parts) in made.items():
        others = [f"{other} {time_us:,.1f} µs" for other, time_us in times.items() if other != name]
        form = f"{name}: {words}; " + ", ".join([f"{times[name]:,.1f} µs by arithmetic", *others])
        plans[name] = MoePlan(spec=spec, chip=chip.name, form="; ".join([form, *refused]), parts=tuple(parts))
    return plans
