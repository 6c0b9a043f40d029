"""Print what `systolic run` has recorded."""

from __future__ import annotations

import dataclasses
from typing import Any

import cattrs

from systolic.chips import Chip
from systolic.cli.output import SIMULATED, heading
from systolic.cli.tables import console, show_table
from systolic.report.columns import Column, numeric, textual
from systolic.report.time_errors import error_column, error_lines
from systolic.report.written import percent, us
from systolic.running import ScriptRun, TimedProgram, size_text

_MAX_UNTIMED = 8  # names


def program_record(run: ScriptRun, program: TimedProgram) -> dict[str, Any]:
    row: dict[str, Any] = {
        "function": program.name,
        "arguments": program.arguments,
        "chip": run.chip,
        "calls": program.calls,
        "status": program.status,
        "reason": program.reason,
        "time_us": program.time_us,
        "total_us": program.total_us,
        "live_bytes": program.live_bytes,
        "hbm_needed_bytes": program.needed_bytes,
    }
    if program.step is None or program.limit is None:
        return row
    limited_by, share = program.limit
    return {
        **row,
        "devices": program.step.devices,
        "provenance": program.step.run.provenance,
        "time_error": dataclasses.asdict(program.step.error),
        "limited_by": limited_by,
        "limited_share": share,
        "compile_s": program.step.compile_s,
        "from_cache": program.step.from_cache,
        "run": cattrs.unstructure(program.step.run),
    }


def run_summary(run: ScriptRun, script_exit_code: int) -> dict[str, Any]:
    return {
        "provenance": "simulated",
        "topology": run.topology,
        "total_us": run.total_us,
        "calls": len(run.sequence),
        "sequence": list(run.sequence),
        "hbm_needed_bytes": run.needed_bytes,
        "hbm_capacity_bytes": run.capacity_bytes,
        "fits": run.fits,
        "largest_arrays": [dataclasses.asdict(arrays) for arrays in run.largest],
        "untimed": dict(run.untimed),
        "script_exit_code": script_exit_code,
    }


def show_script(run: ScriptRun, chip: Chip) -> None:
    """Print a table by program, and lines on HBM and on what has no time."""
    out = console()
    heading(out, (run.chip,), *[f"slice {run.topology}"] * bool(run.topology), SIMULATED, flags=chip.given_flags)
    programs = run.by_time()
    if programs:
        show_table(out, _columns(run), programs)
        for line in error_lines(program.step.error for program in programs if program.step is not None):
            out.print(line, markup=False, soft_wrap=True)
    else:
        out.print("no call of a jitted function: use jax.jit, and see the how-to page on `systolic run`", markup=False)
    lines = [_total_text(run), _hbm_text(run)]
    lines += [
        f"no time: {program.name}({program.arguments}): {program.status}: {program.reason}" for program in run.failures
    ]
    if run.untimed:
        names = list(run.untimed)
        rest = f" and {len(names) - _MAX_UNTIMED} more" if len(names) > _MAX_UNTIMED else ""
        lines.append(
            f"not timed: operations outside of jitted functions, which ran on the CPU: "
            f"{', '.join(names[:_MAX_UNTIMED])}{rest}; call them in a function of jax.jit to time them"
        )
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


def _total_text(run: ScriptRun) -> str:
    calls = sum(program.calls for program in run.programs)
    missing = sum(program.calls for program in run.failures)
    counted = f"{calls - missing:,} of {calls:,} calls, the others have no time" if missing else f"{calls:,} calls"
    return f"total: {us(run.total_us)} µs on the chip in {counted}; the host's time is not included"


def _hbm_text(run: ScriptRun) -> str:
    where = " on a device" if run.topology else ""
    text = f"HBM: {size_text(run.needed_bytes)} needed at once{where}, of {size_text(run.capacity_bytes)}"
    if run.fits:
        return text
    return f"{text}: it does not fit. The largest arrays: {'; '.join(map(str, run.largest)) or 'none'}"


def _columns(run: ScriptRun) -> tuple[Column[TimedProgram], ...]:
    def limit(program: TimedProgram) -> str | None:
        return None if program.limit is None else f"{program.limit[0]} ({percent(program.limit[1])})"

    def share(program: TimedProgram) -> float | None:
        return None if program.total_us is None else program.total_us / max(run.total_us, 1e-9)

    def devices(program: TimedProgram) -> int | None:
        return None if program.step is None else program.step.devices

    return (
        textual("call", lambda program: program.name),
        textual("arguments", lambda program: program.arguments, droppable=True),
        *[numeric("devices", devices, ",")] * bool(run.topology),
        numeric("calls", lambda program: program.calls, ","),
        numeric("simulated µs", lambda program: program.time_us, us),
        error_column(lambda program: None if program.step is None else program.step.error, droppable=True),
        numeric("total µs", lambda program: program.total_us, us),
        numeric("share", share, percent),
        textual("limited by", limit),
    )
