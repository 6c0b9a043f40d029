"""A wrong call of a named function ends with exit code 2 before any worker starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import systolic.compiler.pool
from systolic.cli import main
from systolic.compiler import NamedFunction, NamedFunctionError, check_named_call
from systolic.compiler.named_calls import explained_call

KERNELS = """
import functools, os, jax
os._exit(9)  # nothing of this may run here

@functools.partial(jax.jit, static_argnames=("tile_m",))
def mine(x, y, *, tile_m=128):
    return x @ y

def blocked(x, *, block):
    return x

def anything(x, *rest, **keywords):
    return x

def wrapped(f):
    return lambda x: f(x, x)

@wrapped
def decorated(x, y):
    return x

if os.environ.get("A"):
    def twice(x): ...
else:
    def twice(x, y): ...
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(systolic.compiler.pool.WorkerPool, "submit", started)
    file = tmp_path / "kernels.py"
    file.write_text(KERNELS)
    return str(file)


@pytest.mark.parametrize("command", ["simulate", "explain", "check"])
@pytest.mark.parametrize(
    ("function", "rest", "words"),
    [
        ("mine", (), "mine(x, y, *, tile_m=128): y is missing: add --arg"),
        ("mine", ("--arg", "f32[8]", "--arg", "f32[8]"), "takes at most 2 arguments, and 3 are given"),
        ("mine", ("--arg", "f32[8]", "--param", "tile_n=8"), "parameter 'tile_n' is unknown; did you mean tile_m?"),
        ("mine", ("--arg", "f32[8]", "--param", "x=8"), "x is given twice, as argument 1 and by name"),
        ("mine", ("--arg", "f33[8]"), "'f33' is not an element type"),
        ("blocked", (), "block is missing: add --param block=VALUE"),
        ("blocked", ("--param", "block"), "'block' is not a parameter: write NAME=VALUE"),
    ],
)
def test_a_wrong_call_ends_with_2_before_any_job(
    kernels: str, capfd: pytest.CaptureFixture[str], command: str, function: str, rest: tuple[str, ...], words: str
) -> None:
    assert main([command, f"{kernels}:{function}", "--arg", "f32[8,128]", *rest]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert words in err


def test_tuned_parameters_are_checked_too(kernels: str, capfd: pytest.CaptureFixture[str]) -> None:
    call = ["tune", f"{kernels}:mine", "--arg", "f32[8,128]", "--arg", "f32[128,128]", "--over", "tile_n=8,16"]
    assert main(call) == 2
    assert "parameter 'tile_n' is unknown; did you mean tile_m?" in capfd.readouterr().err


@pytest.mark.parametrize(("function", "arguments"), [("anything", 3), ("decorated", 1), ("twice", 1), ("twice", 2)])
def test_a_call_that_only_the_import_can_judge_is_left_to_the_worker(
    kernels: str, function: str, arguments: int
) -> None:
    check_named_call(NamedFunction(f"{kernels}:{function}"), arguments)


def test_the_worker_names_what_the_source_did_not_show() -> None:
    def loaded(x: int, y: int) -> int:
        return x + y

    with (
        pytest.raises(NamedFunctionError, match="called with 1 arguments: missing a required argument: 'y'"),
        explained_call(NamedFunction("k.py:loaded"), loaded, [1]),
    ):
        loaded(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unsupported operand"), explained_call(NamedFunction("k:f"), loaded, [1, "a"]):
        loaded(1, "a")  # type: ignore[arg-type]
