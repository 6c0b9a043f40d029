"""The fixtures of `systolic.pytest`, in test suites of their own whose compiler is a number."""

from __future__ import annotations

import json
import math
import multiprocessing
from pathlib import Path

import pytest

from systolic.pytest import KeptTime, KernelSlowerError, NoTimeKeptError, TimesFile

pytest_plugins = ["pytester"]

CONFTEST = """
import json
from pathlib import Path
from types import SimpleNamespace
import pytest
import systolic.pytest
pytest_plugins = ["systolic.pytest"]

@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch):
    def simulate(fn, *args, chip):
        time_us, copy = fn(*args)
        return SimpleNamespace(chip=chip, time_us=time_us, stalls={"copy": copy / time_us, "matrix": 1 / time_us})
    monkeypatch.setattr(systolic.pytest, "simulate", simulate)
"""
TEST = """
def test_mine(systolic_time):
    assert systolic_time(lambda: ({time_us}, {copy_us}), chip=["v5e", "v6e"], tolerance=0.02).time_us == {time_us}
    systolic_time(lambda: (1.0, 0.0), name="other")
"""


def run(pytester: pytest.Pytester, time_us: float, copy_us: float = 1.0, *options: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_mine=TEST.format(time_us=time_us, copy_us=copy_us))
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)


def test_a_time_is_kept_and_compared(pytester: pytest.Pytester) -> None:
    run(pytester, 10.0).assert_outcomes(failed=1)  # nothing is kept yet
    run(pytester, 10.0, 1.0, "--systolic-update").assert_outcomes(passed=1)
    document = json.loads(Path("systolic_times.json").read_text())
    assert list(document["times"]) == [f"test_mine.py::test_mine {name}" for name in ("other v5e", "v5e", "v6e")]
    run(pytester, 10.0).assert_outcomes(passed=1)
    run(pytester, 10.19).assert_outcomes(passed=1)
    run(pytester, 5.0).assert_outcomes(passed=1)


def test_a_slower_kernel_fails_with_the_stall_that_grew(pytester: pytest.Pytester) -> None:
    run(pytester, 10.0, 1.0, "--systolic-update").assert_outcomes(passed=1)
    result = run(pytester, 12.5, 3.5)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*KernelSlowerError*25.0% slower*'copy'*2.50*"])
    run(pytester, 12.5, 3.5, "--systolic-update").assert_outcomes(passed=1)
    run(pytester, 12.5, 3.5).assert_outcomes(passed=1)


def test_other_versions_are_named(pytester: pytest.Pytester) -> None:
    run(pytester, 10.0, 1.0, "--systolic-update").assert_outcomes(passed=1)
    file = Path("systolic_times.json")
    document = json.loads(file.read_text())
    for each in document["times"].values():
        each["versions"]["jax"] = "0.0.1"
    file.write_text(json.dumps(document))
    result = run(pytester, 20.0)
    result.stdout.fnmatch_lines(["*jax 0.0.1 → *"])


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"format": 2}', '{"format": true, "times": {}}', '{"format": 1, "times": {"a": {"time_us": "x"}}}'],
)
def test_a_file_that_is_none_is_said_to_be(pytester: pytest.Pytester, text: str) -> None:
    pytester.path.joinpath("systolic_times.json").write_text(text)
    result = run(pytester, 10.0)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*NoTimeKeptError*systolic_times.json*"])


@pytest.mark.parametrize("value", ["-5", "0", "5e-324", "1e308", "1e999", "NaN", '"10.0"', "true", "null"])
@pytest.mark.parametrize("field", ["time_us", "stalls_us"])
def test_no_kernel_passes_by_a_time_that_is_none(tmp_path: Path, field: str, value: str) -> None:
    times = TimesFile(file=tmp_path / "times.json")
    now = KeptTime(time_us=10.0, stalls_us={"copy": 1.0}, versions={})
    times.keep("a", now)
    text = times.file.read_text()
    before = {"time_us": '"time_us": 10.0', "stalls_us": '"copy": 1.0'}[field]
    changed = text.replace(before, f"{before.split(':')[0]}: {value}")
    assert changed != text
    times.file.write_text(changed)
    if (field, value) == ("stalls_us", "0"):
        times.compare("a", now, 0.02)
        return
    place = {"time_us": "times.a.time_us", "stalls_us": "times.a.stalls_us.copy"}[field]
    with pytest.raises(NoTimeKeptError, match=rf"{place}|NaN is not a number") as caught:
        times.compare("a", now, 0.02)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(NoTimeKeptError):
        times.keep("b", now)
    assert times.file.read_text() == changed


@pytest.mark.parametrize("time_us", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_time_is_neither_kept_nor_compared(tmp_path: Path, time_us: float) -> None:
    times = TimesFile(file=tmp_path / "times.json")
    times.keep("a", KeptTime(time_us=10.0, stalls_us={}, versions={}))
    wrong = KeptTime(time_us=time_us, stalls_us={}, versions={})
    with pytest.raises(NoTimeKeptError, match="no simulated time of a: time_us"):
        times.keep("a", wrong)
    with pytest.raises(NoTimeKeptError, match="no simulated time of a: time_us"):
        times.compare("a", wrong, 0.02)
    with pytest.raises(KernelSlowerError):
        times.compare("a", KeptTime(time_us=10.0, stalls_us={}, versions={}), math.nan)


def _keep_all(file: Path, process: int) -> None:
    for number in range(20):
        time = KeptTime(time_us=1.0 + number, stalls_us={}, versions={})
        TimesFile(file=file).keep(f"{process} {number}", time)


def test_processes_that_update_at_once_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    context = multiprocessing.get_context("forkserver")  # JAX has threads here, and imports once there
    context.set_forkserver_preload(["systolic.pytest"])
    processes = [context.Process(target=_keep_all, args=(file, process)) for process in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    times = TimesFile(file=file).read()
    assert {name: time.time_us for name, time in times.items()} == {
        f"{process} {number}": 1.0 + number for process in range(4) for number in range(20)
    }
    assert list(tmp_path.iterdir()) == [file]


def test_a_check_that_finds_something_fails_the_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["systolic.pytest"]')
    pytester.makepyfile("""
        import pytest
        import systolic.pytest
        from systolic.checking import CheckFailedError, CheckReport, Finding
        from systolic.checking.report import RunSummary

        @pytest.mark.parametrize("grade, warnings, fails", [
            ("error", False, True), ("warning", False, False), ("warning", True, True), ("note", True, False)])
        def test_grades(systolic_check, monkeypatch, grade, warnings, fails):
            found = Finding(rule="race", grade=grade, value="a", limit="b", fix="c")
            report = CheckReport(function="f", arguments=(), chips=("v5e",), versions={}, findings=(found,), kernels=(),
                                 verdicts=(), run=RunSummary(ran=True))
            monkeypatch.setattr(systolic.pytest, "check", lambda fn, *args, **options: report)
            if fails:
                with pytest.raises(CheckFailedError):
                    systolic_check(abs, warnings=warnings)
            else:
                assert systolic_check(abs, chip="v6e", warnings=warnings) is report
    """)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=4)
