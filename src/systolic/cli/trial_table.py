"""`systolic table`: what `systolic tune` has kept, shown, compared, and carried from one store to another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from systolic.chips import Chip, chip_names
from systolic.cli.groups import Group
from systolic.cli.options import READ_FILE, chip_option, output_options, store_option
from systolic.cli.output import check_target, give, note, write_json
from systolic.cli.tables import console, say, show_table
from systolic.cli.tile_profiles import profile
from systolic.ops.op import kept_as
from systolic.report.columns import Column, numeric, of_part, textual
from systolic.report.written import us
from systolic.store import EXPORT_SCHEMA, Subject, Trial, TrialStore, best_first, read_trials_file


@click.group(name="table", cls=Group)
def trial_table() -> None:
    """Show, compare, export and import the trials that systolic tune has stored.

    \b
    Examples:
      systolic table show --chip v6e
      systolic table export winners.json
      systolic table import winners.json --store shared.sqlite
      systolic table diff old.sqlite new.sqlite
    """


trial_table.add_command(profile)


@trial_table.command()
@store_option
@chip_option(",".join(chip_names()))
@output_options
def show(store_file: Path | None, chips: tuple[Chip, ...], json_file: str | None, quiet: bool) -> int:
    """Show the winner of every product in the store, and the number of its trials."""
    check_target(json_file)
    store = TrialStore.at(store_file)
    names = {chip.name for chip in chips}
    rows = [(subject, trials) for subject, trials in store.records() if subject.chip in names]
    records = (_record(subject, trials, all_trials=False) for subject, trials in rows)

    def tables() -> None:
        if not rows:
            say(f"no trials in {store.file}: systolic tune M,K,N makes some")
            return
        show_table(console(), _WINNERS, rows)
        say(f"\n{_products(rows)} in {store.file}")

    give(json_file, "table show", records, {"store": str(store.file), "products": len(rows)}, tables)
    return 0


@trial_table.command()
@click.argument("target", metavar="FILE")
@store_option
@click.option("--quiet", "-q", is_flag=True, help="No notes on standard error.")
def export(target: str, store_file: Path | None, quiet: bool) -> int:
    """Write every trial of the store to FILE as JSON; - is standard output."""
    check_target(target)
    store = TrialStore.at(store_file)
    records = [_record(subject, trials, all_trials=True) for subject, trials in store.records()]
    write_json(target, "table export", records, {"products": len(records), "schema": EXPORT_SCHEMA})
    note(f"{len(records)} products of {store.file}", quiet=quiet)
    return 0


@trial_table.command(name="import")
@click.argument("source", metavar="FILE", type=READ_FILE)
@store_option
@click.option("--quiet", "-q", is_flag=True, help="No notes on standard error.")
def import_(source: Path, store_file: Path | None, quiet: bool) -> int:
    """Add every trial of FILE, which export wrote, to the store. The same configuration's trial is replaced.

    Exit code 2: a value in FILE is invalid; the message names it, and nothing is added.
    """
    store = TrialStore.at(store_file)
    read = read_trials_file(source)
    store.keep_all(read)
    note(f"{sum(len(trials) for _, trials in read)} trials of {_products(read)} into {store.file}", quiet=quiet)
    return 0


@trial_table.command()
@click.argument("before", type=READ_FILE)
@click.argument("after", type=READ_FILE)
@output_options
def diff(before: Path, after: Path, json_file: str | None, quiet: bool) -> int:
    """Compare the winners of two stores, or of files that export wrote. Exit code 1: one of AFTER is slower."""
    check_target(json_file)
    old, new = ({subject: _winner(trials) for subject, trials in read_trials_file(file)} for file in (before, after))
    rows = []
    for subject in sorted({*old, *new}, key=lambda subject: (subject.chip, subject.as_json())):
        first, second = old.get(subject), new.get(subject)
        if _compared_fields(first) != _compared_fields(second):
            rows.append((subject, first, second))
    same = len({*old, *new}) - len(rows)
    records = ({**_key(subject), "before": _kept(first), "after": _kept(second)} for subject, first, second in rows)

    def tables() -> None:
        if rows:
            show_table(console(), _CHANGED, rows)
        say(f"{len(rows)} winners differ, {same} are the same")

    give(json_file, "table diff", records, {"differ": len(rows), "same": same}, tables)
    slower = [1 for _, first, second in rows if first and second and (second.time_us or 0) > (first.time_us or 0)]
    return 1 if slower else 0


def _winner(trials: list[Trial]) -> Trial | None:
    return next(
        iter(best_first(trial for trial in trials if trial.tried is not None and trial.time_us is not None)), None
    )


def _compared_fields(winner: Trial | None) -> tuple[Any, ...] | None:
    """Return the fields by which two winners are compared; the compiler's time is not one of them."""
    return None if winner is None else (winner.tried, winner.time_us)


def _config(trial: Trial | None) -> str | None:
    return None if trial is None else str(trial.tried)


def _time_us(trial: Trial | None) -> float | None:
    return None if trial is None else trial.time_us


def _provenance(trial: Trial | None) -> str | None:
    return None if trial is None else "simulated" if trial.measured_us is None else "measured"


_SUBJECT: tuple[Column[Subject], ...] = (
    textual("chip", lambda row: row.chip),
    textual("product", lambda row: kept_as(row.spec).words(row.spec)[0]),
    textual("dtype", lambda row: kept_as(row.spec).words(row.spec)[1]),
    textual("fused", lambda row: kept_as(row.spec).words(row.spec)[2] or None),
)
# A product with all its trials.
_Tried = tuple[Subject, list[Trial]]
_WINNERS: tuple[Column[_Tried], ...] = (
    *(of_part(column, lambda row: row[0]) for column in _SUBJECT),
    textual("versions", lambda row: f"kernel {row[0].kernel_version}, jax {row[0].jax}, libtpu {row[0].libtpu}"),
    textual("config", lambda row: _config(_winner(row[1]))),
    numeric("µs", lambda row: _time_us(_winner(row[1])), us),
    numeric("provenance", lambda row: _provenance(_winner(row[1]))),
    numeric("trials", lambda row: sum(trial.tried is not None for trial in row[1])),
)
# A product with its winners before and after.
_Change = tuple[Subject, Trial | None, Trial | None]
_CHANGED: tuple[Column[_Change], ...] = (
    *(of_part(column, lambda row: row[0]) for column in _SUBJECT),
    textual("before", lambda row: _config(row[1])),
    numeric("µs", lambda row: _time_us(row[1]), us),
    textual("after", lambda row: _config(row[2])),
    numeric("µs", lambda row: _time_us(row[2]), us),
)


def _key(subject: Subject) -> dict[str, Any]:
    return {"subject": dataclasses.asdict(subject)}


def _kept(trial: Trial | None) -> dict[str, Any] | None:
    return None if trial is None else dataclasses.asdict(trial)


def _record(subject: Subject, trials: list[Trial], *, all_trials: bool) -> dict[str, Any]:
    shown = {"trials": [_kept(trial) for trial in trials]} if all_trials else {"winner": _kept(_winner(trials))}
    return {**_key(subject), **shown}


def _products(rows: Sequence[object]) -> str:
    return "1 product" if len(rows) == 1 else f"{len(rows):,} products"
