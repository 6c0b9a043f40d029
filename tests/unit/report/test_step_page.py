"""The page of a predicted step: its figures, its parts, what was tried, and that names cannot break out of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from slices import a_device, a_slice

from systolic.report.step_page import parts_plot, step_page
from systolic.report.step_tables import Prediction
from systolic.steps import PartRun, StepChange, StepMemory, StepRun

GIB = 2**30
HOSTILE = "</script><script>alert(1)</script>"


def a_step(*, alone: bool = False) -> StepRun:
    whole = a_slice()
    run = a_device(80.0) if alone else whole.slowest
    part = PartRun(
        part="mlp",
        in_pass="forward",
        cycles=run.cycles // 2,
        matrix_busy_cycles=1000,
        hbm_bytes=5_000_000,
        exposed_cycles=100,
        sent_bytes=1000,
        limit="matrix units",
        limit_share=0.5,
    )
    return StepRun(
        name="train",
        chip="v6e",
        topology="" if alone else whole.topology,
        devices=1 if alone else whole.devices,
        tokens=4096,
        flops=2e12,
        flops_causal=1.5e12,
        peak_ops_per_s=918e12,
        memory=StepMemory(
            argument_bytes=4 * GIB,
            result_bytes=4 * GIB,
            donated_bytes=4 * GIB,
            temporary_bytes=2 * GIB,
            code_bytes=0,
            capacity_bytes=32 * GIB,
        ),
        parts=(part, replace(part, in_pass="backward"), replace(part, part=HOSTILE, cycles=5)),
        changes=(StepChange(title="twice the batch", change="batch=2", saving=0.2),),
        run=run,
        slice_run=None if alone else whole,
        compile_s=1.0,
        from_cache=False,
        simulate_s=1.0,
    )


@pytest.fixture(scope="module")
def page() -> str:
    step = a_step()
    faster = replace(step, tokens=2 * step.tokens)
    refused = Prediction(label="batch=64", run=None, reason="does not fit: 3.00 GiB are missing")
    return step_page("train.py:make", step, [Prediction(label="batch=2", run=faster), refused])


def test_what_it_says(page: str) -> None:
    text = " ".join(re.sub(r"<[^>]*>", " ", page.rpartition("</style>")[2].partition("<script")[0]).split())
    for words in (
        "train.py:make",
        "on 8 devices of a 2x4 slice of v6e",
        "0.08 ms",
        "6.00 of 32.00 GiB",
        "twice the batch",
        "+100.0% tokens/s",
        "does not fit: 3.00 GiB are missing",
        "exposed communication",
        "The busiest links",
    ):
        assert words in text, words


def test_names_stay_text(page: str) -> None:
    assert HOSTILE not in page
    assert "&lt;/script&gt;" in page


def test_it_loads_nothing(page: str) -> None:
    assert "default-src &#39;none&#39;" in page
    assert not re.findall(r'<(?:script|link|img)[^>]*\b(?:src|href)="(?!data:)', page.partition("<script")[0])


def test_parts_are_drawn_the_longest_first() -> None:
    spec = parts_plot(a_step())
    assert spec["encoding"]["y"]["sort"] == ["mlp", HOSTILE]
    drawn = [(row["part"], row["pass"]) for row in spec["data"]["values"]]
    assert drawn == [("mlp", "forward"), ("mlp", "backward"), (HOSTILE, "forward")]
    assert json.dumps(spec)


def test_a_step_on_one_device_has_no_communication() -> None:
    page = step_page("train.py:make", a_step(alone=True))
    assert 'id="communication"' not in page
    assert 'id="operations"' in page


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('"tokens": 4096', '"tokens": -4096', "tokens: -4096 is not 0 or more"),
        ('"devices": 8', '"devices": 0', "devices: 0 is not 1 or more"),
        ('"limit_share": 0.5', '"limit_share": NaN', "NaN is not a number"),
        ('"compile_s": 1.0', '"compile_s": "1.0"', "compile_s: '1.0' is not a finite number"),
        ('"exposed_cycles": 100', '"exposed_cycles": 0.5', "parts.0.exposed_cycles: 0.5 is not an integer"),
    ],
)
def test_a_saved_step_is_read_strictly(before: str, after: str, says: str) -> None:
    text = a_step().to_json()
    assert StepRun.from_json(text) == a_step()
    with pytest.raises(ValueError, match=re.escape(says)):
        StepRun.from_json(text.replace(before, after, 1))
