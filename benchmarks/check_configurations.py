"""Count how often the static rules of `systolic check` and the TPU compiler agree on random kernels.

    python benchmarks/check_configurations.py --count 1000 --seed 1
    python benchmarks/check_configurations.py --count 200 --seed 7 --chip v5e,v6e --csv build/check.csv --json -

Eight kinds of small kernels (see `configuration_kernels.py`) with tiles, sizes, dtypes, precisions, buffers and memory
limits drawn from a seed, most of them legal, many not. Each is traced, judged by the rules on blocks, dtypes and memory
without compiling, then compiled for a chip that this machine does not have. An error of a rule in REFUSED_BY_COMPILER
predicts a refusal. A kernel that compiles and returns garbage, such as one without grid steps, violates another rule,
which predicts nothing here.

If the kernel was accepted and has at least one step, VMEM is compared with the compiler's own account: blocks and
scratch should be the same; the compiler's additions, for registers that do not fit, are shown next to them. Arrays that
XLA holds in VMEM around the call need no window; they are read off the program, and their windows are left out of the
estimate. A configuration without any window or scratch left is not compared.
"""

from __future__ import annotations

import csv
import json
import os
import re
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import click
import jax
from configuration_kernels import Configuration, configurations, kernel

from systolic.analysis import KernelCall, kernel_calls, vmem_estimate
from systolic.checking.finding import Finding
from systolic.checking.rules.blocks import block_findings
from systolic.checking.rules.dtypes import dtype_findings
from systolic.checking.rules.memory import memory_findings
from systolic.checking.verdict import REFUSED_BY_COMPILER
from systolic.chips import CHIPS, Chip
from systolic.cli.options import chip_option, output_options
from systolic.cli.output import check_target, versions, write_json
from systolic.cli.progress import progress_bar
from systolic.cli.tables import console, show_table
from systolic.compiler import (
    CompiledProgram,
    CompilerError,
    CompilerRefusal,
    ProgramCache,
    WorkerPool,
    submit_compilation,
)
from systolic.report.columns import Column, numeric, textual
from systolic.timing import target_of

# Rules whose violation the compiler refuses. The others find kernels that compile but are wrong or slow.
_CSV = "benchmarks/data/check_configurations.csv"
_KERNEL_OP = re.compile(r'%(\S+) = [^\n]*custom-call\([^\n]*custom_call_target="tpu_custom_call"')
_WINDOW = re.compile(r"(input|output) window allocation for operator (?:input|output) (\d+)")


def judged(one: Configuration, chip: Chip) -> tuple[KernelCall | None, list[Finding]]:
    """Return the traced kernel, and the errors that predict a refusal."""
    fn, args = kernel(one)
    try:
        (call,) = kernel_calls(jax.make_jaxpr(fn)(*args))
    except Exception as error:  # noqa: BLE001 -- what cannot be traced cannot be compiled either
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return None, [Finding(rule="trace", grade="error", value=text, limit="", fix="")]
    findings = [*block_findings(call), *dtype_findings(call, chip), *memory_findings(call, chip)]
    return call, [finding for finding in findings if finding.grade == "error" and finding.rule in REFUSED_BY_COMPILER]


def reported(program: CompiledProgram) -> dict[tuple[str, int], int] | None:
    """Return the compiler's account of the kernel: bytes by role and number; ("", 0) is neither window nor scratch."""
    named = _KERNEL_OP.search(program.top_level_hlo)
    breakdowns = json.loads(program.vmem_report or "{}") or {}
    if named is None or named[1] not in breakdowns:
        return None
    allocated_bytes: dict[tuple[str, int], int] = {}
    for block in breakdowns[named[1]].get("blocks", []):
        if block.get("block_type") != "SCOPED":
            continue
        for allocation in block.get("allocations", []):
            tag = str(allocation.get("tag", ""))
            window = _WINDOW.search(tag)
            other = ("scratch", 0) if tag == "scratch operand" else ("", 0)
            key = (window[1], int(window[2])) if window else other
            allocated_bytes[key] = allocated_bytes.get(key, 0) + int(allocation["size"])
    return allocated_bytes


def vmem_row(call: KernelCall, chip: Chip, program: CompiledProgram) -> dict[str, Any]:
    """Return the estimated bytes next to the compiler's."""
    account = reported(program)
    if not account or 0 in call.grid:
        return {}
    estimate = vmem_estimate(call, chip)
    roles = ("input", "output")
    windows = [(role, number) for role in roles for number, _ in enumerate(call.of(role))]
    parts = [part for part in estimate.buffers if part.kind == "window"]
    held_by_xla = [part.size_bytes for key, part in zip(windows, parts, strict=True) if key not in account]
    added = account.get(("", 0), 0)
    return {
        "vmem_estimate": estimate.total_bytes - sum(held_by_xla),
        "vmem_reported": sum(account.values()) - added,
        "vmem_added": added,
        "held_by_xla": len(held_by_xla),
    }


def row_of(
    one: Configuration, call: KernelCall | None, errors: Sequence[Finding], job: Future[CompiledProgram]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        **asdict(one),
        "rules": " ".join(dict.fromkeys(error.rule for error in errors)),
        "foretold": "refused" if errors else "accepted",
        "compiler": "accepted",
        "reason": "",
        "compile_s": 0.0,
        "vmem_estimate": "",
        "vmem_reported": "",
        "vmem_added": "",
        "held_by_xla": "",
    }
    try:
        program = job.result()
    except CompilerRefusal as refusal:
        return {**row, "compiler": "refused", "reason": refusal.summary[:200]}
    except CompilerError as error:
        return {**row, "compiler": "no answer", "reason": str(error).splitlines()[0][:200]}
    except Exception as error:  # noqa: BLE001 -- tracing failed there as it did here
        return {**row, "compiler": "refused", "reason": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    vmem = vmem_row(call, CHIPS[one.chip], program) if call is not None else {}
    return {**row, "compile_s": round(program.compile_s, 2), **vmem}


@click.command()
@click.option("--count", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@chip_option(",".join(CHIPS))
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Compilers at once.")
@click.option("--time-limit", type=float, default=60.0, show_default=True, help="Seconds for one compilation.")
@click.option("--csv", "csv_file", default=_CSV, show_default=True, help="Where the rows go.")
@output_options
def main(
    count: int,
    seed: int,
    chips: tuple[Chip, ...],
    workers: int,
    time_limit: float,
    csv_file: str,
    json_file: str | None,
    quiet: bool,
) -> None:
    """Judge and compile random kernels, and compare."""
    check_target(json_file)
    check_target(csv_file)
    drawn = list(configurations(seed, count, tuple(chip.name for chip in chips)))
    with WorkerPool(max_workers=workers, time_limit_s=time_limit) as pool, progress_bar(quiet=quiet) as bar:
        bar.planned(len(drawn))
        jobs = []
        for configuration in drawn:
            chip = CHIPS[configuration.chip]
            label = f"{configuration.chip} {configuration.family} {configuration.number}"
            fn, args = kernel(configuration)
            job = submit_compilation(pool, fn, args, target_of(chip), cache=ProgramCache(), label=label)
            job.add_done_callback(lambda _, label=label: bar.done(label))
            jobs.append((configuration, *judged(configuration, chip), job))
        rows = [row_of(*job) for job in jobs]
    with Path(csv_file).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    summary = {chip.name: figures([row for row in rows if row["chip"] == chip.name]) for chip in chips}
    summary["all"] = figures(rows)
    if json_file is not None:
        write_json(json_file, "check_configurations", rows, {"seed": seed, **summary})
    if json_file != "-":
        show(rows, summary, seed)


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the confusion matrix of rows, and the number of kernels whose VMEM was predicted exactly."""
    answered = [row for row in rows if row["compiler"] != "no answer"]
    counts = {
        (foretold, compiler): sum(row["foretold"] == foretold and row["compiler"] == compiler for row in answered)
        for foretold in ("accepted", "refused")
        for compiler in ("accepted", "refused")
    }
    compared = [row for row in answered if row["vmem_reported"] != "" and row["vmem_reported"] + row["vmem_added"]]
    shares = [row["vmem_added"] / (row["vmem_reported"] + row["vmem_added"]) for row in compared]
    return {
        "configurations": len(rows),
        "no_answer": len(rows) - len(answered),
        "both_accept": counts["accepted", "accepted"],
        "both_refuse": counts["refused", "refused"],
        "legal_but_refused": counts["accepted", "refused"],
        "refused_but_accepted": counts["refused", "accepted"],
        "legal_but_refused_share": counts["accepted", "refused"] / len(answered) if answered else None,
        "refused_but_accepted_share": counts["refused", "accepted"] / len(answered) if answered else None,
        "vmem_compared": len(compared),
        "vmem_equal": sum(row["vmem_estimate"] == row["vmem_reported"] for row in compared),
        "vmem_added_to": sum(share > 0 for share in shares),
        "vmem_added_share_p90": statistics.quantiles(shares, n=10)[-1] if len(shares) > 1 else None,
        "vmem_added_share_most": max(shares, default=None),
    }


# A chip, and its counts.
_Counted = tuple[str, dict[str, Any]]


def _counted(title: str, key: str, form: str = "") -> Column[_Counted]:
    return numeric(title, lambda its: its[1][key], form)


_VERDICTS: tuple[Column[_Counted], ...] = (
    textual("chip", lambda its: its[0]),
    _counted("configurations", "configurations"),
    _counted("both accept", "both_accept"),
    _counted("both refuse", "both_refuse"),
    _counted("legal but refused", "legal_but_refused"),
    _counted("refused but accepted", "refused_but_accepted"),
    _counted("no answer", "no_answer"),
)
_VMEM: tuple[Column[_Counted], ...] = (
    textual("chip", lambda its: its[0]),
    _counted("VMEM compared", "vmem_compared"),
    _counted("equal", "vmem_equal"),
    _counted("compiler adds to", "vmem_added_to"),
    _counted("90th percentile of its share", "vmem_added_share_p90", ".1%"),
    _counted("largest share", "vmem_added_share_most", ".1%"),
)


def show(rows: Sequence[dict[str, Any]], summary: dict[str, dict[str, Any]], seed: int) -> None:
    """Print the tables, then every disagreement."""
    out = console()
    packages = ", ".join(f"{name} {text}" for name, text in versions().items() if text)
    out.print(f"{Path(sys.argv[0]).name} · seed {seed} · {packages}")
    show_table(out, _VERDICTS, summary.items())
    show_table(out, _VMEM, summary.items())
    for row in rows:
        if row["compiler"] not in (row["foretold"], "no answer"):
            answers = f"{row['foretold']} foretold ({row['rules'] or 'no rule'}), {row['compiler']} by the compiler"
            shape = f"{row['m']}×{row['k']}×{row['n']} in {row['tile_m']}×{row['tile_k']}×{row['tile_n']}"
            case = f"{row['chip']} {row['number']} {row['family']} {row['dtype_lhs']} {row['dtype_rhs']} {shape}"
            out.print(f"{case}: {answers} {row['reason']}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
