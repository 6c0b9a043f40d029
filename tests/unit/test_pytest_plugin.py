"""The fixtures of `systolic.pytest`, in test suites of their own whose compiler is a number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "times": {"a": {"time_us": "x"}}}'])
def test_a_file_that_is_none_is_said_to_be(pytester: pytest.Pytester, text: str) -> None:
    pytester.path.joinpath("systolic_times.json").write_text(text)
    result = run(pytester, 10.0)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*NoTimeKeptError*systolic_times.json*"])


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
