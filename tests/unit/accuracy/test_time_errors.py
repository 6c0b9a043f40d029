"""The error of a simulated time: by chip and limiting resource, and a reason where no checked program is alike."""

from __future__ import annotations

import dataclasses
import math

import pytest

from systolic.accuracy.time_error import (
    FULL_GROUP,
    NOT_SAID,
    CheckedKind,
    CheckedRatio,
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
from systolic.chips import CHIPS, Chip, chip
from systolic.report.time_errors import error_lines

V5E, V6E = chip("v5e"), chip("v6e")
KERNEL = ProgramTraits(
    pallas_share=0.9, matrix_share=0.8, hbm_share=0.6, time_us=100.0, copies_per_us=1.0, kernel="mine"
)


def checked(generation: str, kind: str, percent: float, programs: int = 12) -> CheckedKind:
    return CheckedKind(
        generation=generation,
        kind=kind,
        programs=programs,
        bias_percent=1.0,
        error_percent=percent if programs >= 3 else None,
        least_us=80.0,
        most_copies_per_us=1.5,
    )


def ratio(generation: str, kernel: str, percent: float, pairs: int = 12) -> CheckedRatio:
    return CheckedRatio(generation=generation, kernel=kernel, pairs=pairs, error_percent=percent)


NARROW, WIDE = KERNEL.kinds
CHECKED = checked("v5e", NARROW, 3.5)
ERRORS = TimeErrors(
    command="c",
    versions={"jax": "1"},
    machines={known.name: machine_digest(known.machine) for known in (V5E, V6E)},
    kinds=(CHECKED, checked("v5e", WIDE, 5.0), checked("", WIDE, 7.0), checked("", "program bound by links", 20.0)),
    ratios=(ratio("v5e", "mine", 2.0), ratio("v5e", "", 3.0), ratio("", "", 4.0)),
)


def changed(**fields: object) -> ProgramTraits:
    return dataclasses.replace(KERNEL, **fields)  # pyright: ignore[reportArgumentType]


def with_kinds(*kinds: CheckedKind) -> TimeErrors:
    return dataclasses.replace(ERRORS, kinds=kinds)


@pytest.mark.parametrize(
    ("fields", "resource"),
    [
        ({}, "matrix units"),
        ({"hbm_share": 0.9}, "HBM"),
        ({"vector_share": 0.9}, "vector units"),
        ({"hbm_share": 0.1, "matrix_share": 0.1, "copy_share": 0.9}, "small copies"),
        ({"hbm_share": 0.6, "matrix_share": 0.3, "copy_share": 0.9}, "HBM"),  # bytes explain most of the waits
        ({"sparse_share": 0.9}, "SparseCores"),
        ({"link_share": 0.5}, "links"),
    ],
)
def test_the_resource_that_is_busy_longest_limits_a_program(fields: dict[str, float], resource: str) -> None:
    assert changed(**fields).resource == resource
    assert all(kind.endswith(f"bound by {resource}") for kind in changed(**fields).kinds)
    assert len(changed(**fields).kinds) == (1 if resource in ("links", "SparseCores") else 2)


def test_a_kernel_and_a_program_of_xla_are_of_two_kinds() -> None:
    assert KERNEL.kinds[0] != changed(pallas_share=0.4).kinds[0]
    assert KERNEL.kinds[1] == changed(pallas_share=0.4).kinds[1]


def test_a_program_like_those_that_were_checked_has_an_error() -> None:
    error = ERRORS.of(V5E, KERNEL)
    assert (error.percent, error.ratio_percent, error.programs, error.reason) == (3.5, 2.0, 12, "")
    assert error.kind == f"{NARROW} on v5e"
    assert error.words == "± 4 %"
    assert ERRORS.of(V5E, changed(copies_per_us=None)).percent == 3.5


@pytest.mark.parametrize(
    ("traits", "known", "percent", "ratio_percent"),
    [
        (changed(pallas_share=0.0, kernel=""), V5E, 5.0, None),  # no program of XLA's was checked
        (KERNEL, V6E, 7.0, 4.0),  # none on this chip
        (changed(kernel="another"), V5E, 3.5, 3.0),
    ],
)
def test_a_wider_group_counts_where_the_narrow_one_is_empty(
    traits: ProgramTraits, known: Chip, percent: float, ratio_percent: float | None
) -> None:
    error = ERRORS.of(known, traits)
    assert (error.percent, error.ratio_percent) == (percent, ratio_percent)


def test_a_group_of_few_programs_counts_only_where_no_other_is_full() -> None:
    few = checked("v5e", NARROW, 9.0, programs=FULL_GROUP - 1)
    assert with_kinds(few, checked("v5e", WIDE, 5.0)).of(V5E, KERNEL).percent == 5.0
    assert with_kinds(few, checked("v5e", WIDE, 5.0, programs=5)).of(V5E, KERNEL).percent == 9.0


def test_waits_for_links_have_the_error_of_links() -> None:
    assert ERRORS.of(V5E, changed(link_share=0.7)).percent == 20.0
    error = ERRORS.of(V5E, changed(link_share=0.25))
    assert error.percent == pytest.approx(math.hypot(0.75 * 3.5, 0.25 * 20.0), abs=0.01)
    assert error.ratio_percent is None


@pytest.mark.parametrize(
    ("traits", "known"),
    [
        (changed(time_us=39.0), V5E),  # short
        (changed(copies_per_us=3.1), V5E),  # many copies
        (changed(unlike="copies to the host"), V5E),
        (changed(vector_share=0.9), V5E),  # no program that vector units bound was checked
        (KERNEL, chip("v4")),
        (KERNEL, dataclasses.replace(V5E, machine=dataclasses.replace(V5E.machine, dma_latency_cycles=1))),
    ],
)
def test_what_is_unlike_has_a_reason_in_place_of_a_number(traits: ProgramTraits, known: Chip) -> None:
    error = ERRORS.of(known, traits)
    assert error.percent is None
    assert error.ratio_percent is None
    assert error.reason
    assert error.reason in error.words
    assert error.cell == "?"


def test_a_long_program_is_never_short() -> None:
    longer = with_kinds(dataclasses.replace(CHECKED, least_us=60_000.0))
    assert longer.of(V5E, changed(time_us=120.0)).percent == 3.5
    assert longer.of(V5E, changed(time_us=90.0)).percent is None


def test_too_few_programs_give_no_number() -> None:
    assert "2" in with_kinds(checked("v5e", NARROW, 1.0, programs=2)).of(V5E, KERNEL).reason


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
    for text in ("{", "{}", ERRORS.as_json().replace('"schema": 2', '"schema": 9')):
        with pytest.raises(TimeErrorsError):
            TimeErrors.from_json(text)


def test_the_shipped_errors_are_those_of_the_shipped_constants() -> None:
    """Whoever changes a constant makes the file again, with the command in it."""
    shipped = shipped_time_errors()
    assert shipped.command.startswith("systolic validate ")
    for name, digest in shipped.machines.items():
        assert digest == machine_digest(chip(name).machine), name
    simulated = {name for name, known in CHIPS.items() if known.links is not None}
    assert set(shipped.machines) >= simulated - {"v4"}  # of which nobody has published a time
    for name in simulated - {"v4"}:
        for fields in ({}, {"hbm_share": 0.9}, {"pallas_share": 0.0}):
            assert time_error(chip(name), changed(time_us=1e4, **fields)).percent is not None, (name, fields)
    assert time_error(chip("v4"), KERNEL).reason


def test_a_time_without_its_error_is_followed_by_no_reason() -> None:
    assert (NOT_SAID.words, TimeError(reason="too short").words) == ("± ?", "± ? (too short)")
    assert error_lines([NOT_SAID, TimeError(reason="too short")])[1:] == ["± ?: too short"]
