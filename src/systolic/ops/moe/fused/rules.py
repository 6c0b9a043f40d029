"""The rules of the two kernels of a layer whose tokens, and sums of tokens, are in VMEM."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.chips import Chip
from systolic.ops.moe.blocks import MAX_CHOICES, ROW_TILE, ExpertsSpec
from systolic.ops.moe.fused.schedule import FusedProductsSchedule, FusedSumsSchedule
from systolic.ops.moe.sum_tiles import tile_widths
from systolic.schedule.legality import LANES, IllegalTilesError, Violation
from systolic.schedule.vmem import buffer_bytes

DTYPE = "bfloat16"  # of rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedSchedules:
    """The cutting of both kernels."""

    products: FusedProductsSchedule
    sums: FusedSumsSchedule

    @classmethod
    def of(
        cls, spec: ExpertsSpec, chip: Chip, *, has_bias: bool = False, quantizes_rows: bool = False
    ) -> FusedSchedules:
        """Return the schedules; raise IllegalTilesError with each reason if the kernels cannot run.

        Args:
          has_bias: True if a product of experts has a bias.
          quantizes_rows: True if rows are quantized next to quantized experts.
        """
        if violations := [*_option_violations(has_bias, quantizes_rows), *_size_violations(spec)]:
            raise IllegalTilesError("fused", violations)
        products, sums = FusedProductsSchedule.of(spec, chip), FusedSumsSchedule.of(spec, chip)
        if products is None or sums is None:
            raise IllegalTilesError("fused", _vmem_violations(spec, chip, products, sums))
        return cls(products=products, sums=sums)


def _option_violations(has_bias: bool, quantizes_rows: bool) -> list[Violation]:
    fix = "leave it out, or use form='sorted'"
    options = {
        "bias": (has_bias, "experts have a bias", "the kernels add none"),
        "quantize_lhs": (quantizes_rows, "rows are to be quantized", "the kernels multiply rows as they are"),
    }
    return [
        Violation(rule=rule, value=value, limit=limit, fix=fix)
        for rule, (is_given, value, limit) in options.items()
        if is_given
    ]


def _size_violations(spec: ExpertsSpec) -> list[Violation]:
    violations = []
    others = [dtype for dtype in (spec.dtype, *_float_dtypes(spec)) if dtype != DTYPE]
    for dtype in dict.fromkeys(others):
        limit, fix = f"the kernels read rows and floats of {DTYPE}", f"use {DTYPE}"
        violations.append(Violation(rule="dtype", value=dtype, limit=limit, fix=fix))
    for value, size, multiple in (
        (f"{spec.tokens:,} tokens", spec.tokens, ROW_TILE),
        (f"d={spec.d}", spec.d, LANES),
        (f"f={spec.f}", spec.f, LANES),
    ):
        if size % multiple:
            limit, fix = "the kernels copy whole registers", f"use a multiple of {multiple}"
            violations.append(Violation(rule="size", value=value, limit=limit, fix=fix))
    most = MAX_CHOICES // 2
    if not 0 < spec.choices <= most:
        value, limit = f"{spec.choices:,} choices of experts", f"there is room in SMEM for 1 to {most:,}"
        violations.append(Violation(rule="SMEM", value=value, limit=limit, fix="use fewer tokens at once"))
    return violations


def _float_dtypes(spec: ExpertsSpec) -> list[str]:
    """Return the dtypes of matrices without scales."""
    return [form.dtype for form in (spec.matrices, spec.down) if form.block is None]


def _vmem_violations(
    spec: ExpertsSpec, chip: Chip, products: FusedProductsSchedule | None, sums: FusedSumsSchedule | None
) -> list[Violation]:
    limit = f"there is room for {buffer_bytes(chip):,} bytes"
    values = []
    if products is None:
        values.append(f"{spec.tokens:,} tokens × {spec.d:,}, beside {LANES} columns of gate and up")
    if sums is None:
        columns = tile_widths(spec.d)[-1]
        values.append(f"sums of {spec.tokens:,} tokens × {columns:,}, beside {spec.f:,} rows of down")
    return [Violation(rule="VMEM", value=value, limit=limit, fix="use fewer tokens at once") for value in values]
