"""A function of a module is compiled with the module's globals as the caller has set them."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from systolic.chips import CHIPS
from systolic.compiler import CompiledProgram, ProgramCache, WorkerPool, submit_compilation
from systolic.timing import target_of

pytestmark = pytest.mark.fresh_workers

SOURCE = """
import jax
import jax.numpy as jnp

ROUNDS = 1

@jax.jit
def stage(x):
    return jnp.tanh(x)

def function(x):
    for _ in range(ROUNDS):
        x = stage(x) @ x
    return x
"""


def test_a_changed_global_is_compiled_and_cached_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pool for all jobs would use the worker's traces again, one cache the programs."""
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path / "cache"))
    name = f"m{os.urandom(6).hex()}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module(name)
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    with WorkerPool(max_workers=1) as pool:

        def compiled() -> CompiledProgram:
            target = target_of(CHIPS["v5e"])
            return submit_compilation(pool, module.function, (x,), target, cache=ProgramCache()).result()

        programs = []
        for rounds in (1, 3, 1):
            module.ROUNDS = rounds
            programs.append(compiled())
        module.stage = jax.jit(lambda x: x @ x)
        programs.append(compiled())
    assert [program.from_cache for program in programs] == [False, False, True, False]
    product_flops = 2 * 256**3
    flops = [program.cost_flops for program in programs]
    assert flops == pytest.approx([product_flops, 3 * product_flops, product_flops, 2 * product_flops], rel=0.05)
