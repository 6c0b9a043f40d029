"""Count the planted faults that `systolic check` finds by the right rule, and the sound kernels that it accuses.

    python benchmarks/check_kernels.py                    # twenty minutes of CPU; rows in data/check_kernels.csv
    python benchmarks/check_kernels.py --only softmax     # the cases of a file, or whose name contains this: their rows

Each row is written, with its date, as soon as its case ends: a run that is interrupted keeps what it has.

The kernels are in `benchmarks/checked/`: short functions, each sound by default, and wrong in one way on request. A
fault is found if a finding of grade error has one of the rules that may name it. A sound kernel is accused if it has
any finding of grade error. The TPU compiler is not asked: only the rules and the run decide.
"""

from __future__ import annotations

import csv
import datetime
import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import click
from checked import carried, copies, devices, products, public, rows, subcores, unreferenced, unreferenced_blocks
from checked.case import Case

from systolic.checking import CheckReport, submit_check
from systolic.chips import Chip, chip
from systolic.cli.options import chip_option
from systolic.cli.progress import progress_bar
from systolic.compiler import WorkerPool
from systolic.support.whole_file import whole_file

ROWS = Path(__file__).parent / "data" / "check_kernels.csv"
MODULES = {
    "rows": rows,
    "copies": copies,
    "products": products,
    "carried": carried,
    "devices": devices,
    "subcores": subcores,
    "unreferenced": unreferenced,
    "unreferenced_blocks": unreferenced_blocks,
    "public": public,
}
CASES = {module: (*cases_of_module.FAULTS, *cases_of_module.SOUND) for module, cases_of_module in MODULES.items()}


@click.command()
@chip_option("v5e")
@click.option("--only", default="", help="Cases of the file of this name, or whose own name contains it.")
@click.option("--workers", default=2, show_default=True)
def main(chips: tuple[Chip, ...], only: str, workers: int) -> None:
    """Check all kernels, and count."""
    sys.path.insert(0, str(Path(__file__).parent))
    if public.MISSING:
        click.echo(public.MISSING)
    cases = [
        case for module, module_cases in CASES.items() for case in module_cases if only == module or only in case.name
    ]
    with WorkerPool(max_workers=workers, time_limit_s=300) as pool, progress_bar(quiet=False) as bar:
        bar.planned(len(cases))
        pending = [
            submit_check(
                pool,
                case.fn,
                case.args,
                (chip(case.chip),) if case.chip else chips,
                reference=case.reference,
                compiles=False,
                seeds=(0, 1),
                mesh=dict(case.mesh) or None,
            )
            for case in cases
        ]
        table = []
        for case, job in zip(cases, pending, strict=True):
            row = _row(case, job.result())
            bar.done(case.name)
            if row["right"] == "no":
                click.echo(f"{row['kind']}: {row['case']}: {row['found'] or 'nothing found'}")
            table.append(row)
            _write(table, keep=True)
    if not only:
        _write(table, keep=False)
    for kind in ("fault", "sound"):
        of_kind = [row for row in table if row["kind"] == kind]
        right = sum(row["right"] == "yes" for row in of_kind)
        click.echo(f"{right} of {len(of_kind)} {'faults found' if kind == 'fault' else 'sound kernels not accused'}")


def _write(table: list[dict[str, str]], *, keep: bool) -> None:
    """Replace the file's rows of the same cases; `keep` its other rows."""
    rows = {(row["kind"], row["case"]): row for row in table}
    if keep:
        with ROWS.open(newline="") as file:
            rows = {(row["kind"], row["case"]): row for row in csv.DictReader(file)} | rows
    with whole_file(ROWS) as path, path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(table[0]))
        writer.writeheader()
        writer.writerows(rows.values())


def _row(case: Case, report: CheckReport) -> dict[str, str]:
    grades = ("error", "warning") if case.at_least == "warning" else ("error",)
    rules = list(dict.fromkeys(finding.rule for finding in report.findings if finding.grade in grades))
    right = bool(case.rules & set(rules)) if case.rules else not rules
    not_run = next(
        (finding.value for finding in report.findings if finding.rule == "run" and finding.grade == "warning"), ""
    )
    return {
        "kind": "fault" if case.rules else "sound",
        "case": case.name,
        "expected": " ".join(sorted(case.rules)),
        "found": " ".join(rules),
        "right": "yes" if right else "no",
        "run": "yes" if report.run.ran else not_run or "ended",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


if __name__ == "__main__":
    main()
