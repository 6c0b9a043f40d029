"""The TPU compiler takes products with quantised weights, and they read what is stored of the weight: its few bits."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import systolic

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler: pip install 'systolic[tpu]'"
)


def product(lhs: Any, q: systolic.Quantized, *, chip: str) -> Any:
    return systolic.matmul(lhs, q, implementation="pallas", chip=chip)


@pytest.mark.parametrize(
    ("chip", "name", "block", "bits"),
    [
        ("v5e", "int4", 128, 4),
        ("v6e", "int4", None, 4),
        ("v7x", "int4", 32, 4),
        ("v6e", "fp4", 64, 4),
        ("v7x", "fp4", None, 4),
        ("v5e", "int8", 32, 8),
        ("v6e", "e4m3", 128, 8),
        ("v7x", "e5m2", 128, 8),
        ("v4", "int8", None, 8),
        ("v4", "e4m3", 128, 8),
        ("v4", "fp4", None, 4),
        ("v7x", "e4m3b11", None, 8),
    ],
)
def test_only_packed_weights_are_read(chip: str, name: str, block: int | None, bits: int) -> None:
    m, k, n = 24, 1024, 1024
    q = jax.eval_shape(
        functools.partial(systolic.quantize, dtype=name, block=block), jax.ShapeDtypeStruct((k, n), jnp.float32)
    )
    run = systolic.simulate(
        functools.partial(product, chip=chip), jax.ShapeDtypeStruct((m, k), jnp.bfloat16), q, chip=chip
    )
    kernel = max((one for core in run.cores for one in core.ops), key=lambda one: one.hbm_read_bytes)
    values = k * n * bits // 8  # XLA may have copied the small arrays to VMEM ahead of the call
    assert values <= kernel.hbm_read_bytes <= values + 2 * m * k + 4 * max(8, k // (block or k)) * n


@pytest.mark.parametrize(
    ("chip", "m", "rows", "name", "block", "bits"),
    [
        ("v6e", 24, "int8", "int8", None, 8),
        ("v5e", 2, "int8", "int4", 128, 4),
        ("v6e", 100, "int4", "int4", None, 4),
        ("v7x", 40, "float8_e4m3fn", "float8_e4m3fn", None, 8),
        ("v7x", 24, "int8", "int8", None, 8),
        ("v4", 24, "int8", "int4", 128, 4),
        ("v4", 24, "float8_e4m3fn", "int8", None, 8),
    ],
)
def test_rows_are_read_once_and_quantised_in_the_kernel(
    chip: str, m: int, rows: str, name: str, block: int | None, bits: int
) -> None:
    k, n = 1024, 512
    q = jax.eval_shape(
        functools.partial(systolic.quantize, dtype=name, block=block), jax.ShapeDtypeStruct((k, n), jnp.float32)
    )
    fn = functools.partial(systolic.matmul, quantize_lhs=rows, implementation="pallas", chip=chip)
    run = systolic.simulate(fn, jax.ShapeDtypeStruct((m, k), jnp.bfloat16), q, chip=chip)
    ops = [one for core in run.cores for one in core.ops]
    kernel = max(ops, key=lambda one: one.hbm_read_bytes)
    values, scales = k * n * bits // 8, 4 * max(8, k // (block or k)) * n
    assert values <= kernel.hbm_read_bytes <= values + 2 * m * k + scales
    others = sum(one.hbm_read_bytes + one.hbm_written_bytes for one in ops if one is not kernel)
    assert others <= 2 * m * k + scales  # XLA may have copied the small arrays to VMEM ahead of the call


@pytest.mark.parametrize(
    ("chip", "m", "name", "block", "rows", "beside"),
    [
        ("v5e", 16, "int4", 128, None, False),
        ("v6e", 100, "int4", None, None, True),
        ("v6e", 16, "int8", None, "int8", True),
        ("v7x", 40, "fp4", None, None, False),
    ],
)
def test_gated_products_read_both_weights_and_write_one_result(
    chip: str, m: int, name: str, block: int | None, rows: str | None, beside: bool
) -> None:
    k, n = 1024, 512
    quantize = functools.partial(systolic.quantize, dtype=name, block=block)
    columns = 2 * n if beside else n
    weights = [jax.eval_shape(quantize, jax.ShapeDtypeStruct((k, columns), jnp.float32))] * (1 if beside else 2)
    fn = functools.partial(systolic.gated_matmul, quantize_lhs=rows, implementation="pallas", chip=chip)
    run = systolic.simulate(fn, jax.ShapeDtypeStruct((m, k), jnp.bfloat16), *weights, chip=chip)
    kernel = max((one for core in run.cores for one in core.ops), key=lambda one: one.hbm_read_bytes)
    values = 2 * k * n * (8 if name == "int8" else 4) // 8
    assert values <= kernel.hbm_read_bytes <= values + 2 * m * k + 2 * 4 * max(8, k // (block or k)) * n
    assert sum(one.hbm_written_bytes for core in run.cores for one in core.ops) <= 2 * 2 * m * n


@pytest.mark.parametrize(("chip", "m", "k", "n", "block"), [("v6e", 100, 416, 300, 32), ("v5e", 3, 130, 60, None)])
def test_odd_sizes(chip: str, m: int, k: int, n: int, block: int | None) -> None:
    q = jax.eval_shape(
        functools.partial(systolic.quantize, dtype="int4", block=block), jax.ShapeDtypeStruct((k, n), jnp.float32)
    )
    run = systolic.simulate(
        functools.partial(product, chip=chip), jax.ShapeDtypeStruct((m, k), jnp.bfloat16), q, chip=chip
    )
    assert run.hbm_bytes > 0


def integers(lhs: Any, rhs: Any) -> Any:
    def kernel(lhs_vmem: Any, rhs_vmem: Any, out_vmem: Any) -> None:
        out_vmem[...] = jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=jnp.int32)

    shape = jax.ShapeDtypeStruct((lhs.shape[0], rhs.shape[1]), jnp.int32)
    return pl.pallas_call(kernel, out_shape=shape)(lhs, rhs)


@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_int4_products_keep_the_units_busy_half_as_long_as_int8(chip: str) -> None:
    busy = []
    for dtype in (jnp.int4, jnp.int8):
        shapes = [jax.ShapeDtypeStruct(sizes, dtype) for sizes in ((256, 512), (512, 256))]
        run = systolic.simulate(integers, *shapes, chip=chip)
        busy.append(sum(core.matrix_busy_cycles for core in run.cores))
    assert 2 * busy[0] == busy[1] > 0
