"""What is said of the error of a simulated time: by kind of program, and a reason where a program is unlike others."""

from __future__ import annotations

import dataclasses

import pytest

from systolic.accuracy.time_error import (
    NOT_SAID,
    CheckedKind,
    ProgramTraits,
    TimeError,
    TimeErrors,
    TimeErrorsError,
    machine_digest,
    percent_text,
    ratio_error_percent,
    ratio_verdict,
    shipped_time_errors,
    time_error,
)
from systolic.chips import CHIPS, chip
from systolic.report.time_errors import error_lines

V5E = chip("v5e")
KERNEL = ProgramTraits(pallas_share=0.9, matrix_share=0.8, hbm_share=0.6, time_us=100.0, copies_per_us=1.0)
CHECKED = CheckedKind(
    chip="v5e",
    kind=KERNEL.kind,
    programs=12,
    bias_percent=1.0,
    error_percent=3.5,
    ratio_programs=10,
    ratio_percent=2.0,
    least_us=80.0,
    most_copies_per_us=1.5,
)
ERRORS = TimeErrors(command="c", versions={"jax": "1"}, machines={"v5e": machine_digest(V5E.machine)}, kinds=(CHECKED,))


def changed(**fields: object) -> ProgramTraits:
    return dataclasses.replace(KERNEL, **fields)  # pyright: ignore[reportArgumentType]


def test_a_kind_is_who_made_it_and_what_bounds_it() -> None:
    kinds = {
        changed().kind,
        changed(hbm_share=0.9).kind,
        changed(pallas_share=0.4).kind,
        changed(pallas_share=0.4, hbm_share=0.9).kind,
    }
    assert len(kinds) == 4
    assert "" not in kinds
    assert changed(matrix_share=0.4, hbm_share=0.45).kind == ""


def test_a_program_like_those_that_were_checked_has_an_error() -> None:
    found = ERRORS.of(V5E, KERNEL)
    assert (found.percent, found.ratio_percent, found.programs, found.reason) == (3.5, 2.0, 12, "")
    assert found.words == "± 4 %"
    assert ERRORS.of(V5E, changed(copies_per_us=None)).percent == 3.5


@pytest.mark.parametrize(
    ("traits", "known"),
    [
        (changed(matrix_share=0.3, hbm_share=0.2), V5E),  # bound by neither
        (changed(time_us=39.0), V5E),  # short
        (changed(copies_per_us=3.1), V5E),  # many copies
        (changed(unlike="SparseCores"), V5E),
        (changed(pallas_share=0.0), V5E),  # no program of XLA's was checked
        (KERNEL, chip("v6e")),
        (KERNEL, dataclasses.replace(V5E, machine=dataclasses.replace(V5E.machine, dma_latency_cycles=1))),
    ],
)
def test_what_is_unlike_has_a_reason_in_place_of_a_number(traits: ProgramTraits, known: object) -> None:
    found = ERRORS.of(known, traits)  # pyright: ignore[reportArgumentType]
    assert found.percent is None
    assert found.ratio_percent is None
    assert found.reason
    assert found.reason in found.words
    assert found.cell == "?"


def test_too_few_programs_give_no_number() -> None:
    few = dataclasses.replace(ERRORS, kinds=(dataclasses.replace(CHECKED, programs=2, error_percent=None),))
    assert "2" in few.of(V5E, KERNEL).reason


def test_percentages_are_rounded_up() -> None:
    assert [percent_text(each) for each in (0.0, 0.91, 1.0, 2.99, 3.0, 3.01, 16.2)] == [
        "0.0 %",
        "1.0 %",
        "1.0 %",
        "3 %",
        "3 %",
        "4 %",
        "17 %",
    ]


def test_errors_of_ratios() -> None:
    one = TimeError(kind="k", percent=3.0, ratio_percent=1.5)
    other = TimeError(kind="k", percent=4.0, ratio_percent=2.0)
    assert ratio_error_percent(one, other, same_kernel=False) == pytest.approx(5.0)
    assert ratio_error_percent(one, other, same_kernel=True) == 2.0
    loose = dataclasses.replace(other, ratio_percent=9.0)
    assert ratio_error_percent(one, loose, same_kernel=True) == pytest.approx(5.0)
    assert ratio_error_percent(one, TimeError(reason="r"), same_kernel=True) is None


def test_a_difference_within_the_error_is_none() -> None:
    assert [ratio_verdict(ratio, 5.0) for ratio in (1.06, 1.04, 1.0, 0.96, 0.95)] == [
        "faster",
        "level",
        "level",
        "level",
        "slower",
    ]
    assert ratio_verdict(2.0, None) == "not known"
    assert ratio_verdict(1.001, 0.0) == "faster"


def test_a_file_comes_back_as_it_was_and_another_does_not() -> None:
    assert TimeErrors.from_json(ERRORS.as_json()) == ERRORS
    for text in ("{", "{}", ERRORS.as_json().replace('"schema": 1', '"schema": 9')):
        with pytest.raises(TimeErrorsError):
            TimeErrors.from_json(text)


def test_the_shipped_errors_are_those_of_the_shipped_constants() -> None:
    """Whoever changes a constant makes the file anew, with the command that stands in it."""
    shipped = shipped_time_errors()
    assert shipped.command.startswith("systolic validate ")
    for name, digest in shipped.machines.items():
        assert digest == machine_digest(chip(name).machine), name
    checked = {each.chip for each in shipped.kinds if each.error_percent is not None}
    assert checked >= set(CHIPS) - {"v4"}  # of which nobody has published a time
    assert time_error(chip("v4"), KERNEL).reason


def test_a_time_without_its_error_is_followed_by_no_reason() -> None:
    assert (NOT_SAID.words, TimeError(reason="too short").words) == ("± ?", "± ? (too short)")
    assert error_lines([NOT_SAID, TimeError(reason="too short")])[1:] == ["± ?: too short"]
