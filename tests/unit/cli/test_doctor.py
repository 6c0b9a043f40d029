"""`systolic doctor` without a compiler: folders, stores, extras, and what is said of them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from trials import SUBJECT, trial

from systolic import installation as module
from systolic.cli import main
from systolic.compiler import CompilerMissing
from systolic.installation import Part, installation, interpreted_product
from systolic.store import TrialStore


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path / "new" / "cache"))
    monkeypatch.setenv("SYSTOLIC_STORE", str(tmp_path / "trials.sqlite"))


def part(name: str) -> Part:
    return {each.name: each for each in installation(compiles=False).parts}[name]


def test_what_is_not_there_yet_is_fine_and_stays_away(tmp_path: Path) -> None:
    for name in ("program cache", "trial store"):
        found = part(name)
        assert found.state == "works"
        assert "will be made" in found.about
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_counted_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "trials.sqlite"
    TrialStore(file).keep(SUBJECT, trial(256, 10.0))
    TrialStore(file).keep(SUBJECT, trial(512, 9.0))
    before = file.read_bytes()
    found = TrialStore(file).health()
    assert (found.trials, found.subjects, found.problem) == (2, 1, "")
    assert found.schema is not None
    assert file.read_bytes() == before
    assert "2 trials of 1 product" in part("trial store").about
    assert f"schema {found.schema}" in part("trial store").about


@pytest.mark.parametrize("kind", ["no database", "another database", "a folder", "cut"])
def test_a_store_that_cannot_be_used_is_broken_and_stays_where_it_is(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "trials.sqlite"
    if kind == "no database":
        file.write_text("not a database, but longer than the head of one would be")
    elif kind == "another database":
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE other (x)")
        connection.close()
    elif kind == "a folder":
        file.mkdir()
    else:
        TrialStore(file).keep(SUBJECT, trial(256, 10.0))
        file.write_bytes(file.read_bytes()[:4096])
        for ending in ("-wal", "-shm"):
            file.with_name(file.name + ending).unlink(missing_ok=True)
    before = sorted(tmp_path.iterdir())
    found = part("trial store")
    assert found.state == "broken"
    assert str(file) in found.about
    assert "SYSTOLIC_STORE" in found.fix
    assert [each for each in before if each not in tmp_path.iterdir()] == []


def test_a_cache_that_cannot_be_used_is_broken(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("a file")
    assert part("program cache").state == "broken"
    (tmp_path / "new").unlink()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "cache").write_text("a file")
    found = part("program cache")
    assert found.state == "broken"
    assert "SYSTOLIC_CACHE_DIR" in found.fix


def test_a_machine_without_the_compiler_is_all_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise CompilerMissing

    monkeypatch.setattr(module, "check_available", missing)
    found = installation(compiles=False)
    compiler = next(each for each in found.parts if each.name == "compiler")
    assert compiler.state == "absent"
    assert "libtpu, is not installed" in compiler.fix
    assert "interpret mode" in compiler.fix
    assert found.ok


def test_tpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("systolic.compat.attached_tpu_chips", lambda: 4)
    assert part("TPU").about.startswith("4 chips")
    monkeypatch.setattr("systolic.compat.attached_tpu_chips", lambda: 0)
    assert part("TPU").state == "absent"


def test_the_small_product_is_right() -> None:
    assert "is right" in interpreted_product()


def test_the_command(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--no-compile"]) == 0
    out = capfd.readouterr().out
    for words in ("jax ", "numpy ", "libtpu", "not tried", "program cache", "trial store", "gcloud"):
        assert words in out
    assert main(["doctor", "--no-compile", "--json", "-"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["summary"]["ok"] is True
    assert {"systolic", "python", "jax", "jaxlib", "libtpu", "numpy"} <= set(
        document["summary"]["installation"]["versions"]
    )
    assert document["rows"] == document["summary"]["installation"]["parts"]
    (tmp_path / "trials.sqlite").write_text("not a database, but longer than the head of one would be")
    assert main(["doctor", "--no-compile"]) == 1
    assert "broken" in capfd.readouterr().out


def test_grids_are_seen_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert part("grids of kernels").state == "works"
    monkeypatch.setattr("systolic.compat.grid_sizes_are_cached", lambda: True)
    grids = part("grids of kernels")
    assert grids.state == "broken"
    assert "0.12" in grids.fix
