"""Changed parameters of Pallas calls: the same program as the author's own change gives."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from kernels import call_of, product, shape, traced

import systolic
from systolic.analysis import GridVisits
from systolic.compiler import CompilerRefusal
from systolic.explaining.accumulator import summed_over
from systolic.explaining.rewriting import CallChange, ChangedFunction

ARGS = (shape(jnp.bfloat16, 1024, 512), shape(jnp.bfloat16, 512, 1024))
cycles = functools.cache(lambda fn, on: systolic.simulate(fn, *ARGS, chip=on).cycles)


def changed(fn: Any, **change: Any) -> ChangedFunction:
    return ChangedFunction(fn, [CallChange(site=call_of(fn, *ARGS).site, **change)])


def test_no_change_changes_nothing() -> None:
    assert cycles(changed(product), "v6e") == cycles(product, "v6e")


def test_the_order_of_the_grid() -> None:
    by_columns = functools.partial(product, order="nmk", tile_n=512)
    by_rows = functools.partial(product, order="mnk", tile_n=512)
    turned = changed(by_columns, order=(1, 0, 2))
    assert cycles(turned, "v6e") == cycles(by_rows, "v6e") != cycles(by_columns, "v6e")


def test_parallel_axes() -> None:
    semantics = ("parallel", "parallel", "arbitrary")
    asked = functools.partial(product, semantics=semantics)
    assert cycles(changed(product, semantics=semantics), "v5p") == cycles(asked, "v5p")
    assert cycles(asked, "v5p") < 0.7 * cycles(product, "v5p")


@pytest.mark.exhaustive
def test_more_vmem() -> None:
    large = functools.partial(product, tile_m=1024, tile_k=512, tile_n=1024)
    with pytest.raises(CompilerRefusal):
        cycles(ChangedFunction(large, [CallChange(site=(0,), vmem_limit_bytes=4 << 20)]), "v5e")
    assert cycles(ChangedFunction(large, [CallChange(site=(0,), vmem_limit_bytes=64 << 20)]), "v5e")


def test_calls_inside_of_other_functions_are_found() -> None:
    def outer(lhs: Any, rhs: Any) -> Any:
        return jax.jit(lambda a, b: product(a, b, order="nmk", tile_n=512))(lhs, rhs) * 2

    turned = changed(outer, order=(1, 0, 2))
    assert cycles(turned, "v6e") != cycles(outer, "v6e")


def test_the_sum_in_scratch_memory() -> None:
    in_output = functools.partial(product, in_output=True)
    _, (found,) = traced(in_output, *ARGS)
    assert isinstance(found.visits, GridVisits)
    axes = summed_over(found.call, found.visits)
    assert axes == (2,)
    moved = ChangedFunction(in_output, [CallChange(site=found.call.site, sum_axes=axes)])
    lhs, rhs = (
        np.random.default_rng(seed).normal(size=arg.shape).astype(jnp.bfloat16) for seed, arg in enumerate(ARGS)
    )
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
        assert (jax.jit(moved)(lhs, rhs) == jax.jit(in_output)(lhs, rhs)).all()
    assert cycles(moved, "v6e") > 0
    _, (scratch,) = traced(product, *ARGS)
    assert isinstance(scratch.visits, GridVisits)
    assert summed_over(scratch.call, scratch.visits) == ()
