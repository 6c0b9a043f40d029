"""The choice between a kernel that moves rows of tokens or of experts, and XLA's gather."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Literal, get_args

from systolic.chips import Chip
from systolic.kernels.packed_rows import PACKED_DTYPES, SUBLANES
from systolic.ops.exchange.schedule import ExchangeSchedule, ExchangeSpec
from systolic.ops.moe.ring.schedule import ScatterSchedule
from systolic.ops.moe.schedule import CombineSchedule, CombineSpec, SpreadSchedule, SpreadSpec
from systolic.ops.moe.spec import MoeSpec
from systolic.ops.moe.wire import all_to_all_us, ring_us
from systolic.schedule import IllegalTilesError
from systolic.schedule.legality import LANES
from systolic.schedule.sizes import padded
from systolic.spec import SpecError, dtype_bytes
from systolic.support.choices import unknown_name

# Cycles of XLA's gather: for a row in HBM, and for a row in VMEM and each KiB of it.
# Source: simulated on v6e, 16,384 rows of 2,048 and 8,192 columns of bfloat16, of 2,048 or 65,536 rows.
_HBM_ROW_CYCLES, _VMEM_ROW_CYCLES, _KIB_CYCLES = 76, 13, 0.67
# And of its sums of a token's rows for 128 columns, if they do not fill registers of eight rows.
# Source: simulated on v6e, 512 tokens, 2 rows of 4,096 columns each: 48 µs more; on v5e 93, or 8.5 cycles.
_PADDED_CYCLES = 5
# Of VMEM, for what XLA gathers from, beside the rest of the program.
# Source: simulated on v6e with 2,048 tokens of Qwen3-30B, whose 64 MiB XLA does keep in VMEM of 128 MiB.
SHARE_OF_VMEM = 0.5

# Ways to bring rows of tokens to experts on one device, and their results back.
ChipForm = Literal["fused", "sorted"]
CHIP_FORMS: tuple[ChipForm, ...] = get_args(ChipForm)
# Ways to bring tokens of all devices to the experts of each.
DeviceForm = Literal["all-gather", "all-to-all"]
DEVICE_FORMS: tuple[DeviceForm, ...] = get_args(DeviceForm)
MoeForm = ChipForm | DeviceForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The way in which rows are moved.

    Attributes:
      by_kernel: True if a kernel of systolic's moves them; else XLA gathers them.
      reason: of the choice.
      time_us: by arithmetic.
    """

    by_kernel: bool
    reason: str
    time_us: float


def require_form(form: str, *, over: str | None) -> None:
    """Raise SpecError for an unknown form of a layer, which is `over` devices or on one."""
    forms = DEVICE_FORMS if over else CHIP_FORMS
    if form in forms:
        return
    if form in (*DEVICE_FORMS, *CHIP_FORMS):
        where = "on one device; over several" if over else "over several devices; on one"
        raise SpecError(f"form={form!r} is of a layer {where}, use one of {', '.join(forms)}, or leave it out")
    raise SpecError(f"{unknown_name('form=', form, forms)}, or leave it out")


@functools.lru_cache(maxsize=1024)
def spread_form(spec: SpreadSpec, chip: Chip, used_rows: int | None = None) -> Form:
    """Return the faster way to copy rows of tokens in the order of experts; `used_rows` of them have an expert."""
    row_bytes = spec.d * dtype_bytes(spec.dtype)
    xla_us = _gather_us(spec.rows, row_bytes, spec.tokens * row_bytes, chip)
    if spec.dtype not in PACKED_DTYPES:
        return _by_xla(spec.dtype, xla_us)
    try:
        schedule = SpreadSchedule.of(spec, chip)
    except IllegalTilesError as error:
        return Form(by_kernel=False, reason=f"not all tokens fit in VMEM: {error}", time_us=xla_us)
    cut = f"all tokens in VMEM, {schedule.columns:,} columns at a time"
    return _faster(cut, schedule.time_us(spec, chip, used_rows), xla_us)


@functools.lru_cache(maxsize=1024)
def combine_form(spec: CombineSpec, chip: Chip, rows: int, used_rows: int | None = None) -> Form:
    """Return the faster way to add up experts' rows; `rows` is the room for them, `used_rows` those that there are."""
    row_bytes, choices = spec.d * dtype_bytes(spec.dtype), spec.tokens * spec.top_k
    xla_us = _gather_us(choices, row_bytes, rows * row_bytes, chip)
    if spec.top_k % SUBLANES:
        xla_us += spec.tokens * spec.d / LANES * _PADDED_CYCLES / chip.machine.clock_hz * 1e6
    if spec.dtype not in PACKED_DTYPES:
        return _by_xla(spec.dtype, xla_us)
    schedule = CombineSchedule.of(spec, chip)
    cut = f"results of {schedule.tokens:,} tokens in VMEM, {schedule.columns:,} columns at a time"
    return _faster(cut, schedule.time_us(spec, chip, used_rows), xla_us)


# Of a ring both ways that XLA's copies go round, the share of the time that its links are busy.
# Source: simulated on v6e 2x4, 4,096 tokens of 4,096 bfloat16: 163 µs of 206.
_SCATTER_SHARE = 0.79


@functools.lru_cache(maxsize=1024)
def scatter_form(
    spec: CombineSpec, devices: int, chip: Chip, rows: int, used_rows: int | None = None
) -> tuple[Form, ...]:
    """Return the way to add up experts' rows over devices: by one kernel, or the sums of a device, then their sum."""
    sums = combine_form(spec, chip, rows, used_rows)
    why = "both ways round the ring of a mesh that is set"
    scatter = Form(by_kernel=False, reason=why, time_us=ring_us(spec, devices, chip) / _SCATTER_SHARE)
    if not sums.by_kernel:
        return sums, scatter
    try:
        schedule = ScatterSchedule.of(spec, devices, chip)
    except IllegalTilesError as error:
        return sums, replace(scatter, reason=f"{why}; no kernel that adds up experts' rows sends them on: {error}")
    time_us = schedule.time_us(spec, chip, used_rows)
    reason = (
        f"sums of {schedule.combine.tokens} tokens are sent round the ring of a mesh that is set, both ways, while the "
        f"next ones are added up: {time_us:.1f} µs by arithmetic, and one after the other "
        f"{sums.time_us + scatter.time_us:.1f} µs"
    )
    return (Form(by_kernel=True, reason=reason, time_us=time_us),)


# Of the exchange's kernel, the share of the time that the links across the middle of a slice are busy, and the time of
# its barrier, first rows and tables.
# Source: simulated on v6e 2x4, 4,096 tokens of 4,096 bfloat16, each to 8 of 8 devices: 362 µs of 375; 16 rows: 23 µs.
_EXCHANGE_SHARE, _EXCHANGE_US = 0.965, 20


@functools.lru_cache(maxsize=1024)
def exchange_form(spec: MoeSpec, chip: Chip) -> Form:
    """Return the way to send a row for each choice of each device's tokens to the device of its expert."""
    rows = max(padded(spec.m // spec.devices * spec.top_k, SUBLANES), 2 * SUBLANES)
    item = dtype_bytes(spec.dtype)
    rows_bytes = rows * spec.k * item
    # A slice begins and ends within a tile.
    slices_bytes = rows_bytes + spec.devices * (SUBLANES - 1) * spec.k * item
    links_us = all_to_all_us(slices_bytes, spec.devices, chip) / _EXCHANGE_SHARE + _EXCHANGE_US
    # XLA copies the operand and the result to another layout and back.
    xla_us = links_us + 4 * rows_bytes / chip.machine.hbm_bytes_per_s * 1e6
    if item not in (2, 4) or spec.k % LANES:
        reason = f"the kernel moves multiples of {LANES} elements of 16 or 32 bits, not {spec.k} of {spec.dtype}"
        return Form(by_kernel=False, reason=reason, time_us=xla_us)
    sizes = ExchangeSpec(
        devices=spec.devices, slices=spec.devices, rows=rows, out_rows=rows, d=spec.k, dtype=spec.dtype
    )
    try:
        ExchangeSchedule.of(sizes, chip)
    except IllegalTilesError as error:
        return Form(by_kernel=False, reason=str(error), time_us=xla_us)
    reason = f"{rows:,} rows of each device in a slice for each device"
    return Form(by_kernel=True, reason=reason, time_us=links_us)


def _gather_us(rows: int, row_bytes: int, source_bytes: int, chip: Chip) -> float:
    machine = chip.machine
    in_vmem = source_bytes <= chip.vmem_bytes_per_core * SHARE_OF_VMEM
    cycles = _VMEM_ROW_CYCLES + _KIB_CYCLES * row_bytes / 1024 if in_vmem else _HBM_ROW_CYCLES
    written_s = max(rows * cycles / machine.clock_hz, rows * row_bytes / machine.hbm_bytes_per_s)
    read_s = source_bytes / machine.hbm_bytes_per_s if in_vmem else 0.0
    return (read_s + written_s) * 1e6


def _by_xla(dtype: str, time_us: float) -> Form:
    reason = f"kernels read rows of {' and '.join(PACKED_DTYPES)}, not of {dtype}"
    return Form(by_kernel=False, reason=reason, time_us=time_us)


def _faster(cut: str, kernel_us: float, xla_us: float) -> Form:
    by_kernel = kernel_us <= xla_us
    reason = f"{cut}: {kernel_us:.1f} µs by arithmetic, and XLA's gather {xla_us:.1f} µs"
    return Form(by_kernel=by_kernel, reason=reason, time_us=min(kernel_us, xla_us))
