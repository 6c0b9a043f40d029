"""Runs of examples in interpret mode, as tests of several files ask for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.checking.finding import Finding
from systolic.checking.running import RunOutcome, run_checks
from systolic.chips import chip
from systolic.compiler.named import named_function

EXAMPLES = Path(__file__).parents[2] / "examples"
TILES = {"tile_m": 128, "tile_k": 128, "tile_n": 128}


def array(*shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def example(text: str, **keywords: Any) -> Callable[..., Any]:
    return functools.partial(named_function(f"{EXAMPLES}/{text}"), **keywords)


ALL_SEEDS = (0, 1, 2)  # as `check` has them: what only some orders of steps and of copies show


def ran(
    fn: Callable[..., Any],
    *args: Any,
    reference: Any = None,
    on: str = "v5e",
    seeds: Sequence[int] = (0,),
    **keywords: Any,
) -> RunOutcome:
    return run_checks(fn, args, chip=chip(on), reference=reference, seeds=seeds, **keywords)


def one(outcome: RunOutcome, rule: str) -> Finding:
    found = [finding for finding in outcome.findings if finding.rule == rule]
    assert len(found) == 1, outcome.findings
    return found[0]


def errors(outcome: RunOutcome) -> list[Finding]:
    return [finding for finding in outcome.findings if finding.grade == "error"]


PRODUCT = (array(256, 384), array(384, 256))
PLAIN = example("planted_faults.py:reference")


def product(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    mask: bool = True,
    rhs_column: Callable[[Any, Any], Any] = lambda i, j: j,
    acc: Any = jnp.float32,
    cleared: bool = True,
    semantics: Any = ("parallel", "parallel", "arbitrary"),
) -> jax.Array:
    """lhs @ rhs in tiles of 128, as right as it is asked to be."""

    def body(lhs_vmem, rhs_vmem, out_vmem, acc_vmem):
        kk = pl.program_id(2)
        if cleared:

            @pl.when(kk == 0)
            def _():
                acc_vmem[...] = jnp.zeros_like(acc_vmem)

        one, other = lhs_vmem[...], rhs_vmem[...]
        if mask:
            left = lhs.shape[1] - kk * 128
            one = jnp.where(lax.broadcasted_iota(jnp.int32, one.shape, 1) < left, one, 0)
            other = jnp.where(lax.broadcasted_iota(jnp.int32, other.shape, 0) < left, other, 0)
        total = jnp.dot(one, other, preferred_element_type=jnp.promote_types(acc, jnp.float32))
        acc_vmem[...] = (acc_vmem[...] + total).astype(acc)

        @pl.when(kk == pl.num_programs(2) - 1)
        def _():
            out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)

    (m, k), n = lhs.shape, rhs.shape[1]
    if jnp.issubdtype(lhs.dtype, jnp.integer):
        acc = jnp.int32
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), acc if acc == jnp.int32 else jnp.float32),
        grid=(pl.cdiv(m, 128), pl.cdiv(n, 128), pl.cdiv(k, 128)),
        in_specs=[
            pl.BlockSpec((128, 128), lambda i, j, kk: (i, kk)),
            pl.BlockSpec((128, 128), lambda i, j, kk: (kk, rhs_column(i, j))),
        ],
        out_specs=pl.BlockSpec((128, 128), lambda i, j, kk: (i, j)),
        scratch_shapes=[pltpu.VMEM((128, 128), acc)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
        name="product",
    )(lhs, rhs)
