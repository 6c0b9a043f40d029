"""Kernels that public issues complain about, written anew in small: each gives the finding that would have saved it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from kernels import product, shape

import systolic

BF16 = functools.partial(shape, jnp.bfloat16)
F32 = functools.partial(shape, jnp.float32)
INT8 = functools.partial(shape, jnp.int8)


def whole(lhs: Any, rhs: Any, *, sums: Any = jnp.float32, **options: Any) -> Any:
    """lhs @ rhs in one step."""

    def kernel(lhs_vmem, rhs_vmem, out_vmem):
        out_vmem[...] = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=sums, **options)

    return pl.pallas_call(kernel, out_shape=shape(sums, lhs.shape[0], rhs.shape[1]))(lhs, rhs)


def in_rows(x: Any, *, rows: int, buffers: int | None = None) -> Any:
    """A copy of x, `rows` rows at a time."""

    def kernel(x_vmem, out_vmem):
        out_vmem[...] = x_vmem[...]

    mode = None if buffers is None else pl.Buffered(buffers)
    block = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0), pipeline_mode=mode)
    return pl.pallas_call(kernel, out_shape=x, grid=(x.shape[0] // rows,), in_specs=[block], out_specs=block)(x)


def weight_turned_outside(x: Any, weight: Any) -> Any:
    return product(x, jnp.swapaxes(weight, 0, 1))


SQUARE = (BF16(1024, 1024), BF16(1024, 1024))

# What the issue is about, the function, its arguments, and the rule and grade of the finding.
ISSUES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str, str]] = {
    "out of VMEM, and nobody foresaw it": (
        functools.partial(product, tile_m=1024, tile_k=1024, tile_n=1024),
        (BF16(4096, 4096), BF16(4096, 4096)),
        "vmem",
        "error",
    ),
    "k is not a multiple of the tile: wrong numbers": (
        product,
        (BF16(512, 600), BF16(600, 512)),
        "dropped-tail",
        "error",
    ),
    "a block above the array: a grid of no steps": (product, (BF16(128, 512), BF16(512, 512)), "empty-grid", "error"),
    "float32 that silently runs as bfloat16": (whole, (F32(256, 256), F32(256, 256)), "precision", "warning"),
    "HIGH is not there inside of a kernel": (
        functools.partial(whole, precision=jax.lax.Precision.HIGH),
        (F32(256, 256), F32(256, 256)),
        "precision",
        "error",
    ),
    "HIGHEST of bfloat16 is a bad type": (
        functools.partial(whole, precision=jax.lax.Precision.HIGHEST),
        (BF16(256, 256), BF16(256, 256)),
        "precision",
        "error",
    ),
    "int8 tiles of 8 rows": (functools.partial(in_rows, rows=8), (INT8(256, 256),), "block-alignment", "error"),
    "int8 with float32 sums": (whole, (INT8(256, 256), INT8(256, 256)), "dot-dtype", "error"),
    "three buffers in a pallas_call": (
        functools.partial(in_rows, rows=64, buffers=3),
        (F32(256, 256),),
        "buffering",
        "error",
    ),
    "the whole weight is copied to be transposed": (weight_turned_outside, SQUARE, "transposed-operand", "warning"),
    "the schedule around the kernel is bad": (product, SQUARE, "cost-estimate", "note"),
    "tiles fall back to 128³": (
        functools.partial(product, tile_m=128, tile_k=128, tile_n=128),
        (BF16(2048, 2048), BF16(2048, 2048)),
        "small-blocks",
        "warning",
    ),
}


# The compiler of jax 0.10 refuses these, that of 0.12 takes them: then the finding is a warning, and says so.
ACCEPTED_SINCE = {"HIGH is not there inside of a kernel", "int8 tiles of 8 rows"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("issue", ISSUES)
def test_a_public_issue_is_found(issue: str) -> None:
    fn, args, rule, grade = ISSUES[issue]
    report = systolic.check(fn, *args, chip="v5e", run=False)
    found = [each for each in report.findings if each.rule == rule]
    assert found, [str(each) for each in report.findings]
    if issue in ACCEPTED_SINCE and report.verdicts[0].accepted:
        assert found[0].grade == "warning"
        assert "the compiler accepts it" in found[0].limit
        return
    assert found[0].grade == grade
    if report.verdicts[0].accepted is False:
        assert {each.rule for each in report.findings if each.grade == "error"} == {rule}
        assert any(each.detail for each in found)  # the compiler's own words stand below
