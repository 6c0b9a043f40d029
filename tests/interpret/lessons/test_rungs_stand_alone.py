"""The text of a rung, pasted into an empty folder, multiplies without this package: right and without a race."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from quick_compilation import QUICK_FLAGS

from systolic.lessons.ladder import RUNGS, rungs

# What a reader would write below the pasted text. All numbers are small integers, so every sum is exact in every dtype.
USE = """
import sys
sys.modules["systolic"] = None  # importing it would be an ImportError

import numpy as np
import pasted
from jax.experimental.pallas import tpu as pltpu

def right(m, k, n, dtype, races, **chosen):
    random = np.random.default_rng(m + k + n)
    lhs, rhs = (jnp.asarray(random.integers(-1, 2, shape), dtype) for shape in ((m, k), (k, n)))
    careful = pltpu.InterpretParams(uninitialized_memory="nan", detect_races=races)
    out = np.asarray(pasted.matmul(lhs, rhs, interpret=careful, **chosen))
    assert out.dtype == ("int32" if dtype == "int8" else dtype), out.dtype
    np.testing.assert_array_equal(out.astype(np.float64), np.asarray(lhs, np.float64) @ np.asarray(rhs, np.float64))

import jax.numpy as jnp
right(1, 1, 1, "float32", False, **ONE)
right(100, 70, 30, "bfloat16", True, **RAGGED)
right(256, 384, 256, "bfloat16", True, **SEVERAL)
right(256, 384, 256, "bfloat16", False, **SEVERAL)
right(256, 384, 256, "int8", False, **SEVERAL)
try:
    pasted.matmul(jnp.ones((200, 300)), jnp.ones((300, 256)), **REFUSED)
except ValueError as error:
    print("refused:", error)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", RUNGS)
def test_a_pasted_rung(name: str, tmp_path: Path) -> None:
    rung = RUNGS[name]
    chosen = {
        "whole": {"ONE": {}, "RAGGED": {}, "SEVERAL": {}, "REFUSED": {}},
        "bands": {"ONE": {"bands": 1}, "RAGGED": {"bands": 1}, "SEVERAL": {"bands": 2}, "REFUSED": {"bands": 3}},
        "blocks": {
            "ONE": {"bm": 1, "bk": 1, "bn": 1},
            "RAGGED": {"bm": 100, "bk": 70, "bn": 30},
            "SEVERAL": {"bm": 128, "bk": 128, "bn": 128},
            "REFUSED": {"bm": 128, "bk": 128, "bn": 128},
        },
    }[rung.cut]
    source = Path(rungs.__file__).with_name(f"{rung.file}.py")
    (tmp_path / "pasted.py").write_text(source.read_text("utf-8"), "utf-8")
    use = "\n".join(f"{key} = {value}" for key, value in chosen.items()) + USE
    if rung.cut == "whole":
        use = use.replace("jnp.ones((300, 256))", "jnp.ones((256, 256))")
    (tmp_path / "use.py").write_text(use, "utf-8")
    environment = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": QUICK_FLAGS, "PATH": ""}
    done = subprocess.run(
        [sys.executable, "use.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "RACE" not in done.stdout
    assert done.stdout.startswith("refused: lhs(200, 300) @ rhs(")
