"""A check's report: what it says, keeps and refuses, without running anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from systolic.checking import CheckFailedError, CheckReport, CheckReportError, Finding
from systolic.checking.finding import RULES
from systolic.checking.report import RunSummary, in_order, without_consequences
from systolic.checking.verdict import Verdict, reconciled, refused, rule_of
from systolic.chips import V4, V5E, Chip
from systolic.compiler import CompilerRefusal

ERROR = Finding(
    rule="block-alignment",
    grade="error",
    value="blocks of 8 rows of int8",
    limit="they need 32",
    fix="use 32",
    kernel="kernel",
    where="mine.py:7 in launch",
    chip="v5e",
)
NOTE = replace(ERROR, rule="cost-estimate", grade="note", chip="")
ACCEPTED = Verdict(chip="v5e", accepted=True)
REFUSED = Verdict(chip="v5e", accepted=False)
MISALIGNED = CompilerRefusal("E2002: CompileTimeMosaicMisalignedBlockAndTiling: …", kind="unsupported")


def report(*findings: Finding) -> CheckReport:
    return CheckReport(
        function="mine.py:launch",
        arguments=("int8[64,128]",),
        chips=("v5e",),
        versions={"jax": "0.10.2"},
        findings=findings,
        kernels=(),
        verdicts=(ACCEPTED,),
        run=RunSummary(ran=False),
    )


def test_errors_are_raised_and_notes_are_not() -> None:
    assert report(NOTE).raise_on_error().ok
    with pytest.raises(CheckFailedError, match=r"blocks of 8 rows of int8; they need 32; use 32 \(mine.py:7") as caught:
        report(NOTE, ERROR).raise_on_error()
    assert isinstance(caught.value, ValueError)
    assert caught.value.report.count("error") == 1


def test_warnings_are_raised_where_they_are_not_wanted() -> None:
    warning = replace(ERROR, grade="warning")
    assert report(warning).raise_on_error().ok
    with pytest.raises(CheckFailedError, match="warning: block-alignment"):
        report(NOTE, warning).raise_on_error(warnings=True)
    assert report(NOTE).raise_on_error(warnings=True).ok


def test_consequences_of_an_error_are_left_out() -> None:
    race, wrong = replace(ERROR, rule="race", chip=""), replace(ERROR, rule="wrong-result", chip="")
    nan, elsewhere = replace(wrong, rule="nan"), replace(wrong, kernel="other")
    assert without_consequences([nan, race, wrong, elsewhere, NOTE]) == [race, elsewhere, NOTE]
    # A cause that is no error brings nothing about.
    assert without_consequences([replace(race, grade="warning"), wrong])[1] == wrong


def test_a_report_says_whether_anything_was_compared() -> None:
    assert not report(NOTE).compared
    assert replace(report(NOTE), run=RunSummary(ran=True, error=0.0, tolerance=1e-6)).compared


def test_a_report_is_kept_and_reopened() -> None:
    kept = report(ERROR, NOTE)
    assert CheckReport.from_json(kept.to_json()) == kept
    for text in ("", "[]", '{"format": 99}', '{"format": 1}'):
        with pytest.raises(CheckReportError):
            CheckReport.from_json(text)


def test_findings_of_several_chips_are_said_once_and_errors_first() -> None:
    found = in_order([NOTE, ERROR, replace(ERROR, chip="v6e"), NOTE, replace(ERROR, value="other", chip="v7x")])
    assert [(each.grade, each.chip) for each in found] == [("error", "v5e, v6e"), ("error", "v7x"), ("note", "")]


def test_a_refusal_is_put_to_the_rule_that_foresaw_it() -> None:
    refusal = refused(MISALIGNED, V5E, ["kernel"])
    (found,) = reconciled([ERROR], REFUSED, refusal)
    assert (found.rule, found.detail) == ("block-alignment", MISALIGNED.message)
    added, note = reconciled([NOTE], REFUSED, refusal)
    assert (added.rule, added.grade, note) == ("block-alignment", "error", NOTE)


@pytest.mark.parametrize(
    ("chip", "fix"),
    [
        (V5E, "use smaller blocks, or vmem_limit_bytes=19922944 in pltpu.CompilerParams"),
        (V4, "use smaller blocks"),  # it has not more
    ],
)
def test_a_kernel_that_needs_too_much_with_what_the_compiler_adds(chip: Chip, fix: str) -> None:
    text = "Ran out of memory in memory space vmem. Scoped allocation with size 18.37M and limit 16.00M exceeded …"
    (found,) = reconciled(
        [], Verdict(chip=chip.name, accepted=False), refused(CompilerRefusal.from_text(text), chip, ["x"])
    )
    assert (found.rule, found.grade) == ("vmem", "error")
    assert "needs 18.37 MiB of VMEM" in found.value
    assert found.limit == "there are 16.00 MiB"
    assert found.fix == fix


def test_a_rule_that_the_compiler_contradicts_is_no_error() -> None:
    (found,) = reconciled([ERROR], ACCEPTED, None)
    assert found.grade == "warning"
    assert "the compiler accepts it" in found.limit
    tail = replace(ERROR, rule="dropped-tail")  # no matter of the compiler's
    assert reconciled([tail], ACCEPTED, None) == [tail]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Only single (1) and double (2) buffering are supported. Got 3.", "buffering"),
        ("Unsupported dot precision: HIGH", "precision"),
        ("INTERNAL: Mosaic failed to compile TPU kernel: Bad lhs type", "precision"),
        ("float acc with int lhs. Expected float lhs.", "dot-dtype"),
        ("something new", "compiler"),
    ],
)
def test_the_compilers_words_are_understood(text: str, rule: str) -> None:
    assert rule_of(CompilerRefusal(text, kind="other")) == rule


def test_every_rule_is_in_the_docs_and_no_other() -> None:
    text = (Path(__file__).parents[3] / "docs" / "check.md").read_text()
    table = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `")]
    assert {name.strip().strip("`"): words.strip() for name, words in table} == RULES
