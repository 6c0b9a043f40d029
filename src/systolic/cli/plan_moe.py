"""Print the plan of a layer of experts, which several kernels compute."""

from __future__ import annotations

from collections.abc import Sequence

from systolic.chips import Chip
from systolic.cli.output import give
from systolic.cli.tables import chosen_format, console, say, show_table
from systolic.ops.moe.plan import MoePlan, plan_moe
from systolic.ops.moe.plan_parts import MoePart
from systolic.ops.moe.spec import MoeSpec
from systolic.report.columns import Column, numeric, textual
from systolic.report.written import us

_COLUMNS: tuple[Column[tuple[MoePlan, MoePart]], ...] = (
    textual("chip", lambda row: row[0].chip),
    textual("part", lambda row: row[1].name),
    textual("by", lambda row: row[1].by),
    numeric("µs", lambda row: row[1].time_us, us),
    textual("why", lambda row: row[1].why),
)


def give_moe_plans(spec: MoeSpec, chips: Sequence[Chip], json_file: str | None) -> None:
    plans = [plan_moe(spec, chip) for chip in chips]
    rows = [made.record() for made in plans]
    give(json_file, "plan", rows, {"provenance": "modelled"}, lambda: _show(plans))


def _show(plans: Sequence[MoePlan]) -> None:
    if chosen_format() != "table":
        show_table(console(), _COLUMNS, [(made, part) for made in plans for part in made.parts])
        return
    for number, made in enumerate(plans):
        if number:
            say("")
        say(made.summary().text())
