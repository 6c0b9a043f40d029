"""Fixtures of pytest that check kernels and watch their simulated times, on machines without a TPU.

In a `conftest.py`:

    pytest_plugins = ["systolic.pytest"]

and in a test:

    def test_attention(systolic_check, systolic_time):
        systolic_check(attention, q, k, v, chip="v6e", reference=plain_attention)
        systolic_time(attention, q, k, v, chip="v6e", tolerance=0.02)

Times are compared with `systolic_times.json` next to the test's file, which belongs in version control;
`pytest --systolic-update` writes it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from systolic.checking import CheckReport, check
from systolic.chips import Chip
from systolic.simulator import SimulatedRun
from systolic.support.locked_file import locked_file
from systolic.support.ranges import Amount, Time
from systolic.support.regular_file import read_regular
from systolic.support.untrusted import UntrustedError, read_json, structured
from systolic.support.versions import versions
from systolic.support.whole_file import whole_file
from systolic.timing import simulate

TIMES_FILE = "systolic_times.json"
FORMAT = 1


class KernelSlowerError(AssertionError):
    """A function's simulated time exceeds the kept time by more than the tolerance."""


class NoTimeKeptError(LookupError):
    """There is no time to compare with, or the file of times cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTime:
    """A simulated time, as the file has it."""

    time_us: Time
    stalls_us: dict[str, Amount]  # waiting time by cause
    versions: dict[str, str]  # of the packages that compiled and simulated

    @classmethod
    def of(cls, run: SimulatedRun) -> KeptTime:
        """Return the kept part of a run."""
        installed = {name: text for name, text in versions().items() if text is not None and name != "python"}
        stalls = {cause: share * run.time_us for cause, share in run.stalls.items()}
        return cls(time_us=run.time_us, stalls_us=stalls, versions=installed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The document in a file of times, by the name of the test."""

    format: int
    times: dict[str, KeptTime]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesFile:
    """The times of a folder of tests."""

    file: Path

    def read(self) -> dict[str, KeptTime]:
        """Return the times by the name of the test; raise NoTimeKeptError if the file cannot be read."""
        try:
            content = structured(read_json(read_regular(self.file)), _Content)
            if content.format != FORMAT:
                raise UntrustedError(f"its format is not {FORMAT} but {content.format}")
            return content.times
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise NoTimeKeptError(f"cannot read {self.file}: {error.strerror}") from error
        except UntrustedError as error:
            raise NoTimeKeptError(f"{self.file} is not a file of simulated times: {error}") from error

    def keep(self, name: str, time: KeptTime) -> None:
        """Add a time, or replace it. Concurrent processes take turns.

        Raises:
          NoTimeKeptError: the file cannot be read or written, or the time is not a number above zero.
        """
        _check(name, time)
        try:
            with locked_file(self.file), whole_file(self.file) as file:
                times = {**self.read(), name: time}
                rows = {test: dataclasses.asdict(times[test]) for test in sorted(times)}
                file.write_text(json.dumps({"format": FORMAT, "times": rows}, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise NoTimeKeptError(f"cannot write {self.file}: {error.strerror}") from error

    def compare(self, name: str, now: KeptTime, tolerance: float) -> None:
        """Compare a time with the kept one.

        Raises:
          KernelSlowerError: it is longer by more than `tolerance`.
          NoTimeKeptError: none is kept, or the new one is no time.
        """
        before = self.read().get(name)
        if before is None:
            raise NoTimeKeptError(
                f"{self.file} has no time of {name}: run pytest with --systolic-update, and commit it"
            )
        _check(name, now)
        slower = now.time_us / before.time_us - 1
        if not slower <= tolerance:  # also of a tolerance that is NaN
            raise KernelSlowerError(_slower(name, before, now, slower, tolerance))


def _check(name: str, time: KeptTime) -> None:
    try:
        structured(dataclasses.asdict(time), KeptTime)
    except UntrustedError as error:
        raise NoTimeKeptError(f"no simulated time of {name}: {error}") from error


def _slower(name: str, before: KeptTime, now: KeptTime, slower: float, tolerance: float) -> str:
    grown = {
        cause: now.stalls_us.get(cause, 0.0) - before.stalls_us.get(cause, 0.0)
        for cause in {*before.stalls_us, *now.stalls_us}
    }
    cause = max(grown, key=grown.__getitem__, default=None)
    text = (
        f"{name}: simulated {before.time_us:,.2f} → {now.time_us:,.2f} µs, {slower:.1%} slower, where "
        f"{tolerance:.1%} is allowed"
    )
    if cause is not None and grown[cause] > 0:
        text += f"; what grew most is waiting by cause {cause!r}: by {grown[cause]:,.2f} µs"
    others = [
        f"{package} {before.versions.get(package)} → {now.versions.get(package)}"
        for package in sorted({*before.versions, *now.versions})
        if before.versions.get(package) != now.versions.get(package)
    ]
    if others:
        text += f"; it was kept with other versions: {', '.join(others)}"
    return f"{text}. If that is meant, run pytest with --systolic-update"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("systolic", "kernels for TPUs")
    group.addoption(
        "--systolic-update", action="store_true", help=f"Keep the simulated times of this run in {TIMES_FILE}."
    )


@pytest.fixture
def systolic_check() -> Callable[..., CheckReport]:
    """Check a function as `systolic.check` does, and fail the test at a finding of grade error.

    `systolic_check(fn, *args, chip="v6e", reference=plain, warnings=False, …)` returns the report; with
    `warnings=True` the test fails at warnings, too.
    """

    def checked(fn: Callable[..., Any], *args: Any, warnings: bool = False, **options: Any) -> CheckReport:
        return check(fn, *args, **options).raise_on_error(warnings=warnings)

    return checked


@pytest.fixture
def systolic_time(request: pytest.FixtureRequest) -> Callable[..., SimulatedRun]:
    """Simulate a function, and fail the test if it takes longer than its kept time.

    `systolic_time(fn, *args, chip="v6e", tolerance=0.02, name="")` returns the run. The time's key is the test, the
    chip and, if a test has several, `name`. `chip` may be several.
    """
    times = TimesFile(file=request.path.parent / TIMES_FILE)
    update = request.config.getoption("--systolic-update")

    def timed(
        fn: Callable[..., Any],
        *args: Any,
        chip: str | Chip | Sequence[str | Chip] = "v5e",
        tolerance: float = 0.02,
        name: str = "",
        **options: Any,
    ) -> SimulatedRun:
        several = [chip] if isinstance(chip, str | Chip) else list(chip)
        runs = [simulate(fn, *args, chip=target, **options) for target in several]
        for run in runs:
            key = " ".join(filter(None, (f"{request.path.name}::{request.node.name}", name, run.chip)))
            if update:
                times.keep(key, KeptTime.of(run))
            else:
                times.compare(key, KeptTime.of(run), tolerance)
        return runs[0]

    return timed
