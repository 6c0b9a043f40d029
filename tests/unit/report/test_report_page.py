"""The page of an explanation: what it holds, that it loads nothing, and that names cannot break out of it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from explanations import HOSTILE, a_hostile_one, a_run, an_explanation
from rich.console import Console

from systolic.cli.explanation_tables import show_explanation
from systolic.explaining.explanation import Explanation
from systolic.report import explanation_page
from systolic.report.timeline import busy_lanes, pack, view
from systolic.simulator import Span


class Read(HTMLParser):
    """Collects what a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data + " "


def read(page: str) -> Read:
    found = Read()
    found.feed(page)
    found.close()
    return found


def specs(found: Read) -> dict[str, Any]:
    return json.loads(found.scripts[0])


def rows(spec: Any) -> Iterator[dict[str, Any]]:
    """The data of a plot, or of several."""
    if isinstance(spec, dict):
        if isinstance(spec.get("data"), dict):
            yield from spec["data"]["values"]
        for inner in spec.values():
            yield from rows(inner)
    elif isinstance(spec, list):
        for inner in spec:
            yield from rows(inner)


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    return an_explanation()


@pytest.fixture(scope="module")
def page(explanation: Explanation) -> str:
    return explanation_page(explanation)


@pytest.mark.exhaustive
def test_what_it_says(page: str, explanation: Explanation) -> None:
    found = read(page)
    text = " ".join(found.text.split())
    for words in (
        f"time 50.80 µs {explanation.run.error.words} cause {explanation.cause} fix {explanation.advice}",
        "88,906 cycles",
        "TPU v6e (Trillium)",
        "jax 0.10.2",
        "executed on the chip's model",
        "338.2 Tflop/s",
        "0.56 ×",
        explanation.windows[1].words,
        "BlockSpec((1024, 1024), lambda i, j, kk: (i, kk))",
        "48 MiB of VMEM, limit 32 MiB",
        "acc_vmem[...] += jnp.dot(lhs_vmem[...], rhs_vmem[...])",
        "jit(xla_matmul)/dot_general",
        "the pipeline around the kernel, and what the compiler adds",
        "1.34 MiB of VMEM hold vector registers",
        explanation.notes[0],
    ):
        assert words in text, words
    headings = re.findall(r"<h2[^>]*>([^<]*)</h2>", page.partition("<script")[0])
    assert headings == [
        "Findings",
        "Roofline",
        "Timeline",
        "VMEM",
        "Units and code",
        "HBM traffic",
        "Operations, beside XLA's",
        "Notes",
    ]


def test_every_plot_has_a_place_a_description_and_units(page: str) -> None:
    found = read(page)
    places = {attributes["data-plot"]: attributes for _, attributes in found.tags if "data-plot" in attributes}
    drawn = specs(found)
    assert set(places) == set(drawn)
    assert set(drawn) == {"roofline", "overview", "window-1", "window-2", "window-3", "vmem", "units", "traffic"}
    for name, attributes in places.items():
        assert attributes["role"] == "img", name
        assert len(attributes["aria-label"] or "") > 20, name
    for name, spec in drawn.items():
        titles = [
            layer["encoding"][axis].get("title")
            for layer in spec["layer"]
            for axis in "xy"
            if "encoding" in layer and axis in layer["encoding"]
        ]
        assert any(re.search(r"\[(µs|MiB|MB|%|flop/byte)\]$", title or "") for title in titles), (name, titles)


def test_the_roofline_has_every_program_with_a_rate(page: str, explanation: Explanation) -> None:
    spec = specs(read(page))["roofline"]
    points = {row["label"]: row for row in rows(spec) if "label" in row}
    assert set(points) == {"this kernel", "XLA", "blocks 1024/1024/1024", "blocks 512/2048/1024"}
    mine = points["this kernel"]
    assert mine["intensity"] == pytest.approx(2 * 2048**3 / 58_720_256)
    assert mine["tflops"] == pytest.approx(2 * 2048**3 / explanation.time_us / 1e6)


def test_names_of_points_at_the_right_edge_stay_inside_the_roofline(explanation: Explanation) -> None:
    name = "XLA with 64 MiB of scoped VMEM"
    programs = tuple(
        dataclasses.replace(program, label=name, hbm_bytes=1000) if program.role == "xla" else program
        for program in explanation.programs
    )
    spec = specs(read(explanation_page(dataclasses.replace(explanation, programs=programs))))["roofline"]
    texts = [layer for layer in spec["layer"] if layer.get("encoding", {}).get("text", {}).get("field") == "label"]
    sides = {next(rows(layer))["label"]: layer["mark"]["align"] for layer in texts}
    assert sides[name] == "right"
    assert sides["this kernel"] == "left"


def test_nothing_is_loaded(page: str) -> None:
    found = read(page)
    for tag, attributes in found.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert not re.match(r"\s*(https?:)?//", attributes.get(name) or ""), (tag, attributes)
        assert tag not in ("iframe", "object", "embed", "base")
    policy = next(attributes["content"] or "" for tag, attributes in found.tags if attributes.get("http-equiv"))
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    # The policy lets exactly the page's own scripts run.
    hashes = set(re.findall(r"'sha256-([^']+)'", policy))
    assert hashes == {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found.scripts[1:]}
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_it_is_of_reasonable_size(page: str) -> None:
    assert len(page.encode()) < 2_000_000


def test_names_cannot_break_out() -> None:
    found = read(explanation_page(a_hostile_one()))
    tags = [tag for tag, _ in found.tags]
    assert tags.count("script") == 3
    assert not [attributes for _, attributes in found.tags if attributes.get("id") == "hacked"]
    assert "7*7" in found.text
    drawn = specs(found)
    assert HOSTILE in {value for row in rows(drawn) for value in row.values() if isinstance(value, str)}
    # A name is data. In an expression it would be code.
    for row in rows(drawn):
        row.clear()
    assert "hacked" not in json.dumps(drawn)


def test_an_explanation_with_next_to_nothing() -> None:
    made = an_explanation()
    bare_run = dataclasses.replace(made.run, vmem=(), slots={}, hbm_bytes_per_cycle=0.0)
    core = dataclasses.replace(bare_run.cores[0], spans=(), copy_sizes=())
    bare_run = dataclasses.replace(bare_run, cores=(core,))
    bare = Explanation(
        function="f",
        arguments=(),
        chip=made.chip,
        chip_title=made.chip_title,
        versions={"jax": None},
        verdict="verdict of an older version",
        programs=(dataclasses.replace(made.programs[0], flops=0.0, run=bare_run),),
        roofline=made.roofline,
        windows=made.windows,
    )
    found = read(explanation_page(bare))
    assert set(specs(found)) == {"units"}
    assert found.text.index("verdict of an older version") < found.text.index("Findings")
    for words in ("No timeline was kept", "nothing in VMEM", "Nothing was found", "Not drawn", "no arguments"):
        assert words in found.text, words


def test_spans_in_the_middle_that_were_not_kept() -> None:
    run = a_run()
    kept: list[Span] = []
    for kind in ("op", "round", "copy", "matrix", "stall"):
        spans = [span for span in run.cores[0].spans if span.kind == kind]
        kept += spans if len(spans) <= 10 else [*spans[:5], *spans[-5:]]
    kept.sort(key=lambda span: span.begin_cycles)
    left_out = len(run.cores[0].spans) - len(kept)
    core = dataclasses.replace(run.cores[0], spans=tuple(kept), spans_left_out=left_out)
    idle = dataclasses.replace(run, cores=(core,))
    lanes = {lane.activity: lane.shares for lane in busy_lanes(idle, 0, idle.time_us, 100)}
    assert lanes["matrix"][50] is None
    assert lanes["matrix"][8] is not None
    # Where all is kept, nothing is unknown, and the lane adds up to the units' cycles.
    (whole,) = (lane.shares for lane in busy_lanes(run, 0, run.time_us, 100) if lane.activity == "matrix")
    assert sum(share or 0.0 for share in whole) / 100 == pytest.approx(run.matrix_busy_share, rel=1e-6)
    page = explanation_page(an_explanation(idle))
    assert f"{left_out} spans in the middle were not kept" in page


def test_copies_that_overlap_get_lanes_of_their_own() -> None:
    def copy(begin: float, end: float) -> Span:
        return Span(kind="copy", begin_cycles=begin, end_cycles=end, label="hbm → vmem", amount=1)

    assert pack([copy(0, 10), copy(5, 15), copy(10, 20), copy(11, 12), copy(15, 16)]) == [0, 1, 0, 2, 1]


def test_a_view_draws_no_more_than_it_may_and_says_so() -> None:
    run = a_run()
    full = view(run, 0, run.time_us)
    assert full.left_out == 0
    assert full.lanes == ("loop rounds", "copies 1", "copies 2", "matrix units", "waiting")
    few = view(run, 0, run.time_us, max_bars=10)
    assert len(few.bars) == 10
    assert few.left_out == len(full.bars) - 10
    assert {bar.activity for bar in few.bars} == {"round", "read", "matrix", "wait"}
    longest = max(bar.end_us - bar.begin_us for bar in full.bars if bar.activity == "wait")
    assert longest in {bar.end_us - bar.begin_us for bar in few.bars}


def test_the_terminal_says_the_same(explanation: Explanation) -> None:
    out = Console(width=200, record=True, file=None, highlight=False, quiet=False)
    with out.capture() as captured:
        show_explanation(out, explanation, details=True)
    text = captured.get()
    assert text.index(explanation.verdict) < text.index("findings") < text.index("the ramp")
    for words in ("HBM → VMEM ▕", "blocks 2048/2048/2048", "4.00 ×", "jit(xla_matmul)/dot_general", "copies 51%"):
        assert words in text, words


def test_the_terminal_leaves_out_details_and_says_so(explanation: Explanation) -> None:
    programs = tuple(dataclasses.replace(explanation.programs[0], label=f"change {number}") for number in range(9))
    out = Console(width=80, highlight=False)
    with out.capture() as captured:
        show_explanation(out, dataclasses.replace(explanation, programs=programs), details=False)
    text = captured.get()
    assert "the ramp" in text
    assert "change 5" in text
    assert "change 6" not in text
    assert "and 3 more" in text
    assert "HBM traffic of each operand" not in text
    assert "--details" in text


def test_the_terminal_takes_names_as_they_are() -> None:
    out = Console(width=200, highlight=False)
    with out.capture() as captured:
        show_explanation(out, a_hostile_one(), details=True)
    assert HOSTILE in captured.get()
