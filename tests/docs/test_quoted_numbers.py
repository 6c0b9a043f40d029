"""Pages quote the numbers of their data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bench_numbers import NotQuotedError, merge, ratio_table
from quoted_numbers import RENEWERS, ROOT, renewed, rung_us, sentence


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", RENEWERS)
def test_a_page_quotes_its_data(name: str) -> None:
    page = ROOT / name
    text = page.read_text("utf-8")
    assert text == renewed(page, text), "make quotes"


@pytest.mark.parametrize("name", RENEWERS)
def test_a_page_that_lost_its_quotation_is_refused(name: str) -> None:
    with pytest.raises((NotQuotedError, ValueError)):
        renewed(ROOT / name, "no numbers here")


def test_a_wrong_number_is_renewed() -> None:
    page = ROOT / "docs" / "results" / "matmul.md"
    text = page.read_text("utf-8")
    assert "| square | v5e | 6 | " in text
    assert ratio_table(text.replace("| square | v5e | 6 | ", "| square | v5e | 7 | 9.999 | ")) == text


def test_a_wrapped_sentence_keeps_its_lines() -> None:
    renew = sentence("on v5e {v6 v5e 4096} and {v5 v5e 4096} µs", rung_us)
    changed = renew("on\nv5e 1 and\n2.0 µs")
    times = changed.split()
    assert changed == f"on\nv5e {times[2]} and\n{times[4]} µs"
    assert float(times[2]) < float(times[4])


def row(group: str, ratio: float | None, **changes: Any) -> dict[str, Any]:
    fields = {"suite": group, "case": f"case {ratio}", "chip": "v6e", "dtype": "bfloat16", "ours_us": 1.0}
    rest = {"ratio_with_prefetch": ratio, "xla_repeated_us": 2.0, "model_hbm_us": 0.5, "model_mxu_us": 0.7}
    return {"group": group, "ratio": ratio, **fields, **rest, **changes}


def test_new_rows_take_the_place_of_older_ones() -> None:
    older = {"group": "square", "chip": "v6e", "ratio": 9.0, "is_older": True}
    stored: dict[str, Any] = {"means": [older, {"group": "square", "chip": "v5e", "ratio": 3.0}], "rows": []}
    four_bits = row("int4 decode", 2.0, suite="quantized", case="int4 llama3-8b gate 16")
    exposed = {"ours_exposed_us": 0.2, "xla_exposed_us": 0.1}
    cut = row("rows", 2.0, suite="sharded", case="llama3-8b down by rows 256", **exposed)
    rows = [row("square", 0.5), row("square", 2.0), row("square", 7.0, dtype="int8"), row("decode", None)]
    rows += [four_bits, cut]
    for _ in range(2):
        merge(stored, json.loads(json.dumps({"rows": rows})))
    assert [(mean["chip"], mean["ratio"]) for mean in stored["means"]] == [("v6e", 1.0), ("v5e", 3.0)]
    assert stored["means"][0]["worst_case"] == "case 0.5"
    assert not stored["means"][0]["is_older"]
    cases = [kept["case"] for kept in stored["rows"]]
    assert cases == ["case 0.5", "case 2.0", "int4 llama3-8b gate 16", "llama3-8b down by rows 256"]
    assert [kept["mxu_us"] for kept in stored["rows"]] == [0.7] * 4
    assert exposed.items() <= stored["rows"][-1].items()
