"""The rules of `systolic check` and the compiler on random kernels; see benchmarks/check_configurations.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from systolic.chips import CHIPS
from systolic.compiler import WorkerPool, submit_compilation
from systolic.timing import target_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COUNT, SEED = 24, 4


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import check_configurations

        yield check_configurations
        for name in ("check_configurations", "configuration_kernels"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def rows(benchmark: ModuleType) -> list[dict[str, Any]]:
    drawn = list(benchmark.configurations(SEED, COUNT, tuple(CHIPS)))
    with WorkerPool(time_limit_s=60) as pool:
        jobs = []
        for one in drawn:
            fn, args = benchmark.kernel(one)
            job = submit_compilation(pool, fn, args, target_of(CHIPS[one.chip]), cache=None)
            jobs.append((one, *benchmark.judged(one, CHIPS[one.chip]), job))
        return [benchmark.row_of(*each) for each in jobs]


@pytest.mark.exhaustive
def test_the_rules_foretell_what_the_compiler_says(rows: list[dict[str, Any]]) -> None:
    assert {row["compiler"] for row in rows} == {"accepted", "refused"}
    assert [row for row in rows if row["compiler"] != row["foretold"]] == []


def test_vmem_is_what_the_compiler_counts(benchmark: ModuleType, rows: list[dict[str, Any]]) -> None:
    found = benchmark.figures(rows)
    assert found["vmem_compared"] > 5
    assert found["vmem_added_to"]  # registers that do not fit, of which the rules know nothing
    assert [row for row in rows if row["vmem_estimate"] != row["vmem_reported"]] == []
