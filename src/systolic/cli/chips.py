"""`systolic chips`: what is known of each chip."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console

from systolic.chips import CHIPS, ROOFLINE_CHIPS, Chip, RooflineChip, known_roofline_chip
from systolic.chips import chip as chip_named
from systolic.chips.roofline_chip import SOURCE
from systolic.cli.options import output_options
from systolic.cli.output import check_target, give, note
from systolic.cli.tables import console, show_table
from systolic.report.columns import Column, numeric, textual

_COLUMNS: tuple[Column[Chip], ...] = (
    textual("chip", lambda chip: chip.name),
    textual("device kind", lambda chip: chip.device_kind),
    numeric("cores a chip", lambda chip: chip.cores_per_chip, droppable=True),
    numeric("cores a device", lambda chip: chip.cores_per_device),
    numeric("MXU a core", lambda chip: f"{chip.machine.mxu_count} × {chip.machine.mxu_rows}²"),
    numeric("GHz", lambda chip: chip.machine.clock_hz / 1e9, ".2f"),
    textual("clock states", lambda chip: _states(chip), optional=True),
    numeric("bf16 Tflop/s", lambda chip: chip.peak_ops_per_s_per_chip["bfloat16"] / 1e12, ",.0f"),
    numeric("int8 Top/s", lambda chip: _int8_rate(chip), ",.0f"),
    numeric("HBM GiB", lambda chip: chip.hbm_bytes_per_chip / 2**30, ".0f"),
    numeric("HBM GB/s", lambda chip: chip.hbm_bytes_per_s_per_chip / 1e9, ",.0f"),
    numeric("links", lambda chip: _links(chip)),
    numeric("VMEM MiB a core", lambda chip: chip.vmem_bytes_per_core / 2**20, ".0f"),
    numeric("kernel's VMEM MiB", lambda chip: chip.scoped_vmem_bytes / 2**20, ".0f", droppable=True),
)
_ROOFLINE_COLUMNS: tuple[Column[RooflineChip], ...] = (
    textual("roofline only", lambda chip: chip.name),
    textual("device kind", lambda chip: chip.device_kind),
    numeric("cores a chip", lambda chip: chip.cores_per_chip, droppable=True),
    numeric("MXU a core", lambda chip: f"{chip.mxu_per_core} × {chip.mxu_columns}²"),
    numeric("bf16 Tflop/s", lambda chip: chip.peak_ops_per_s_per_chip["bfloat16"] / 1e12, ",.0f"),
    numeric("fp8 Tflop/s", lambda chip: chip.peak_ops_per_s_per_chip["float8_e4m3fn"] / 1e12, ",.0f"),
    numeric("HBM GB", lambda chip: chip.hbm_bytes_per_chip / 1e9, ".0f"),
    numeric("HBM GB/s", lambda chip: chip.hbm_bytes_per_s_per_chip / 1e9, ",.0f"),
    numeric("VMEM MiB a core", lambda chip: chip.vmem_bytes_per_core / 2**20, ".0f"),
)
# A field of a chip, its value, and where that is from.
_FIELD_COLUMNS: tuple[Column[tuple[str, str, str]], ...] = (
    textual("field", lambda field: field[0]),
    textual("value", lambda field: field[1]),
    textual("source", lambda field: field[2]),
)

# Fields shown next to the machine model: the hardware, without the conclusions of planner and rules.
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
    "host_bytes_per_s",
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
    """Show the chips that systolic knows; with NAMES, also the source of each number.

    \b
    Examples:
      systolic chips
      systolic chips v5e v7x --json chips.json
    """
    announced = {name: roofline_chip for name in names if (roofline_chip := known_roofline_chip(name)) is not None}
    simulated = map(chip_named, [name for name in names if name not in announced])
    chosen = list({chip.name: chip for chip in simulated}.values()) if names else list(CHIPS.values())
    roofline_only = list(
        {chip.name: chip for chip in announced.values()}.values() if names else ROOFLINE_CHIPS.values()
    )
    check_target(json_file)
    records = [*map(_record, chosen), *({**dataclasses.asdict(chip), "source": SOURCE} for chip in roofline_only)]
    give(
        json_file,
        "chips",
        records,
        {"chips": len(records)},
        lambda: _show(chosen, roofline_only, with_sources=bool(names)),
    )
    if json_file not in (None, "-"):
        note(f"written {json_file}", quiet=quiet)
    return 0


def _show(chosen: Sequence[Chip], roofline_only: Sequence[RooflineChip], *, with_sources: bool) -> None:
    out = console()
    if chosen:
        _show_simulated(out, chosen, with_sources=with_sources)
    if roofline_only:
        out.print("\nPublished peaks alone, for a roofline: libtpu has no target for them, so nothing is simulated")
        show_table(out, _ROOFLINE_COLUMNS, roofline_only)
        out.print(f"from {SOURCE}", highlight=False, soft_wrap=True)


def _show_simulated(out: Console, chosen: Sequence[Chip], *, with_sources: bool) -> None:
    out.print(
        "Per chip, as published; int8 in brackets where it is computed as another dtype. Links to other chips: how "
        "many, and GB/s of one in one direction on the simulator's model.\n"
    )
    show_table(out, _COLUMNS, chosen)
    if not with_sources:
        out.print("\nThe model of a chip, and where each number is from: systolic chips v5e", highlight=False)
        return
    for chip in chosen:
        out.print(f"\n[bold]{chip.name}[/] {chip.title}: one core on the simulator's model, and where numbers are from")
        show_table(out, _FIELD_COLUMNS, _fields(chip))


def _states(chip: Chip) -> str:
    """Return the chip's clock states, the default first; a chip in another state is named with it."""
    return ", ".join(f"{state.name} {state.clock_hz / 1e9:.2f}" for state in chip.clock_states)


def _links(chip: Chip) -> str | None:
    return None if chip.links is None else f"{2 * chip.links.dimensions} × {chip.links.bytes_per_s / 1e9:,.0f}"


def _int8_rate(chip: Chip) -> float | str | None:
    if (rate := chip.peak_ops_per_s_per_chip.get("int8")) is not None:
        return rate / 1e12
    emulated = chip.emulated_dtypes.get("int8")
    return f"(as {emulated})" if emulated else None


def _fields(chip: Chip) -> list[tuple[str, str, str]]:
    rows = []
    for name in _FIELDS[2:]:
        rows.append((name, _shown(getattr(chip, name)), chip.sources.get(name, "none needed")))
    for field in dataclasses.fields(chip.machine):
        name = f"machine.{field.name}"
        rows.append((name, _shown(getattr(chip.machine, field.name)), chip.sources[name]))
    for name, value in dataclasses.asdict(chip.links).items() if chip.links is not None else ():
        rows.append((f"links.{name}", "none" if value is None else _shown(value), chip.sources[f"links.{name}"]))
    for state in chip.clock_states:
        how = f"{chip.generation}@{state.name}" if state.flags else f"{chip.generation}, the default"
        rows.append((f"clock state {state.name}", f"{how}: {_shown(state.clock_hz)} Hz", state.source))
    return rows


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(inner)}" for key, inner in value.items()) or "none"
    return f"{value:,g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _record(chip: Chip) -> dict[str, Any]:
    shown = ("machine.", "links.")
    sources = {name: source for name, source in chip.sources.items() if name.startswith(shown) or name in _FIELDS}
    fields = {name: getattr(chip, name) for name in _FIELDS}
    states = list(map(dataclasses.asdict, chip.clock_states))
    links = dataclasses.asdict(chip.links) if chip.links is not None else None
    parts = {"machine": dataclasses.asdict(chip.machine), "links": links, "clock_states": states}
    return {**fields, **parts, "sources": sources}
