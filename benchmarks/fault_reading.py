"""Saved records with hostile values, gates that they must not pass, and hostile names in Markdown."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
from pathlib import Path
from typing import Any

from fault_cases import CaseError, Section, Setting
from fault_files import one_line, run_command
from markdown_it import MarkdownIt

from systolic.explaining import Explanation
from systolic.pytest import KeptTime, KernelSlowerError, NoTimeKeptError, TimesFile
from systolic.report import compare
from systolic.report.markdown import markdown_cell, markdown_text
from systolic.simulator import SimulatedRun

_ROOT = Path(__file__).parents[1]
_VALUES: tuple[Any, ...] = (-5, 0, 1, -0.5, 1.5, 1e308, 5e-324, 10**19, 10**308, math.nan, math.inf, "7", "nan", True)
_VALUES += (None, [], {}, [[1]], "x" * 1000)
_EXPLAINED = ("attention", "slice", "small_tiles")
_NAMES = ("# h", "![x](http://a.b/c)", "@team", "[a](b)", "<img src=x>", "`c`", "a|b", "- i", "1. i", "===", "    c")
_NAMES += ("**b**", "_e_", "~~s~~", "&lt;", "#12", "https://a.b", "www.a.b", "a@b.c", "$x$", ":tada:", "> q", "\\")
_LIVE = re.compile(r"@\w|#\w|://|(?<![a-z0-9])www\.|:\w+:")

Place = tuple[str | int, ...]


def _places(document: Any, place: Place = ()) -> list[Place]:
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    places = []
    for name, value in pairs:
        inner_place = (*place, name)
        places += _places(value, inner_place) if isinstance(value, dict | list) and value else [inner_place]
    return places


def _change(document: Any, place: Place, value: Any) -> Any:
    """Change a document, and return the previous value."""
    *way, last = place
    for step in way:
        document = document[step]
    before, document[last] = document[last], value
    return before


def _run_document() -> Any:
    return json.loads((_ROOT / "tests" / "data" / "xla_matmul_v6e.json").read_text("utf-8"))


def _explanation_document(choose: random.Random) -> Any:
    file = _ROOT / "docs" / "gallery" / f"{choose.choice(_EXPLAINED)}.json.gz"
    return json.loads(gzip.decompress(file.read_bytes()))["rows"][0]


def _strict(choose: random.Random, folder: Path, _setting: Setting) -> None:
    """Change one value of a run or an explanation: `from_json` refuses it, or everything compared is finite."""
    is_run = choose.random() < 0.5
    document = _run_document() if is_run else _explanation_document(choose)
    kind: type[SimulatedRun] | type[Explanation] = SimulatedRun if is_run else Explanation
    original: Any = kind.from_json(json.dumps(document))
    place, value = choose.choice(_places(document)), choose.choice(_VALUES)
    before = _change(document, place, value)
    try:
        read_back: Any = kind.from_json(json.dumps(document))
    except ValueError as error:
        one_line(str(error))
    else:
        _check_type(place, before, value)
        for difference in (compare(original, read_back), compare(read_back, original)):
            json.dumps([[row.before, row.after, row.change] for row in difference.rows], allow_nan=False)
            if min(difference.before_us, difference.after_us) <= 0 or not difference.verdict:
                raise CaseError(f"{place}: {value!r} makes a time that is not above 0")
    row = {"function": "a.py:f", "chip": "v6e", "run": document} if is_run else document
    (folder / "broken.json").write_text(json.dumps({"command": "explain", "versions": {}, "rows": [row]}))
    run_command("compare", str(folder / "broken.json"), str(folder / "broken.json"))


def _check_type(place: Place, before: Any, value: Any) -> None:
    if value is None or before is None or isinstance(before, bool | list | dict):
        return
    if isinstance(before, str) != isinstance(value, str):
        raise CaseError(f"{place}: {value!r} was read in place of {before!r}")
    if isinstance(before, int) and type(value) is not int and place[-1] not in ("begin_cycles", "end_cycles"):
        raise CaseError(f"{place}: {value!r} was read as a whole number")
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        raise CaseError(f"{place}: {value!r} was read as a number")
    if isinstance(before, int | float) and place[-1] != "saving" and value < 0:
        raise CaseError(f"{place}: {value!r} was read as a quantity")


def _gates(choose: random.Random, folder: Path, _setting: Setting) -> None:
    """Replace a time by a value that is no time: no gate passes."""
    value = choose.choice((-5, 0, math.nan, math.inf, "nan", "7", True, None, 10**19, 5e-324, [], {}))
    if choose.random() < 0.5:
        document = _run_document()
        whole_file, broken_file = folder / "whole.json", folder / "broken.json"
        row = {"function": "a.py:f", "chip": "v6e", "run": document}
        whole_file.write_text(json.dumps({"command": "simulate", "versions": {}, "rows": [row]}))
        _change(document, choose.choice((("clock_hz",), ("cores", 0, "cycles"))), value)
        broken_file.write_text(json.dumps({"command": "simulate", "versions": {}, "rows": [row]}))
        order = [str(whole_file), str(broken_file)]
        choose.shuffle(order)
        code, _, _ = run_command("compare", *order, "--fail-above", "2")
        if code == 0:
            raise CaseError(f"{value!r} passes")
        return
    times = TimesFile(file=folder / "times.json")
    kept_time = KeptTime(time_us=10.0, stalls_us={"copy": 1.0}, versions={})
    times.keep("a", kept_time)
    content = json.loads(times.file.read_text())
    content["times"]["a"]["time_us"] = value
    times.file.write_text(json.dumps(content))
    try:
        times.compare("a", kept_time, 0.02)
    except (NoTimeKeptError, KernelSlowerError):
        return
    raise CaseError(f"a kept time of {value!r} passes")


def _markdown(choose: random.Random, _folder: Path, _setting: Setting) -> None:
    """Render a text of hostile parts: the reader sees the same characters, and nothing but text."""
    text = choose.choice(("", " ", "\n")).join(choose.choices(_NAMES, k=choose.randint(1, 4)))
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    paragraphs = parser.parse(f"before\n{markdown_text(text)}")
    table = parser.parse(f"| a | b |\n| --- | --- |\n| {markdown_cell(text)} | c |")
    cell = next(table[at + 1] for at, token in enumerate(table) if token.type == "td_open")
    allowed = {"paragraph_open", "paragraph_close", "inline"}
    if kinds := {token.type for token in paragraphs} - allowed:
        raise CaseError(f"{text!r} makes {kinds}")
    for tokens, expected in ((paragraphs, f"before\n{text}"), ([cell], text)):
        parts = [part for token in tokens for part in (token.children or ())]
        if kinds := {part.type for part in parts} - {"text", "softbreak", "text_special"}:
            raise CaseError(f"{text!r} makes {kinds}")
        shown_text = "".join(part.content or "\n" for part in parts)
        if _LIVE.search(shown_text) or shown_text.replace("\u200b", "").split() != expected.split():
            raise CaseError(f"{text!r} is shown as {shown_text!r}")


SECTIONS = (
    Section(
        name="strict-records", tries="saved runs and explanations with one value changed", share=6, attempt=_strict
    ),
    Section(
        name="gates", tries="what is no time, against compare --fail-above and kept times", share=4, attempt=_gates
    ),
    Section(name="markdown", tries="hostile names in Markdown", share=4, attempt=_markdown),
)
