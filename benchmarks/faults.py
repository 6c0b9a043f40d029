"""Run hostile and broken inputs; each must end in an answer or a named error.

    python benchmarks/faults.py                                # 3,500 cases, some ten minutes on two cores
    python benchmarks/faults.py --cases 200 --seed 7 --json -
    python benchmarks/faults.py --only listings --case 17      # one case again, with its traceback

A case is made from the seed, its section and its number alone, so any failure can be repeated. Cases run in other
processes, with a limit on time and memory: a hang, a crash or a bomb is a failure of its case. Sections are in
the modules `fault_*.py` that are imported here. Exit code 1: something failed.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import click
import fault_commands
import fault_files
import fault_globals
import fault_kills
import fault_machines
import fault_numerics_dense
import fault_numerics_quantized
import fault_numerics_sparse
import fault_programs
import fault_quantized_arrays
import fault_reading
from fault_cases import Section, Setting

from systolic.cli.output import write_json
from systolic.cli.progress import progress_bar
from systolic.cli.tables import console, show_table
from systolic.report.columns import Column, numeric, textual

SECTIONS: dict[str, Section] = {
    section.name: section
    for module in (
        fault_files,
        fault_machines,
        fault_programs,
        fault_reading,
        fault_kills,
        fault_commands,
        fault_globals,
        fault_numerics_dense,
        fault_numerics_quantized,
        fault_numerics_sparse,
        fault_quantized_arrays,
    )
    for section in module.SECTIONS
}
_CASES = 3500
_CHUNK = 20  # cases that a process is given at once
_LIMIT_S = 60  # seconds for one case: the slowest kind takes about three
_MEMORY_BYTES = 8 * 2**30  # of data, that a process may have


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A case that ended in another way than it may."""

    section: str
    case: int
    what: str
    trace: str = ""


class _HungError(BaseException):
    """A hang; a `BaseException`, so that `except Exception` does not catch it."""


def attempt(section: Section, case: int, seed: int, setting: Setting) -> Failure | None:
    """Run one case in its own folder; return its failure, or None."""
    choose = random.Random(f"{seed}/{section.name}/{case}")
    folder = Path(tempfile.mkdtemp(prefix="systolic-faults-"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a section states the warnings that it expects
            signal.signal(signal.SIGALRM, _hung)
            signal.alarm(_LIMIT_S)
            section.attempt(choose, folder, setting)
    except (Exception, _HungError) as error:  # noqa: BLE001 -- whatever it is, the case has failed
        message = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return Failure(section=section.name, case=case, what=message, trace=traceback.format_exc())
    finally:
        signal.alarm(0)
        shutil.rmtree(folder, ignore_errors=True)
    return None


def _hung(_signal: int, _frame: object) -> None:
    raise _HungError(f"no end after {_LIMIT_S} s")


def _limit_memory() -> None:
    faulthandler.enable()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, hard))


def _attempt_all(name: str, cases: Sequence[int], seed: int, setting: Setting) -> list[Failure]:
    attempts = (attempt(SECTIONS[name], case, seed, setting) for case in cases)
    return [failure for failure in attempts if failure is not None]


def run_sections(
    names: Sequence[str], cases: int, seed: int, setting: Setting, *, quiet: bool
) -> dict[str, tuple[int, list[Failure]]]:
    """Return, for each section, the number of tried cases and the failed ones."""
    shares = sum(SECTIONS[name].share for name in names)
    counts = {name: max(1, round(cases * SECTIONS[name].share / shares)) for name in names}
    chunks = [
        (name, range(start, min(start + _CHUNK, counts[name])))
        for name in names
        for start in range(0, counts[name], _CHUNK)
    ]
    failures: dict[str, list[Failure]] = {name: [] for name in names}
    with progress_bar(quiet=quiet) as bar:
        bar.planned(len(chunks))
        while chunks:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(2, mp_context=context, initializer=_limit_memory) as pool:
                pending: dict[Future[list[Failure]], tuple[str, range]] = {
                    pool.submit(_attempt_all, name, part, seed, setting): (name, part) for name, part in chunks
                }
                crashed = []
                for future in as_completed(pending):
                    name, part = pending[future]
                    try:
                        failures[name] += future.result()
                        bar.done(name)
                    except BrokenProcessPool:
                        crashed.append((name, part))
            # The case that brought the process down is not known: smaller pieces show it.
            chunks = []
            for name, part in crashed:
                if len(part) == 1:
                    failures[name].append(Failure(section=name, case=part[0], what="the process died"))
                else:
                    chunks += [(name, part[: len(part) // 2]), (name, part[len(part) // 2 :])]
    return {name: (counts[name], failures[name]) for name in names}


@click.command()
@click.option(
    "--cases", type=click.IntRange(min=1), default=_CASES, show_default=True, help="Of all sections together."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--only", metavar="NAME,…", help=f"Sections: {', '.join(SECTIONS)}.")
@click.option("--case", "one", type=int, help="Only this case of one section, in this process, with its traceback.")
@click.option("--json", "json_file", metavar="FILE|-", help="Write the results as one JSON object.")
@click.option("--quiet", "-q", is_flag=True, help="No progress on standard error.")
def main(cases: int, seed: int, only: str | None, one: int | None, json_file: str | None, quiet: bool) -> None:
    """Try hostile and broken inputs, in cases drawn from a seed."""
    names = only.split(",") if only else list(SECTIONS)
    if unknown := [name for name in names if name not in SECTIONS]:
        raise click.UsageError(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    setting = Setting.made()
    if one is not None:
        (name,) = names
        outcome = attempt(SECTIONS[name], one, seed, setting)
        click.echo(outcome.trace if outcome else f"case {one} of {name}: ok")
        sys.exit(1 if outcome else 0)
    started = time.monotonic()
    results = run_sections(names, cases, seed, setting, quiet=quiet)
    tried = sum(count for count, _ in results.values())
    failed = sum(len(failures) for _, failures in results.values())
    rows = [
        {
            "section": name,
            "tried": count,
            "failed": len(failures),
            "failures": [asdict(failure) for failure in failures],
        }
        for name, (count, failures) in results.items()
    ]
    if json_file is not None:
        write_json(json_file, "faults", rows, {"seed": seed, "tried": tried, "failed": failed})
    if json_file != "-":
        columns: tuple[Column[dict[str, Any]], ...] = (
            textual("section", lambda row: row["section"]),
            textual("what is tried", lambda row: SECTIONS[row["section"]].tries),
            numeric("tried", lambda row: row["tried"]),
            numeric("failed", lambda row: row["failed"]),
        )
        show_table(console(), columns, rows)
        for _, failures in results.values():
            for failure in sorted(failures, key=lambda one: one.case)[:10]:
                click.echo(f"{failure.section} --case {failure.case}: {json.dumps(failure.what, ensure_ascii=False)}")
        click.echo(f"\nseed {seed}: {tried} tried, {failed} failed, {time.monotonic() - started:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
