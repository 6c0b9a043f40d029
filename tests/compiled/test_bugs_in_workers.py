"""Systolic's own code fails in a worker: library and command line say that it is a bug, and make no finding of it.

What is planted breaks a module of systolic where the user's file is imported, which is in the worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.cli import main
from systolic.support.bugs import SystolicBug

pytestmark = pytest.mark.fresh_workers  # what is planted stays in a worker

X = jax.ShapeDtypeStruct((256, 256), jnp.float32)
TEXT = """
import jax.numpy as jnp
import {module}

{module}.{name} = None

def mine(x):
    return jnp.tanh(x) + 1
"""
# A job of check each, and those of the other commands: (command, module, what is gone, where that shows).
PLANTED = [
    ("check", "systolic.checking.static", "calls_on_grids", "checking/static.py"),
    ("check", "systolic.compat", "attached_tpu_chips", ""),  # that nobody needs here
    ("check", "systolic.checking.running", "scaled_arguments", "checking/running.py"),
    ("check", "systolic.checking.virtual_devices", "abstract_mesh_in_all_threads", "checking/virtual_devices.py"),
    ("check", "systolic.compiler.driver", "_compile", "compiler/driver.py"),
    ("simulate", "systolic.timing.compiled", "prepare_listings", "timing/compiled.py"),
    ("explain", "systolic.explaining.function_analysis", "calls_on_grids", "explaining/function_analysis.py"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("command", "module", "name", "place"), PLANTED)
def test_on_the_command_line(
    command: str, module: str, name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path / "cache"))
    Path("planted.py").write_text(TEXT.format(module=module, name=name))
    arguments = [command, "planted.py:mine", "--arg", "f32[256,256]", "--chip", "v5e", "-q"]
    code = main([*arguments, "--json", "-"])
    out, err = capfd.readouterr()
    if not place:
        assert code == 0
        assert [each["rule"] for each in json.loads(out)["rows"][0]["findings"]] == ["no-kernel"]
        return
    assert (code, out) == (70, "")
    assert err.startswith("systolic: this is a bug of systolic, not of your code: TypeError: ")
    assert f"systolic/{place}:" in err.splitlines()[0]
    assert "Traceback (most recent call last)" in err


def breaking(module: str, name: str) -> Callable[..., Any]:
    """A function that breaks systolic while it is traced."""

    def fn(x: jax.Array) -> jax.Array:
        import importlib

        setattr(importlib.import_module(module), name, None)
        return x + 1

    return fn


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("call", "module", "name"),
    [
        (systolic.check, "systolic.checking.static", "calls_on_grids"),
        (systolic.check, "systolic.checking.runs", "Judge"),
        (systolic.simulate, "systolic.timing.compiled", "prepare_listings"),
        (systolic.explain, "systolic.explaining.function_analysis", "calls_on_grids"),
    ],
)
def test_in_the_library(call: Callable[..., Any], module: str, name: str) -> None:
    with pytest.raises(SystolicBug, match="this is a bug of systolic") as caught:
        call(breaking(module, name), X, chip="v5e")
    assert isinstance(caught.value.__cause__, TypeError)
    assert f"systolic/{module.removeprefix('systolic.').replace('.', '/')}.py" in caught.value.summary
    assert "Traceback" in caught.value.details
