"""Calibration on programs whose time is arithmetic: the halves, the search, the brackets, and the file it ends in."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from systolic.chips import Chip, MachineModel, chip
from systolic.chips.constants import ConstantsError, FittedConstants, fittable, load_constants, with_constants
from systolic.validation.calibration import (
    BRACKET,
    USUALLY_FITTED,
    Sample,
    calibrate,
    most_rounds,
    split,
)

V5E = chip("v5e")
TRUTH = {
    "hbm_bytes_per_s": 0.62e12,
    "dma_latency_cycles": 1100,
    "dma_issue_cycles": 25,
    "dma_wait_cycles": 60,
}


def chip_with(**constants: float) -> Chip:
    return replace(V5E, machine=replace(V5E.machine, **constants))  # pyright: ignore[reportArgumentType]


def arithmetic(name: str, *, steps: int, step_bytes: float, work: float, starts: int, waits: int) -> Sample:
    """A pipeline of `steps`: each computes or copies, whichever takes longer, and the core starts and awaits copies."""

    def cycles(machine: MachineModel) -> float:
        copy = step_bytes / machine.hbm_bytes_per_s * machine.clock_hz
        step = max(work, copy) + starts * machine.dma_issue_cycles + waits * machine.dma_wait_cycles
        return steps * step + 2 * machine.dma_latency_cycles

    def predict_us(model: Chip) -> float:
        return cycles(model.machine) / model.machine.clock_hz * 1e6

    return Sample(name=name, device_us=(predict_us(chip_with(**TRUTH)),), predict_us=predict_us)


def programs(count: int = 26) -> list[Sample]:
    chance = random.Random(0)
    return [
        arithmetic(
            f"{index:02d}",
            steps=round(10 ** chance.uniform(0, 4)),
            step_bytes=10 ** chance.uniform(4.5, 6.5),
            work=10 ** chance.uniform(2, 4),
            starts=chance.choice([1, 2, 3]),
            waits=chance.choice([1, 2, 3]),
        )
        for index in range(count)
    ]


def test_halves_are_every_other_program_in_the_order_of_time() -> None:
    times = [40.0, 10.0, 30.0, 20.0, 50.0]
    samples = [Sample(name=str(time), device_us=(time,), predict_us=lambda _: 1.0) for time in times]
    fitting, checking = split(samples, V5E)
    assert [sample.name for sample in fitting] == ["10.0", "30.0", "50.0"]
    assert [sample.name for sample in checking] == ["20.0", "40.0"]
    assert split(samples[::-1], V5E) == (fitting, checking)


def test_four_planted_constants_are_found_from_half_of_the_programs() -> None:
    told: list[str] = []
    found = calibrate(programs(), V5E, done=told.append)
    fitted = {constant.name: constant for constant in found.constants}
    assert list(fitted) == list(USUALLY_FITTED)
    assert fitted["hbm_bytes_per_s"].fitted == pytest.approx(0.62e12, rel=0.01)
    assert fitted["dma_latency_cycles"].fitted == pytest.approx(1100, rel=0.05)
    assert fitted["dma_issue_cycles"].fitted == pytest.approx(25, abs=5)
    assert fitted["dma_wait_cycles"].fitted == pytest.approx(60, abs=5)
    for constant in fitted.values():
        assert constant.least <= constant.low <= constant.fitted <= constant.high <= constant.most
        assert constant.shipped == getattr(V5E.machine, constant.name)
        assert constant.fitted == getattr(found.chip.machine, constant.name)
        assert isinstance(constant.fitted, int) == constant.name.endswith("_cycles")
    assert len(told) == found.rounds <= most_rounds(len(fitted))


def test_one_time_that_nothing_explains_changes_little() -> None:
    samples = programs()
    fitting, _ = split(samples, V5E)
    odd = replace(fitting[0], device_us=(3 * fitting[0].device_us[0],))
    found = calibrate([odd if sample.name == odd.name else sample for sample in samples], V5E)
    assert odd.name in found.fitted_on  # it stays the same half: the shortest times are the first
    assert found.chip.machine.hbm_bytes_per_s == pytest.approx(0.62e12, rel=0.02)
    assert found.chip.machine.dma_wait_cycles == pytest.approx(60, abs=8)


def test_a_program_counts_once_however_often_it_was_timed() -> None:
    def predict_us(model: Chip) -> float:
        return float(model.machine.dma_latency_cycles)

    # Two programs to fit, which want 600 and 1000: with a row each or thirty, they pull alike.
    for rows in (1, 30):
        wanted = [(600.0,) * rows, (800.0,), (1000.0,), (1200.0,)]
        samples = [Sample(name=str(times), device_us=times, predict_us=predict_us) for times in wanted]
        found = calibrate(samples, V5E, ("dma_latency_cycles",))
        # Anything between is as good: log(x / 600) + log(1000 / x) does not depend on x.
        assert found.objective_after == pytest.approx(math.log(1000 / 600) / 2, rel=1e-6)


def test_a_bracket_ends_where_the_fit_gets_worse() -> None:
    samples = [replace(sample, device_us=(sample.device_us[0] * factor,)) for sample, factor in zip(
        programs(), [1.0, 1.0, 1.04, 1.04, 0.97, 0.97] * 5, strict=False
    )]  # fmt: skip
    found = calibrate(samples, V5E, ("hbm_bytes_per_s",))
    (constant,) = found.constants
    fitting, _ = split(samples, V5E)

    def objective(value: float) -> float:
        model = chip_with(hbm_bytes_per_s=value)
        return sum(abs(math.log(sample.predict_us(model) / sample.device_us[0])) for sample in fitting) / len(fitting)

    best = objective(constant.fitted)
    assert best == pytest.approx(found.objective_after)
    for edge, beyond in ((constant.low, 0.97 * constant.low), (constant.high, 1.03 * constant.high)):
        assert objective(edge) <= best * (1 + BRACKET) * (1 + 1e-9)
        assert objective(beyond) > best * (1 + BRACKET)


def test_a_constant_that_the_programs_do_not_feel_is_said_to_be_undetermined() -> None:
    found = calibrate(programs(8), V5E, ("hbm_bytes_per_s", "result_latency_cycles"))
    bandwidth, latency = found.constants
    assert bandwidth.determined
    assert not latency.determined
    assert (latency.low, latency.high) == (latency.least, latency.most)


def test_a_perfect_fit_has_a_bracket_all_the_same() -> None:
    nearly = chip_with(**{**TRUTH, "dma_latency_cycles": 740})
    found = calibrate(programs(4), nearly, ("dma_latency_cycles",))
    (constant,) = found.constants
    assert found.objective_after < 1e-4
    assert constant.low < constant.fitted < constant.high


@pytest.mark.parametrize("name", ["v4", "v5e", "v5p", "v6e", "v7x"])
def test_shipped_constants_are_within_the_bounds(name: str) -> None:
    known = chip(name)
    for constant, bounds in fittable(known).items():
        assert bounds.least <= getattr(known.machine, constant) <= bounds.most


def fitted(**constants: float) -> FittedConstants:
    return FittedConstants(chip="v5e", constants=constants, fitted_on=(), source="mine")


def test_constants_replace_their_own_and_nothing_else() -> None:
    changed = with_constants(V5E, fitted(hbm_bytes_per_s=5e11, dma_issue_cycles=0))
    assert changed.machine == replace(V5E.machine, hbm_bytes_per_s=5e11, dma_issue_cycles=0)
    assert changed.sources["machine.hbm_bytes_per_s"] == "mine"
    assert changed.sources["machine.clock_hz"] == V5E.sources["machine.clock_hz"]


@pytest.mark.parametrize(
    ("constants", "said"),
    [
        ({"mxu_count": 8}, "'mxu_count' is unknown; .*choose from clock_hz"),
        ({"hbm_bytes_per_s": 0}, "hbm_bytes_per_s=0 has to be above 0"),
        ({"dma_latency_cycles": -1}, "dma_latency_cycles=-1: cycles are whole numbers"),
        ({"dma_latency_cycles": 7.5}, "dma_latency_cycles=7.5: cycles are whole numbers"),
        ({"clock_hz": math.nan}, "clock_hz=nan is not a number"),
        ({"clock_hz": True}, "clock_hz=True is not a number"),
        ({"clock_hz": 10**400}, "clock_hz=1000.* is not a number"),
        ({"clock_hz": -math.inf}, "clock_hz=-inf is not a number"),
        ({"clock_hz": "fast"}, "clock_hz='fast' is not a number"),
    ],
)
def test_constants_that_cannot_be_are_named(constants: dict[str, float], said: str) -> None:
    with pytest.raises(ConstantsError, match=said):
        with_constants(V5E, fitted(**constants))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON that can be read: it is nested too deep"),
        ('{"chip": "v5e", "constants": {"clock_hz": NaN}}', "is not JSON: NaN"),
        ("[]", "does not hold one JSON object"),
        ('{"chip": "v5e"}', "does not hold one JSON object"),
        ('{"chip": "v5e", "constants": {}}', "does not hold one JSON object"),
        ('{"chip": "v5e", "constants": {"clock_hz": 1e9}, "fitted_on": 3}', "fitted_on=3 is not a list"),
    ],
)
def test_files_that_hold_no_constants(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "constants.json"
    path.write_text(text)
    with pytest.raises(ConstantsError, match=said):
        load_constants(path)


def test_a_file_of_constants(tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    with pytest.raises(ConstantsError, match="cannot read"):
        load_constants(path)
    path.write_text(
        json.dumps({"chip": "v5e", "constants": {"dma_wait_cycles": 3}, "fitted_on": ["a", "b"], "more": 1})
    )
    loaded = load_constants(path)
    assert (loaded.chip, loaded.constants, loaded.fitted_on) == ("v5e", {"dma_wait_cycles": 3}, ("a", "b"))
    assert with_constants(V5E, loaded).machine.dma_wait_cycles == 3
