"""Lessons can be read without importing JAX."""

import subprocess
import sys

import pytest

SEEN = "import sys; print([name for name in sys.modules if name.split('.')[0] in ('jax', 'jaxlib', 'libtpu')])"


@pytest.mark.parametrize(
    "module",
    ["systolic", "systolic.lessons", "systolic.lessons.ladder", "systolic.lessons.roofline", "systolic.bench.accuracy"],
)
def test_imports_neither_jax_nor_libtpu(module: str) -> None:
    ran = subprocess.run([sys.executable, "-c", f"import {module}; {SEEN}"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_roofline_lesson_needs_no_jax() -> None:
    code = f"from systolic.lessons.roofline import lesson; assert lesson().ok; {SEEN}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_importing_the_rungs_starts_no_backend() -> None:
    code = (
        "from systolic.lessons.ladder import RUNGS; import importlib, jax\n"
        "[importlib.import_module(rung.module) for rung in RUNGS.values()]\n"
        "from jax.extend import backend\n"
        "jax.config.update('jax_platforms', 'none-such')\n"  # refused once a backend runs
        "print(len(RUNGS))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "8"
