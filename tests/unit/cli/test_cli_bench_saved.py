"""Results that `systolic bench --json` wrote are shown again, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from bench_times import answered

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch)


@pytest.mark.exhaustive
def test_a_saved_run_is_shown_again(run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    _, first, _ = run("bench", "--suite", "edges", "--json", saved, "-q")
    _, again, _ = run("bench", "--from", saved, "-q")
    assert again == first
    document = json.loads(saved.read_text())
    for schema in (1, 3):
        saved.write_text(json.dumps({**document, "schema": schema}))
        code, _, err = run("bench", "--from", saved)
        assert (code, err.count("\n")) == (2, 1)
        assert f"another version of systolic (schema {schema}, here 2)" in err


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ours_us", -5.0, "0.ours_us: -5.0 is not 1e-09 to 1e+15"),
        ("xla_us", 0, "0.xla_us: 0 is not"),
        ("ours_us", "7", "0.ours_us: '7' is not a finite number"),
        ("bundles", 1.5, "0.bundles: 1.5 is not an integer"),
        ("status", "fine", "0.status: 'fine' is none of"),
        ("made", 1, "'made' is not known"),
    ],
)
def test_a_saved_run_with_a_value_out_of_range_is_refused(
    run: Run, tmp_path: Path, name: str, value: object, says: str
) -> None:
    saved = tmp_path / "run.json"
    run("bench", "--only", "512", "--json", saved, "-q")
    document = json.loads(saved.read_text())
    document["rows"][0][name] = value
    saved.write_text(json.dumps(document))
    code, out, err = run("bench", "--from", saved, "-q")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.parametrize(
    "text", ["{}", "[]", "no json", '{"command": "bench", "versions": {}, "rows": [{"suite": 1}]}']
)
def test_another_file_is_no_saved_run(run: Run, tmp_path: Path, text: str) -> None:
    saved = tmp_path / "other.json"
    saved.write_text(text)
    code, out, err = run("bench", "--from", saved)
    assert (code, out) == (2, "")
    assert "this takes the result of `systolic bench --json FILE`" in err
