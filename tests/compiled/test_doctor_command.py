"""`systolic doctor` proves that the compiler works by compiling, and says why where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from systolic.compiler import CompilerCrash, WorkerPool
from systolic.installation import installation

pytestmark = pytest.mark.fresh_workers


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SYSTOLIC_STORE", str(tmp_path / "trials.sqlite"))


@pytest.mark.exhaustive
def test_a_small_product_is_compiled_simulated_and_interpreted(tmp_path: Path) -> None:
    found = installation()
    parts = {each.name: each for each in found.parts}
    assert parts["compiler"].state == parts["interpret mode"].state == "works"
    assert "simulated: " in parts["compiler"].about
    assert found.ok
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_crashes_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*args: object, **kwargs: object) -> None:
        raise CompilerCrash(label="a product", exit_code=None, signal_name="SIGABRT", stderr_tail="")

    monkeypatch.setattr(WorkerPool, "submit", crash)
    found = installation()
    parts = {each.name: each for each in found.parts}
    assert parts["compiler"].state == "broken"
    assert "SIGABRT" in parts["compiler"].about
    assert not found.ok
