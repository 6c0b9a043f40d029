"""Running sums in narrow types, and running sums of parts that were rounded to one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from checked import unreferenced
from checked.case import Case
from jax.experimental import pallas as pl

from systolic.analysis import kernel_calls
from systolic.checking.rules.sums import sum_findings, sums_narrowly


def values(fn: Callable[..., Any], *args: Any) -> list[str]:
    (call,) = kernel_calls(jax.make_jaxpr(fn)(*args))
    assert sums_narrowly(call) == any("adds up in" in finding.value for finding in sum_findings(call))
    return [finding.value for finding in sum_findings(call)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("narrow_product: sum in bfloat16, no reference", "acc_vmem adds up in bfloat16"),
        ("narrow_product: parts in bfloat16, no reference", "the parts that acc_vmem adds up are rounded to bfloat16"),
        ("looped_product: sum in bfloat16, no reference", "a value that a loop carries adds up in bfloat16"),
    ],
)
def test_a_sum_that_loses_digits_at_every_step(name: str, expected: str) -> None:
    case = _case(name)
    assert values(case.fn, *case.args) == [expected]


@pytest.mark.parametrize("case", unreferenced.SOUND, ids=lambda case: case.name)
def test_sums_in_float32_are_sound(case: Case) -> None:
    assert values(case.fn, *case.args) == []


def test_what_is_added_once_is_no_running_sum() -> None:
    def residual(x: jax.Array, w: jax.Array) -> jax.Array:
        def body(x_vmem, w_vmem, out_vmem):
            out_vmem[...] = x_vmem[...] + jnp.dot(x_vmem[...], w_vmem[...])

        block = pl.BlockSpec((128, 128), lambda i: (i, 0))
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(2,),
            in_specs=[block, pl.BlockSpec((128, 128), lambda i: (0, 0))],
            out_specs=block,
        )(x, w)

    x = jax.ShapeDtypeStruct((256, 128), jnp.bfloat16)
    assert values(residual, x, jax.ShapeDtypeStruct((128, 128), jnp.bfloat16)) == []


def _case(name: str) -> Case:
    return next(case for case in unreferenced.FAULTS if case.name == name)
