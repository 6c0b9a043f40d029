"""Beside libtpu's own static estimate of each operation's cycles.

The estimate multiplies every bundle of a loop by its rounds, so it says nothing about pipelined loops; and it has an
idea of a copy of its own: the published bandwidth, and a latency that differs from the one that published times show.
So that idea is put in place of ours, its latency taken from one elementwise operation, and operations with products and
without a loop are compared. The rest of the model (what is executed, when products are done, what waits for what) is
then all that can differ: by at most 15 %, or by 100 cycles in operations of a few hundred, of which the estimate is
made before the final schedule; and by 25 % where a softmax is fused into the product, whose sums across lanes are
estimated otherwise than they are scheduled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from systolic.chips import Chip, chip
from systolic.compiler import WorkerPool, abstract_arguments, compile_function
from systolic.simulator import OpRun, PreparedProgram
from systolic.timing import prepare_program, target_of

FOLDER = "SYSTOLIC_TEST_STATIC_PROFILES"


def perceptron(x, first, second):
    return jax.nn.gelu(x @ first) @ second


def attention(q, k, v):
    scores = (q @ k.T).astype(jnp.float32) / 11.3
    return jax.nn.softmax(scores).astype(v.dtype) @ v


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "gelu": (jax.nn.gelu, (jax.ShapeDtypeStruct((512, 512), jnp.float32),)),
    "matmul": (jnp.matmul, (bf16(512, 512), bf16(512, 512))),
    "perceptron": (perceptron, (bf16(256, 512), bf16(512, 1024), bf16(1024, 512))),
    "attention": (attention, (bf16(512, 128),) * 3),
}


def compiled(fn: Callable[..., Any], args: Any, known: Chip) -> tuple[Any, dict[str, int]]:
    """In a worker: the program, and libtpu's estimate of each operation that has one."""
    program = compile_function(fn, args, target_of(known), cache=None)
    estimates: dict[str, int] = {}
    for path in Path(os.environ[FOLDER]).glob("*_static_llo_profile.textproto"):
        for name, cycles in re.findall(r'hlo_op_name: "([^"]+)"\s+estimated_cycles: (\d+)', path.read_text()):
            estimates[name] = int(cycles)
        path.unlink()
    return program, estimates


def with_copies_of(known: Chip, latency_cycles: int) -> Chip:
    """The chip with the compiler's idea of a copy."""
    ratio = known.machine.clock_hz / known.peak_clock_hz  # the compiler counts cycles of the peak's clock
    machine = replace(
        known.machine,
        hbm_bytes_per_s=known.hbm_bytes_per_s * ratio,
        hbm_run_cycles=0.0,
        dma_latency_cycles=latency_cycles,
        dma_issue_cycles=0,
        dma_wait_cycles=0,
    )
    return replace(known, machine=machine)


def operations(prepared: PreparedProgram, known: Chip) -> dict[str, OpRun]:
    return {op.name: op for op in prepared.run(known).later_core.ops}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["v5e", "v7x", *(pytest.param(name, marks=pytest.mark.slow) for name in ("v5p", "v6e"))]
)
def test_products_without_a_loop(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = chip(name)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--xla_jf_dump_static_llo_profile_to={tmp_path}")
    found: dict[str, tuple[PreparedProgram, dict[str, int]]] = {}
    with WorkerPool(max_workers=1) as pool:  # one after the other: the estimates are files
        for program_name, (fn, args) in PROGRAMS.items():
            program, estimates = pool.submit(compiled, fn, abstract_arguments(args), known, label=program_name).result()
            found[program_name] = prepare_program(program, known), estimates
    prepared, estimates = found.pop("gelu")
    ((op, estimate),) = estimates.items()
    without, with_1000 = (operations(prepared, with_copies_of(known, cycles))[op].cycles for cycles in (0, 1000))
    latency_cycles = round((estimate - without) * 1000 / (with_1000 - without))
    assert 300 < latency_cycles < 1500
    pairs = {
        f"{program_name} {op}": (run.cycles, estimates[op])
        for program_name, (prepared, estimates) in found.items()
        for op, run in operations(prepared, with_copies_of(known, latency_cycles)).items()
        if run.matrix_busy_cycles and run.loop is None and op in estimates
    }
    assert {key.split()[0] for key in pairs} == {"matmul", "perceptron", "attention"}
    for key, (ours, theirs) in pairs.items():
        share = 0.25 if key.startswith("attention") else 0.15
        assert abs(ours - theirs) <= max(share * theirs, 100), (key, ours, theirs, latency_cycles)
