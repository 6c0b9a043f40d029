"""The roofline: the time of the arithmetic at the chip's peak, and of the least traffic at its bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.chips import Chip, RooflineChip
from systolic.spec import Spec

# Names of operand types in the compiler's listings and the machine models. Others are converted to bfloat16.
_LISTING_TYPES = {"float32": "f32", "bfloat16": "bf16", "int8": "s8", "float8_e4m3fn": "f8", "float8_e5m2": "f8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """An amount of arithmetic and of traffic on one device, each at its peak rate."""

    flops: float
    hbm_bytes: float
    peak_flops_per_s: float
    hbm_bytes_per_s: float

    @property
    def mxu_us(self) -> float:
        return self.flops / self.peak_flops_per_s * 1e6

    @property
    def hbm_us(self) -> float:
        return self.hbm_bytes / self.hbm_bytes_per_s * 1e6

    @property
    def least_us(self) -> float:
        """The time that no kernel can beat: arithmetic and copies entirely overlapped."""
        return max(self.mxu_us, self.hbm_us)

    @property
    def limit(self) -> Literal["memory", "compute"]:
        return "memory" if self.mxu_us < self.hbm_us else "compute"

    @property
    def intensity_flops_per_byte(self) -> float:
        """Arithmetic for each byte over HBM."""
        return self.flops / self.hbm_bytes

    @property
    def ridge_flops_per_byte(self) -> float:
        """The intensity above which the arithmetic takes longer."""
        return self.peak_flops_per_s / self.hbm_bytes_per_s


def dtype_on(spec: Spec, chip: Chip | RooflineChip) -> str:
    """Return the dtype at whose rate a chip multiplies a product."""
    return spec.multiplied_as(chip.dtypes)


def roofline(spec: Spec, chip: Chip | RooflineChip) -> Roofline:
    """Return the roofline of a product at the chip's published peak (all passes counted) and bandwidth."""
    return Roofline(
        flops=spec.flops * spec.passes,
        hbm_bytes=spec.least_hbm_bytes,
        peak_flops_per_s=chip.peak_ops_per_s(dtype_on(spec, chip)),
        hbm_bytes_per_s=chip.hbm_bytes_per_s,
    )


def machine_roofline(spec: Spec, chip: Chip) -> Roofline:
    """Return the roofline at the clock and the bandwidth of the simulator's model of the chip."""
    machine = chip.machine
    rows_per_cycle = mxu_rows_per_cycle(dtype_on(spec, chip), chip)
    flops_per_cycle = 2 * machine.mxu_count * machine.mxu_rows * machine.mxu_columns * rows_per_cycle
    return Roofline(
        flops=spec.flops * spec.passes,
        hbm_bytes=spec.least_hbm_bytes,
        peak_flops_per_s=flops_per_cycle * machine.clock_hz * chip.cores_per_device,
        hbm_bytes_per_s=machine.hbm_bytes_per_s,
    )


def repeated_us(alone_us: float, prefetch_us: float, least_hbm_us: float) -> float:
    """Return the time of a program in repeated calls, where the copy that it starts early runs during the call before.

    Published device times exclude that copy. The rest of a skinny product may take less time than its weight takes to
    cross HBM, and then repeated calls wait for the copy. So this is the time of the rest, but at least the time of the
    least HBM traffic, and at most the time of rest and copy together.
    """
    return max(alone_us, min(alone_us + prefetch_us, least_hbm_us))


def mxu_rows_per_cycle(dtype: str, chip: Chip) -> float:
    """Return the rows of lhs that a matrix unit takes in a cycle; bfloat16's if the dtype is converted first."""
    rates = chip.machine.mxu_rows_per_cycle
    return rates.get(_LISTING_TYPES.get(dtype, "bf16"), rates["bf16"])
