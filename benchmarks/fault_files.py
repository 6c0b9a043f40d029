"""Damaged caches and stores, hostile JSON and CSV: each ends in an answer, a warning of ours, or one line of error."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path

import fault_records
from fault_cases import CaseError, Section, Setting, damaged, mutated_json, mutated_text

import systolic
from systolic.cli import main
from systolic.compiler import CacheWarning, ProgramCache
from systolic.store import StoreError, StoreWarning, TrialStore
from systolic.validation.published import PublishedFileError, read_published

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
_PROGRAMS, _TRIALS = 3, 6


def _database(folder: Path) -> Path:
    """Return the largest file below a folder: a database keeps its rows in it."""
    return max((file for file in folder.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)


def _folded(file: Path) -> None:
    """Merge SQLite's journal into its file, so that damage to the file has an effect."""
    with contextlib.suppress(sqlite3.DatabaseError), closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _cache(choose: random.Random, folder: Path, _setting: Setting) -> None:
    cache = ProgramCache(folder=folder / "programs")
    for number in range(_PROGRAMS):
        cache.put(str(number), fault_records.program(number))
    file = _database(folder)
    _folded(file)
    if choose.random() < 0.5:
        file.write_bytes(damaged(file.read_bytes(), choose))
    else:
        _hostile_rows(file, choose)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        for number in range(_PROGRAMS):
            program = cache.get(str(number))
            if program is not None:
                fault_records.check_program(program, number)
        cache.put("7", fault_records.program(7))
        cache.get("7")


def _store(choose: random.Random, folder: Path, _setting: Setting) -> None:
    file = folder / "trials.sqlite"
    store = TrialStore(file)
    for number in range(1, _TRIALS + 1):
        store.keep(fault_records.SUBJECT, fault_records.trial(number))
    _folded(file)
    if choose.random() < 0.5:
        file.write_bytes(damaged(file.read_bytes(), choose))
    else:
        _hostile_rows(file, choose)
    with warnings.catch_warnings(), systolic.use(store=store):
        warnings.simplefilter("ignore", StoreWarning)
        if systolic.plan(fault_records.PROBLEM, "v6e").time_us <= 0:
            raise CaseError("a plan that takes no time")
        with contextlib.suppress(StoreError):
            for subject in store.subjects():
                store.trials(subject)
        _, out, _ = run_command("table", "export", "-", "--store", str(file))
        if out:
            json.loads(out)
        with contextlib.suppress(StoreError):
            store.keep(fault_records.SUBJECT, fault_records.trial(9))
            if 9 not in {
                fault_records.number_of(trial) for trial in store.trials(fault_records.SUBJECT) if trial.config
            }:
                raise CaseError("what was kept after the damage is lost")


def _hostile_rows(file: Path, choose: random.Random) -> None:
    """Change one value, of one row or of all rows, to a value of any type, by SQL."""
    values = (None, -1, 2**63 - 1, 1e308, float("inf"), "", "x" * 1000, b"\xff\xfe", b"\xed\xa0\x80", "../../outside")
    values += (b"\x80\x04cos\nsystem\n(S'true'\ntR.", "[" * 100_000, "null", "{}", "[]", '{"a": 1e999}')
    with contextlib.suppress(sqlite3.DatabaseError), closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = choose.choice(tables)
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        row = choose.choice([row for (row,) in connection.execute(f'SELECT rowid FROM "{table}"')] or [1])
        value = choose.choice(values)
        # A cast of bytes stores text that is not UTF-8.
        place = "CAST(? AS TEXT)" if isinstance(value, bytes) and choose.random() < 0.7 else "?"
        statement = f'UPDATE "{table}" SET "{choose.choice(columns)}" = {place}'
        if choose.random() < 0.7:
            connection.execute(f"{statement} WHERE rowid = ?", (value, row))
        else:
            connection.execute(statement, (value,))
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _import(choose: random.Random, folder: Path, _setting: Setting) -> None:
    source, target = folder / "given.json", folder / "mine.sqlite"
    exported = TrialStore(folder / "theirs.sqlite")
    for number in range(1, 3):
        exported.keep(fault_records.SUBJECT, fault_records.trial(number))
        exported.keep(fault_records.OTHER, fault_records.trial(number))
    _, text, _ = run_command("table", "export", "-", "--store", str(exported.file))
    source.write_bytes(mutated_json(json.loads(text), choose))
    store = TrialStore(target)
    store.keep(fault_records.SUBJECT, fault_records.trial(5))
    before = {subject: store.trials(subject) for subject in store.subjects()}
    code, _, _ = run_command("table", "import", str(source), "--store", str(target), "--quiet")
    after = {subject: store.trials(subject) for subject in store.subjects()}
    if code and after != before:
        raise CaseError(f"exit code {code}, and something was imported")
    for trials in after.values():
        for trial in trials:
            for time_us in (trial.simulated_us, trial.measured_us, trial.modelled_us):
                if time_us is not None and not (type(time_us) in (int, float) and 0 < time_us < 1e12):
                    raise CaseError(f"a time of {time_us!r} µs was imported")
    run_command("table", "show", "--store", str(target))
    run_command("table", "diff", str(target), str(source))
    with systolic.use(store=target):
        systolic.plan(fault_records.PROBLEM, "v6e")


def _results(choose: random.Random, folder: Path, _setting: Setting) -> None:
    """Check commands that compare results, on damaged output of `simulate --json`."""
    saved_runs = json.loads((Path(__file__).parents[1] / "tests" / "data" / "xla_matmul_v6e.json").read_text("utf-8"))
    row = {"function": "a.py:f", "chip": "v6e", "status": "ok", "time_us": 10.0, "run": saved_runs}
    document = {"command": "simulate", "versions": {"jax": "0.10.2"}, "rows": [row], "summary": {}}
    whole_file, broken_file = folder / "whole.json", folder / "broken.json"
    whole_file.write_text(json.dumps(document))
    broken_file.write_bytes(mutated_json(document, choose))
    order = [str(whole_file), str(broken_file)]
    choose.shuffle(order)
    run_command("compare", *order)


def _published(choose: random.Random, folder: Path, _setting: Setting) -> None:
    header = "source,chip,op,m,k,n,dtype_lhs,dtype_rhs,dtype_out,tile_m,tile_k,tile_n,time_us,timing,notes"
    row = "a page,v5e,xla_matmul,{0},{0},{0},bfloat16,bfloat16,bfloat16,,,,{0}.5,device,none"
    text = "\n".join([header, *(row.format(size) for size in (512, 1024, 2048))]) + "\n"
    file = folder / "times.csv"
    content = mutated_text(text, choose).encode("utf-8", "surrogatepass")
    file.write_bytes(damaged(content, choose) if choose.random() < 0.3 else content)
    try:
        read_published(file)
    except PublishedFileError as error:
        one_line(str(error))


def run_command(*arguments: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of a command that ends as a user may see it."""
    out, err = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with streams[0], streams[1], warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        code = main(arguments)
    foreign = [warning for warning in caught if not issubclass(warning.category, (StoreWarning, CacheWarning))]
    if foreign:
        raise CaseError(f"{' '.join(arguments[:2])} warns: {foreign[0].message}")
    if code not in (0, 1, 2):
        raise CaseError(f"{' '.join(arguments[:2])} ends with exit code {code}")
    if code == 2:
        one_line(err.getvalue().strip())
    if _CONTROL.search(out.getvalue() + err.getvalue()):
        raise CaseError(f"{' '.join(arguments[:2])} prints control characters")
    return code, out.getvalue(), err.getvalue()


def one_line(text: str) -> None:
    """Raise `CaseError` unless the text of an error is one line."""
    if not text or len(text.splitlines()) != 1 or len(text) > 2000:
        raise CaseError(f"an error is one line, and not {text[:300]!r}")


SECTIONS = (
    Section(name="damaged-caches", tries="damaged program caches, hostile rows", share=6, attempt=_cache),
    Section(name="damaged-stores", tries="damaged trial stores, hostile rows", share=6, attempt=_store),
    Section(name="imports", tries="hostile JSON into table import, diff and show", share=6, attempt=_import),
    Section(name="results", tries="hostile JSON into compare", share=4, attempt=_results),
    Section(name="published", tries="hostile CSV of published times", share=4, attempt=_published),
)
