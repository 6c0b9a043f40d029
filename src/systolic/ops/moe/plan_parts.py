"""Parts of the plans of layers of experts."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.chips import Chip
from systolic.ops.grouped.spec import GroupedSpec, multiplies_codes, reads_codes, shared_columns
from systolic.ops.moe.blocks import ExpertsSpec
from systolic.ops.moe.forms import Form
from systolic.ops.moe.matrices import MatrixForm
from systolic.ops.moe.spec import MoeSpec
from systolic.ops.planner import plan
from systolic.spec import dtype_bytes, format_bytes


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


def moved(name: str, form: Form) -> MoePart:
    """Return the part that moves rows in this way."""
    computed_by = "a kernel" if form.by_kernel else "XLA"
    return MoePart(name=name, by=computed_by, why=form.reason, time_us=form.time_us)


def sorted_rows(spec: MoeSpec) -> str:
    """Describe the copies of rows in the order of experts."""
    rows = -(-spec.m * spec.top_k // spec.devices)
    moved_mb = rows * spec.k * dtype_bytes(spec.dtype) / 1e6
    return f"{rows:,} rows are copied in the order of experts, {moved_mb:,.1f} MB written and read again"


def experts_spec(spec: MoeSpec, chip: Chip) -> ExpertsSpec:
    """Return the experts of a device, as kernels that find tokens in VMEM multiply them."""
    return ExpertsSpec(
        devices=spec.devices,
        tokens=spec.m,
        choices=spec.m * spec.top_k,
        experts=spec.experts // spec.devices,
        d=spec.k,
        f=spec.n,
        products=2,
        dtype=spec.dtype,
        matrices=_matrix_form(spec, chip, spec.k, spec.n),
        down=_matrix_form(spec, chip, spec.n, spec.k),
    )


def _matrix_form(spec: MoeSpec, chip: Chip, k: int, n: int) -> MatrixForm:
    """Return the form in which kernels read matrices of k × n: others are dequantized."""
    if spec.dtype_rhs is None or not reads_codes(spec.dtype_rhs, k, spec.rhs_block or k, chip):
        return MatrixForm(dtype=spec.dtype)
    has_blocks = spec.rhs_block not in (None, k)
    columns = shared_columns(n, spec.scale_columns) if has_blocks else 1
    return MatrixForm(dtype=spec.dtype_rhs, block=spec.rhs_block or k, scale_columns=columns)


def of_codes(form: MatrixForm) -> str:
    """Begin the reason of a part with what its kernel reads, if that is codes."""
    return "" if form.block is None else f"codes of {form.dtype} are read as they are stored; "


def products(spec: MoeSpec, chip: Chip, room: int) -> tuple[list[MoePart], list[MoePart]]:
    """Return the parts of the products by gate and up, and by down, of rows in the order of experts."""
    here = spec.experts // spec.devices
    gate_up = product_parts("gate and up", spec, chip, here, room, k=spec.k, n=spec.n, gated=True)
    return gate_up, product_parts("down", spec, chip, here, room, k=spec.n, n=spec.k, gated=False)


def dequantized(name: str, spec: MoeSpec, chip: Chip, groups: int, *, k: int, n: int, gated: bool) -> list[MoePart]:
    """Return the part that dequantizes matrices, or none if kernels read them as they are stored."""
    if spec.dtype_rhs is None or reads_codes(spec.dtype_rhs, k, spec.rhs_block or k, chip):
        return []
    numbers = groups * k * n * (2 if gated else 1)
    moved_bytes = format_bytes(spec.dtype_rhs, numbers) + numbers * dtype_bytes(spec.dtype)
    why = f"the kernel does not read {spec.experts_named}: all experts are written in {spec.dtype}"
    time_us = moved_bytes / chip.machine.hbm_bytes_per_s * 1e6
    return [MoePart(name=f"dequantize {name}", by="XLA", why=why, time_us=time_us)]


def product_parts(
    name: str, spec: MoeSpec, chip: Chip, groups: int, room: int, *, k: int, n: int, gated: bool
) -> list[MoePart]:
    """Return a product, after the part that dequantizes its matrices if the kernel does not read their codes.

    Args:
      room: for rows of all `groups`; not all of it may be used.
    """
    parts, dtype_rhs = dequantized(name, spec, chip, groups, k=k, n=n, gated=gated), spec.dtype_rhs
    if parts:
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
        m=room,
        k=k,
        n=n,
        groups=groups,
        rows_per_group=-(-spec.m * spec.top_k // spec.experts),
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
