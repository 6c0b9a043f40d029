"""`systolic table`: what is kept is shown, compared, exported, and imported without loss."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_trial_store import SUBJECT, trial

from systolic.cli import main
from systolic.trials import Trial, TrialStore


@pytest.fixture
def store(tmp_path: Path) -> TrialStore:
    made = TrialStore(tmp_path / "trials.sqlite")
    for one in (trial(128, 30.0), trial(256, 10.0), trial(384, None), Trial(blocking=None, status="ok")):
        made.keep(SUBJECT, one)
    made.keep(replace(SUBJECT, chip="v5e"), trial(512, 99.0))
    return made


def test_show(store: TrialStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "show", "--store", str(store.file), "--chip", "v6e"]) == 0
    shown = capsys.readouterr().out
    assert "512·1024·2048" in shown
    assert "256/256/512" in shown
    assert "10.0" in shown
    assert "99.0" not in shown
    assert main(["table", "show", "--store", str(store.file), "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["winner"]["simulated_us"] for row in rows] == [99.0, 10.0]


def test_show_of_nothing_says_how_to_make_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "show", "--store", str(tmp_path / "none.sqlite")]) == 0
    assert "systolic tune" in capsys.readouterr().out
    assert not (tmp_path / "none.sqlite").exists()


def test_export_and_import_lose_nothing(store: TrialStore, tmp_path: Path) -> None:
    file, copy = tmp_path / "kept.json", TrialStore(tmp_path / "copy.sqlite")
    assert main(["table", "export", str(file), "--store", str(store.file), "-q"]) == 0
    assert main(["table", "import", str(file), "--store", str(copy.file), "-q"]) == 0
    assert copy.subjects() == store.subjects()
    for subject in store.subjects():
        assert copy.trials(subject) == store.trials(subject)
    assert main(["table", "diff", str(store.file), str(file)]) == 0


def test_diff(store: TrialStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    after = TrialStore(tmp_path / "after.sqlite")
    after.keep(SUBJECT, trial(640, 12.0))
    assert main(["table", "diff", str(store.file), str(after.file)]) == 1  # slower than it was
    shown = capsys.readouterr().out
    assert "256/256/512" in shown
    assert "640/256/512" in shown
    assert "2 winners differ" in shown
    assert main(["table", "diff", str(after.file), str(store.file)]) == 0


def test_a_file_of_something_else(store: TrialStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.json"
    for text in ("{}", '{"command": "bench", "rows": []}', "nonsense", '{"command": "table export", "rows": [{}]}'):
        wrong.write_text(text)
        assert main(["table", "import", str(wrong), "--store", str(store.file)]) == 2
        assert "no store, and nothing that systolic table export wrote" in capsys.readouterr().err
    assert len(store.subjects()) == 2


def test_plan_says_by_what_the_store_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from systolic.ops.planning import forget_plans
    from systolic.trials import Subject

    monkeypatch.setenv("SYSTOLIC_STORE", str(tmp_path / "trials.sqlite"))
    forget_plans()
    here = Subject.here(replace(SUBJECT.problem, m=384), "v6e")
    TrialStore.at().keep(here, trial(128, 9.5))
    sizes = [str(getattr(here.problem, letter)) for letter in "mkn"]
    assert main(["plan", ",".join(sizes), "--chip", "v6e", "--dtype", here.problem.dtype_lhs]) == 0
    assert "9.5 µs simulated" in capsys.readouterr().out
    assert main(["plan", ",".join([*sizes[:2], "4096"]), "--chip", "v6e", "--dtype", here.problem.dtype_lhs]) == 0
    assert f"the nearest in the store differs by problem.n: {sizes[2]} in place of 4096" in capsys.readouterr().out
    forget_plans()
