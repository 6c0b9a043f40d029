"""`systolic chips`: what is known of each chip."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import click

from systolic.chips import CHIPS, Chip
from systolic.chips import chip as chip_named
from systolic.cli.options import output_options
from systolic.cli.output import check_target, console, note, table, write_json

_COLUMNS = (
    "chip",
    "device kind",
    "cores a chip",
    "cores a device",
    "MXU a core",
    "GHz",
    "bf16 Tflop/s",
    "int8 Top/s",
    "HBM GiB",
    "HBM GB/s",
    "VMEM MiB a core",
    "kernel's VMEM MiB",
)

# What is shown beside the machine model: the hardware, not what this package's planner and rules conclude from it.
_FIELDS = (
    "name",
    "title",
    "device_kind",
    "topology",
    "topology_config",
    "cores_per_chip",
    "cores_per_device",
    "hbm_bytes_per_chip",
    "hbm_bytes_per_s_per_chip",
    "ici_bytes_per_s_per_chip",
    "ici_links_per_chip",
    "vmem_bytes_per_core",
    "usable_vmem_bytes_per_core",
    "scoped_vmem_bytes",
    "usable_smem_bytes_per_core",
    "peak_ops_per_s_per_chip",
    "emulated_dtypes",
)


@click.command()
@click.argument("names", nargs=-1)
@output_options
def chips(names: tuple[str, ...], json_file: str | None, quiet: bool) -> int:
    """Show the chips that systolic knows: per chip, per core, and where each number is from.

    \b
    Examples:
      systolic chips
      systolic chips v5e v7x --json chips.json
    """
    chosen = list({chip.name: chip for chip in map(chip_named, names)}.values()) or list(CHIPS.values())
    check_target(json_file)
    if json_file is not None:
        write_json(json_file, "chips", [_record(chip) for chip in chosen], {"chips": len(chosen)})
        if json_file == "-":
            return 0
        note(f"written {json_file}", quiet=quiet)
    out = console()
    out.print("Per chip, as published; int8 in brackets where it is computed as another dtype.\n")
    out.print(table(_COLUMNS, [_line(chip) for chip in chosen], left=("chip", "device kind")))
    for chip in chosen:
        out.print(f"\n[bold]{chip.name}[/] {chip.title}: one core on the simulator's model, and where numbers are from")
        out.print(table(("field", "value", "source"), _fields(chip), left=("field", "value", "source")))
    return 0


def _line(chip: Chip) -> tuple[str, ...]:
    machine = chip.machine
    int8 = chip.peak_ops_per_s_per_chip.get("int8")
    emulated = chip.emulated_dtypes.get("int8")
    return (
        chip.name,
        chip.device_kind,
        str(chip.cores_per_chip),
        str(chip.cores_per_device),
        f"{machine.mxu_count} × {machine.mxu_rows}²",
        f"{machine.clock_hz / 1e9:.2f}",
        f"{chip.peak_ops_per_s_per_chip['bfloat16'] / 1e12:,.0f}",
        f"{int8 / 1e12:,.0f}" if int8 else f"(as {emulated})" if emulated else "–",
        f"{chip.hbm_bytes_per_chip / 2**30:.0f}",
        f"{chip.hbm_bytes_per_s_per_chip / 1e9:,.0f}",
        f"{chip.vmem_bytes_per_core / 2**20:.0f}",
        f"{chip.scoped_vmem_bytes / 2**20:.0f}",
    )


def _fields(chip: Chip) -> list[tuple[str, str, str]]:
    rows = []
    for name in _FIELDS[2:]:
        rows.append((name, _shown(getattr(chip, name)), chip.sources[name]))
    for field in dataclasses.fields(chip.machine):
        name = f"machine.{field.name}"
        rows.append((name, _shown(getattr(chip.machine, field.name)), chip.sources[name]))
    return rows


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(inner)}" for key, inner in value.items()) or "none"
    return f"{value:,g}" if isinstance(value, (int, float)) else str(value)


def _record(chip: Chip) -> dict[str, Any]:
    sources = {name: source for name, source in chip.sources.items() if name.startswith("machine.") or name in _FIELDS}
    fields = {name: getattr(chip, name) for name in _FIELDS}
    return {**fields, "machine": dataclasses.asdict(chip.machine), "sources": sources}
