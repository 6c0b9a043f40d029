"""Saved results that somebody changed: refused in one line, or compared to an answer that is finite."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cattrs
import pytest
from explanations import a_run, an_explanation

from systolic.cli.main import main
from systolic.explaining import Explanation
from systolic.report import compare
from systolic.simulator import SimulatedRun

VALUES: list[Any] = [
    *(-5, 0, 1, -0.5, 1.5, 1e308, 5e-324, -1e-300, 10**19, 10**308, math.nan, math.inf),
    *("7", "nan", "x\ny", True, None, [], {}, [[1]]),
]
OPTIONAL = {"run_bytes", "time_us", "saving", "fetches", "moved_bytes", "executions"}  # where null is "not known"
SIGNED = {"saving"}
Place = tuple[str | int, ...]


def leaves(document: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Values with their places; of a list only the first."""
    if isinstance(document, dict) and document:
        for name, value in document.items():
            yield from leaves(value, (*place, name))
    elif isinstance(document, list | tuple) and document:
        yield from leaves(document[0], (*place, 0))
    else:
        yield place, document


def changed(document: Any, place: Place, value: Any) -> Any:
    """The document with another value there."""
    (first, *rest) = place
    new: Any = dict(document) if isinstance(document, dict) else list(document)
    new[first] = changed(new[first], tuple(rest), value) if rest else value
    return new


def is_possible(place: Place, before: Any, after: Any) -> bool:
    """True if one may stand where the other stands in a saved result, as far as types and signs say."""
    if after is None and (place[-1] in OPTIONAL or "versions" in place):
        return True
    if isinstance(before, bool | list | dict | tuple) or before is None:
        return True
    if after is None:
        return False
    if isinstance(before, int):
        return type(after) is int and 0 <= after < 2**63
    if isinstance(before, float):
        return type(after) in (int, float) and (after == 0 or 1e-30 <= after <= 1e30 or place[-1] in SIGNED)
    return type(after) is str


def refusal(text: str, kind: type[SimulatedRun] | type[Explanation]) -> str:
    try:
        kind.from_json(text)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("whole", [a_run(), an_explanation()], ids=["run", "explanation"])
def test_a_changed_record_is_refused_or_compared(whole: SimulatedRun | Explanation) -> None:
    document, kind = cattrs.unstructure(whole), type(whole)
    values = itertools.cycle(VALUES)
    refused = 0
    for place, before in leaves(document):
        for after in itertools.islice(values, 4):
            text = json.dumps(changed(document, place, after))
            if why := refusal(text, kind):
                assert len(why.splitlines()) == 1
                refused += 1
                continue
            assert is_possible(place, before, after), (place, after)
            read = kind.from_json(text)
            for found in (compare(whole, read), compare(read, whole)):
                assert found.before_us > 0
                assert found.after_us > 0
                assert found.verdict
                json.dumps([[row.before, row.after, row.change] for row in found.rows], allow_nan=False)
    assert refused > 100


def saved(path: Path, place: Place, value: Any) -> Path:
    run = cattrs.unstructure(a_run())
    row = {"function": "k.py:f", "chip": "v6e", "time_us": a_run().time_us, "stalls": a_run().stalls, "run": run}
    document = {"command": "simulate", "versions": {}, "rows": [row], "summary": {}}
    path.write_text(json.dumps(changed(document, place, value) if place else document))
    return path


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("rows", 0, "run", "clock_hz"), "nan", "clock_hz: 'nan' is not a finite number"),
        (("rows", 0, "run", "clock_hz"), 0, "clock_hz: 0 is not 1000 to 1e+15"),
        (("rows", 0, "run", "clock_hz"), -1, "clock_hz: -1 is not 1000 to 1e+15"),
        (("rows", 0, "run", "slots", "mxu"), 0, "slots.mxu: 0 is not 1 or more"),
        (("rows", 0, "run", "cores", 0, "cycles"), 10**19, "cores.0.cycles: 10000000000000000000 is not an integer"),
        (("rows", 0, "run", "cores", 0, "cycles"), 1.5, "cores.0.cycles: 1.5 is not an integer"),
        (("rows", 0, "run", "cores", 0, "cycles"), 0, "cores: there is none, or none has a cycle"),
        (
            ("rows", 0, "run", "cores", 0, "spans"),
            [{"kind": "op"}],
            "cores.0.spans.0.begin_cycles: begin_cycles is missing",
        ),
        (("rows", 0, "run", "made"), 1, "'made' is not known"),
        (("rows", 0, "time_us"), -5.0, "time_us: -5.0 is not"),
        (("rows", 0, "stalls", "copy"), "0.1", "stalls.copy: '0.1' is not a finite number"),
        (("schema",), 0, "(schema 0, here 2)"),
    ],
)
def test_no_gate_is_passed_by_a_number_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: Place, value: Any, says: str
) -> None:
    whole, other = saved(tmp_path / "a.json", (), None), saved(tmp_path / "b.json", place, value)
    for pair in ((whole, other), (other, whole)):
        assert main(["compare", *map(str, pair), "--fail-above", "2"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line


@pytest.mark.parametrize("percent", ["nan", "inf", "-1"])
def test_a_limit_is_a_finite_number(tmp_path: Path, capsys: pytest.CaptureFixture[str], percent: str) -> None:
    whole = str(saved(tmp_path / "a.json", (), None))
    assert main(["compare", whole, whole, "--fail-above", percent]) == 2
    assert "--fail-above" in capsys.readouterr().err


def test_hostile_names_are_text_in_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "# h ![x](http://e.org) @team [a](b) <img> `c` a|b"
    whole = saved(tmp_path / "a.json", ("rows", 0, "function"), name)
    other = saved(tmp_path / "b.json", ("rows", 0, "run", "flags"), {"@team": "![x](y)"})
    assert main(["compare", str(whole), str(other), "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert r"# h !\[x\](http:&#8203;//e.org) @&#8203;team \[a\](b) \<img> \`c\` a\|b" in out
    assert r"@&#8203;team=!\[x\](y)" in out
    assert out.startswith("v6e ")  # so that the name begins no heading
