"""The choice between a kernel that sends and multiplies, and XLA's collective with a product before or after it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from systolic.chips import Chip
from systolic.ops.collective.cost import RingSizes, fastest_schedule, schedule_us
from systolic.schedule import IllegalTilesError
from systolic.spec import dtype_bytes

# XLA's serial programs take at least 1.15 times the sum of both parts' limits: v6e 2x4, layers of Llama-3, in
# docs/results/collective.md.
_SERIAL_OVERHEAD = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class RingChoice:
    by_kernel: bool
    reason: str

    def __str__(self) -> str:
        return f"{'a kernel across chips' if self.by_kernel else 'no kernel across chips'}: {self.reason}"


def no_kernel(reason: str) -> RingChoice:
    return RingChoice(by_kernel=False, reason=reason)


@functools.lru_cache(maxsize=1024)
def chosen(sizes: RingSizes, chip: Chip) -> RingChoice:
    """Return the faster one by arithmetic, with both times."""
    if chip.cores_per_device > 1:
        return no_kernel(f"it would use one of a {chip.name}'s {chip.cores_per_device} cores")
    try:
        kernel_us = schedule_us(fastest_schedule(sizes, chip), sizes, chip)
    except IllegalTilesError as error:
        return no_kernel(str(error))
    xla_us = serial_us(sizes, chip)
    return RingChoice(
        by_kernel=kernel_us < xla_us,
        reason=f"{kernel_us:.1f} µs by arithmetic, and XLA's collective and the product {xla_us:.1f} µs",
    )


def serial_us(sizes: RingSizes, chip: Chip) -> float:
    """Return the time of a collective and a product, one after the other."""
    assert chip.links is not None  # else there is no schedule to compare with
    width = sizes.columns * dtype_bytes(sizes.dtype_out) if sizes.scatters else sizes.k * dtype_bytes(sizes.dtype)
    # A ring sends half of all other devices' chunks in each direction.
    sent_bytes = (sizes.devices - 1) / 2 * sizes.rows * width
    columns = sizes.columns * sizes.sums
    operations = 2 * sizes.devices * sizes.rows * sizes.k * columns
    product_s = max(
        operations / chip.peak_ops_per_s(sizes.dtype),
        sizes.k * columns * dtype_bytes(sizes.dtype) / chip.hbm_bytes_per_s,
    )
    return (sent_bytes / chip.links.bytes_per_s + product_s) * _SERIAL_OVERHEAD * 1e6
