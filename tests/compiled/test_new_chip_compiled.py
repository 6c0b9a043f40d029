"""A new chip, added as CONTRIBUTING says, and as a record that no file has: everything that compiles works with it."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.chips import V6E
from systolic.lessons import LESSONS

SOURCE = Path(systolic.__file__).parent
EXAMPLES = Path(__file__).parents[2] / "examples"
PRODUCT = f"{EXAMPLES / 'slow_products.py'}:product"
ARGUMENTS = ("--arg", "bf16[512,512]", "--arg", "bf16[512,512]")
V8X = dataclasses.replace(V6E, name="v8x", aliases=(), title="TPU v8x")
SHAPE = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)


# --- the recipe ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one more chip: a file, and its name in the import and the tuple."""
    copy = tmp_path_factory.mktemp("house")
    shutil.copytree(SOURCE, copy / "systolic", ignore=shutil.ignore_patterns("__pycache__"))
    chips = copy / "systolic" / "chips"
    text = (chips / "v6e.py").read_text()
    for old, new in (("V6E = ", "V8X = "), ('"v6e"', '"v8x"'), ('("trillium",)', '("graphite",)')):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (chips / "v8x.py").write_text(text)
    listed = (chips / "__init__.py").read_text()
    for old, new in (("import V7X\n", "import V7X\nfrom systolic.chips.v8x import V8X\n"), ("V7X)", "V7X, V8X)")):
        assert listed.count(old) == 1
        listed = listed.replace(old, new)
    (chips / "__init__.py").write_text(listed)
    return copy


def told(house: Path, *command: str) -> dict[str, object]:
    """Return the JSON output of a command of that copy."""
    done = subprocess.run(
        [sys.executable, "-m", "systolic", *command, "--json", "-", "--quiet"],
        capture_output=True,
        text=True,
        # One of the commands compiles the copy's files for all.
        env={**os.environ, "PYTHONPATH": str(house), "PYTHONDONTWRITEBYTECODE": "", "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


QUICK_COMMANDS = [
    ("chips", "v8x"),
    ("plan", "1024,1024,1024", "--chip", "graphite"),
    ("simulate", PRODUCT, *ARGUMENTS, "--chip", "v8x"),
    ("lessons", "roofline", "--chip", "v8x"),
]
OTHER_COMMANDS = [
    ("check", PRODUCT, *ARGUMENTS, "--chip", "v8x"),
    ("simulate", "jax.numpy:matmul", *ARGUMENTS, "--chip", "v8x,v6e"),
    ("explain", PRODUCT, *ARGUMENTS, "--chip", "v8x", "--tries", "2"),
    ("bench", "--suite", "square", "--only", "512", "--chip", "v8x"),
    ("tune", "512,512,512", "--chip", "v8x", "--trials", "2"),
    ("ladder", "v5", "--sizes", "512", "--chip", "v8x"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "command",
    [*QUICK_COMMANDS, *OTHER_COMMANDS],
    ids=lambda command: " ".join((command[0], command[-1])),
)
def test_a_file_and_two_words(house: Path, command: tuple[str, ...]) -> None:
    found = told(house, *command)
    assert "v8x" in json.dumps(found["rows"])


# --- a record --------------------------------------------------------------------------------------------------------


def own_product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return systolic.matmul(lhs, rhs, chip=V8X)


def test_a_record_has_the_times_of_what_it_copies() -> None:
    mine, its = (systolic.simulate(jnp.matmul, SHAPE, SHAPE, chip=each) for each in (V8X, V6E))
    assert (mine.chip, mine.cycles) == ("v8x", its.cycles)
    slower = dataclasses.replace(V8X, machine=dataclasses.replace(V8X.machine, hbm_bytes_per_s=2e11))
    assert systolic.simulate(jnp.matmul, SHAPE, SHAPE, chip=slower).cycles > 1.5 * its.cycles


@pytest.mark.exhaustive
def test_a_record_is_checked_explained_and_multiplied_for() -> None:
    checked = systolic.check(own_product, SHAPE, SHAPE, chip=V8X, run=False)
    assert checked.ok, checked.findings
    assert [verdict.accepted for verdict in checked.verdicts] == [True]
    explained = systolic.explain(own_product, SHAPE, SHAPE, chip=V8X, tries=0)
    assert explained.chip == "v8x"


# The other lessons take long, and find chips in the same way: `make test-slow` runs them.
QUICK = ("block_matmul", "roofline")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in LESSONS]
)
def test_every_lesson(name: str) -> None:
    lesson = importlib.import_module(LESSONS[name].module).lesson([V8X])
    assert lesson.ok
    assert {row.get("chip") for row in lesson.rows} <= {"v8x", None}
