"""`systolic table`: what is kept is shown, compared, exported, and imported without loss."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from trials import SUBJECT, trial

from systolic.cli import main
from systolic.store import Trial, TrialStore


@pytest.fixture
def store(tmp_path: Path) -> TrialStore:
    made = TrialStore(tmp_path / "trials.sqlite")
    for one in (trial(128, 30.0), trial(256, 10.0), trial(384, None), Trial(config=None, status="ok")):
        made.keep(SUBJECT, one)
    made.keep(replace(SUBJECT, chip="v5e"), trial(512, 99.0))
    return made


def test_show(store: TrialStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "show", "--store", str(store.file), "--chip", "v6e"]) == 0
    shown = capsys.readouterr().out
    assert "512 × 1024 × 2048" in shown
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
        assert "not a store, and nothing that systolic table export wrote" in capsys.readouterr().err
    assert len(store.subjects()) == 2


def exported(store: TrialStore, folder: Path) -> str:
    assert main(["table", "export", str(folder / "sound.json"), "--store", str(store.file), "-q"]) == 0
    return (folder / "sound.json").read_text()


TRIAL = ("rows", 1, "trials", 1)  # 256/256/512 in 10 µs
SUBJECT_OF = ("rows", 1, "subject")
GONE = object()


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        *[((*TRIAL, "measured_us"), value, "trial 2: measured_us=.* is not a time above 0") for value in (-1, 0, -0.0)],
        *[((*TRIAL, "simulated_us"), value, "trial 2: simulated_us=.* is not a time above 0") for value in (-1, 0)],
        *[
            ((*TRIAL, "simulated_us"), value, "row 2, trial 2: simulated_us: .* is not a finite number")
            for value in ("5.0", True, 10**400, [5.0], {})
        ],
        ((*TRIAL, "simulated_us"), float("inf"), "Infinity is not a number"),
        ((*TRIAL, "simulated_us"), float("nan"), "NaN is not a number"),
        ((*TRIAL, "vmem_bytes"), 1.5, "vmem_bytes: 1.5 is not an integer"),
        ((*TRIAL, "vmem_bytes"), 2**63, "not an integer below"),
        ((*TRIAL, "vmem_bytes"), -1, "vmem_bytes=-1 is below 0"),
        ((*TRIAL, "stalls"), {"copy": -0.5}, "one is below 0"),
        ((*TRIAL, "stalls"), [["copy", 0.5]], "is not an object"),
        ((*TRIAL, "status"), "[/bold]", r"status: '\[/bold\]' is none of ok, unsupported"),
        ((*TRIAL, "status"), "failed", "that failed has a time"),
        ((*TRIAL, "reason"), "\ud800", "is not Unicode text"),
        ((*TRIAL, "reason"), None, "is not a text"),
        ((*TRIAL, "config"), "256/256/512", "is not an object"),
        ((*TRIAL, "config", "grid_order"), "k", "is none of m, n"),
        ((*TRIAL, "config", "num_stages"), 7, "num_stages=7: pipeline='auto' has 2"),
        ((*TRIAL, "config", "fill_chunks"), 2, "copies whole blocks"),
        ((*TRIAL, "config", "tiles", "tile_m"), 0, "tile_m=0"),
        ((*TRIAL, "config", "tiles", "tile_m"), True, "True is not an integer"),
        ((*TRIAL, "config", "tiles"), GONE, "tiles is missing"),
        ((*TRIAL, "config", "\x1b[2J"), 1, r"'.x1b\[2J' is not known"),
        ((*SUBJECT_OF, "chip"), "v99", "chip 'v99' is unknown"),
        ((*SUBJECT_OF, "chip"), "[/bold]", "is unknown"),
        ((*SUBJECT_OF, "jax"), "[/bold]", r"jax='\[/bold\]' is not of its form"),
        ((*SUBJECT_OF, "libtpu"), "1\n2", "is not of its form"),
        ((*SUBJECT_OF, "kernel_version"), -1, "below 0"),
        ((*SUBJECT_OF, "spec", "m"), 10**400, "not an integer"),
        ((*SUBJECT_OF, "spec", "m"), 2**31, "above 2147483647"),
        ((*SUBJECT_OF, "spec", "dtype_lhs"), "O", "dtype 'O' is not known"),
        ((*SUBJECT_OF, "spec", "dtype_lhs"), "i4,i4", "is not known"),
        ((*SUBJECT_OF, "spec", "precision"), "most", "is none of default, high, highest"),
        ((*SUBJECT_OF, "spec", "epilogue", "activation"), "[/bold]", "is not of its form"),
        ((*SUBJECT_OF, "spec", "epilogue", "bias"), [], "is not an object"),
        ((*SUBJECT_OF, "spec"), [], "is not an object"),
        ((*SUBJECT_OF, "more"), 1, "'more' is not known"),
        (("rows", 1, "trials"), {}, "not a subject with a list of trials"),
        (("rows", 1, "note"), "x", "not a subject with a list of trials"),
        (("rows", 1), 5, "row 2 is not an object but 5"),
        (("rows",), {"a": 1}, "rows is not a list"),
        (("summary", "schema"), 1, "schema 1 is of another version"),
        (("summary", "schema"), 3, "schema 3 is of another version"),
        (("summary", "schema"), True, "schema True is of another version"),
        (("summary",), 5, "summary is not an object"),
        (("command",), "bench", "made by 'bench'"),
        (("command",), ["[/bold]"], "made by"),
    ],
)
def test_one_wrong_value_is_named_and_nothing_imported(
    store: TrialStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    place: tuple[str | int, ...],
    value: object,
    said: str,
) -> None:
    document = json.loads(exported(store, tmp_path))
    *above, last = place
    inside = document
    for name in above:
        inside = inside[name]
    if value is GONE:
        del inside[last]
    else:
        inside[last] = value
    wrong, target = tmp_path / "wrong.json", tmp_path / "into.sqlite"
    wrong.write_text(json.dumps(document))
    refused(wrong, target, capsys, said)


def refused(wrong: Path, target: Path, capsys: pytest.CaptureFixture[str], said: str) -> None:
    """Both commands end with exit code 2 and one line without control characters, and there is no store."""
    for arguments in (["import", str(wrong), "--store", str(target)], ["diff", str(wrong), str(wrong)]):
        assert main(["table", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert re.search(said, err), err
        assert err.endswith("\n")
        assert err[:-1].isprintable()
    assert not target.exists()


HEAD = b'{"command": "table export", "rows": '
FILES = {
    "deep": (b"[" * 100_000, "nested too deep"),
    "deep within": (HEAD + b'[{"a": ' * 100_000, "nested too deep"),
    "a key twice": (HEAD + b'[], "rows": []}', "the key 'rows' is there twice"),
    "NaN": (HEAD + b"[NaN]}", "NaN is not a number"),
    "infinity": (HEAD + b"[-Infinity]}", "-Infinity is not a number"),
    "digits": (HEAD + b"9" * 5000 + b"}", "thousands of digits"),
    "no UTF-8": (HEAD + b'"\xff"}', "is not UTF-8"),
    "a surrogate in UTF-8": (HEAD + b'"\xed\xa0\x80"}', "is not UTF-8"),
    "UTF-16": (HEAD.decode().encode("utf-16"), "is not UTF-8"),
    "empty": (b"", "not JSON"),
    "a number": (b"5", "it is not an object but 5"),
    "null": (b"null", "not an object"),
    "something like SQLite": (b"SQLite format 3\0" + b"x" * 5000, "not a store of trials"),
    "huge": (b" " * (64 * 2**20 + 1), "more than 64 MiB"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_export_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    text, said = FILES[name]
    (tmp_path / "wrong\x1b[31m.json").write_bytes(text)
    refused(tmp_path / "wrong\x1b[31m.json", tmp_path / "into.sqlite", capsys, said)


def test_a_store_of_somebody_else_is_taken_whole_or_not_at_all(
    store: TrialStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "into.sqlite"
    assert main(["table", "import", str(store.file), "--store", str(target), "-q"]) == 0
    assert TrialStore(target).records() == store.records()
    target.unlink()
    with closing(sqlite3.connect(store.file)) as connection, connection:
        connection.execute(
            "UPDATE trials SET trial = replace(trial, '10.0', '-1.0'), simulated_us = -1 WHERE rowid = 2"
        )
    refused(store.file, target, capsys, "trial 2: simulated_us=-1.0 is not a time above 0")
    assert not list(tmp_path.glob("*.damaged-*"))


def test_what_a_compiler_said_is_shown_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A reason may hold anything: brackets are not markup, and control characters reach no terminal."""
    from systolic.cli.tune_table import show_product, show_searches
    from systolic.tuning import TuningResult

    said = "f32[/bold] \x1b[2J is too large\nat line 1"
    store = TrialStore(tmp_path / "trials.sqlite")
    store.keep(SUBJECT, replace(trial(128, None), reason=said))
    store.keep(SUBJECT, replace(trial(256, None), reason=""))
    found = store.trials(SUBJECT)
    assert [one.reason for one in found] == [said, ""]
    result = TuningResult(
        spec=SUBJECT.spec,
        computed=SUBJECT.spec,
        chip="v6e",
        trials=tuple(found),
        xla=replace(found[0], config=None),
        xla_us=None,
        considered=2,
        compiled=2,
        seconds=1.0,
        end="all",
    )
    show_searches([result], show_product, store.file)
    shown = capsys.readouterr().out
    assert "f32[/bold] \\x1b[2J is too large" in shown
    assert "\x1b" not in shown


def test_plan_says_by_what_the_store_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from systolic.store import Subject

    monkeypatch.setenv("SYSTOLIC_STORE", str(tmp_path / "trials.sqlite"))
    here = Subject.here(replace(SUBJECT.spec, m=384), "v6e")
    TrialStore.at().keep(here, trial(128, 9.5))
    sizes = [str(getattr(here.spec, letter)) for letter in "mkn"]
    assert main(["plan", ",".join(sizes), "--chip", "v6e", "--dtype", here.spec.dtype_lhs]) == 0
    assert "9.5 µs simulated" in capsys.readouterr().out
    assert main(["plan", ",".join([*sizes[:2], "4096"]), "--chip", "v6e", "--dtype", here.spec.dtype_lhs]) == 0
    assert f"the nearest in the store differs by spec.n: {sizes[2]} in place of 4096" in capsys.readouterr().out
