"""The choice between a kernel that sends and multiplies, and XLA's collective with a product before or after it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.ops.collective.cost import fastest_schedule, schedule_us
from systolic.ops.collective.schedule import RingSchedule
from systolic.ops.collective.sizes import RingSizes, WeightSizes
from systolic.ops.collective.weight_cost import fastest_weight_schedule, weight_schedule_us
from systolic.ops.collective.weight_schedule import WeightSchedule
from systolic.schedule import IllegalTilesError

# XLA's serial programs take at least 1.15 times the sum of both parts' limits: v6e 2x4, layers of Llama-3, in
# docs/results/collective.md.
_SERIAL_OVERHEAD = 1.15
# Share of XLA's time that a kernel has to save by arithmetic, which is up to 17 % short of a kernel's simulated time in
# the eight rows of that page, and 25 % of XLA's. It was chosen by these rows: with it all eight choices are the faster
# ones; without it the one row that XLA wins would be lost.
_DOUBT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RingChoice:
    """The choice for one product.

    Attributes:
      by_kernel: True if a kernel sends and multiplies; else XLA sends, before or after a product.
      reason: of the choice.
      product: what is computed; empty if the call decides, and not its sizes.
      time_us: of the chosen one by arithmetic, without XLA's gathering of an all-reduce; None if it was not compared.
      by_xla_alone: True if XLA also multiplies the parts of a device.
    """

    by_kernel: bool
    reason: str
    product: str = ""
    time_us: float | None = None
    by_xla_alone: bool = False

    def __str__(self) -> str:
        xla_choice = "XLA's product" if self.by_xla_alone else "XLA's collective and our product"
        choice = "a kernel across chips" if self.by_kernel else xla_choice
        return ": ".join(filter(None, (self.product, choice, self.reason)))


@functools.lru_cache(maxsize=1024)
def chosen(sizes: RingSizes | WeightSizes, chip: Chip) -> RingChoice:
    """Return the faster one by arithmetic, with both times."""
    no_kernel = functools.partial(RingChoice, by_kernel=False, product=str(sizes))
    if chip.cores_per_device > 1:
        return no_kernel(reason=f"the kernel would use one of a {chip.name}'s {chip.cores_per_device} cores")
    try:
        schedule, kernel_us = _fastest(sizes, chip)
    except IllegalTilesError as error:
        return no_kernel(reason=str(error))
    xla_us = serial_us(sizes, chip)
    times = f"{kernel_us:.1f} µs by arithmetic, and XLA's collective and a product {xla_us:.1f} µs"
    if kernel_us > xla_us * (1 - _DOUBT):
        return no_kernel(reason=f"the kernel takes {times}; it has to save {_DOUBT:.0%}", time_us=xla_us)
    return RingChoice(by_kernel=True, reason=f"{schedule}: {times}", product=str(sizes), time_us=kernel_us)


def _fastest(sizes: RingSizes | WeightSizes, chip: Chip) -> tuple[RingSchedule | WeightSchedule, float]:
    """Return the fastest schedule, and its time in µs."""
    if isinstance(sizes, WeightSizes):
        schedule = fastest_weight_schedule(sizes, chip)
        return schedule, weight_schedule_us(schedule, sizes, chip)
    schedule = fastest_schedule(sizes, chip)
    return schedule, schedule_us(schedule, sizes, chip) + sizes.turned_bytes / chip.hbm_bytes_per_s * 1e6


def serial_us(sizes: RingSizes | WeightSizes, chip: Chip) -> float:
    """Return the time of a collective and a product, one after the other."""
    assert chip.links is not None  # else there is no schedule to compare with
    product_s = max(
        sizes.operations / chip.peak_ops_per_s(sizes.dtype),
        sizes.weight_bytes / chip.hbm_bytes_per_s,
    )
    return (sizes.sent_bytes / chip.links.bytes_per_s + product_s) * _SERIAL_OVERHEAD * 1e6
