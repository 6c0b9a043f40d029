"""The TPU compiler takes products with quantized weights, and they read what is stored of the weight: its few bits."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import systolic
from systolic.compiler import CompilerRefusal, WorkerPool, submit_compilation
from systolic.kernels.launch import HbmKernel
from systolic.ops.quantized.kernel.copies import QuantizedOperands
from systolic.ops.quantized.kernel.product import quantized_product
from systolic.ops.quantized.schedule import QuantizedSchedule
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import total_bytes
from systolic.spec import format_named
from systolic.timing import target_of


def product(lhs: Any, q: systolic.Quantized, *, chip: str) -> Any:
    return systolic.matmul(lhs, q, implementation="pallas", chip=chip)


@pytest.mark.sampled(3)
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


def in_a_row(x: Any, gate: systolic.Quantized, up: systolic.Quantized, down: systolic.Quantized) -> Any:
    return systolic.matmul(systolic.gated_matmul(x, gate, up), down, residual=x)


@pytest.mark.exhaustive
def test_activations_stay_in_vmem_between_products() -> None:
    """Only the last result is written to HBM."""
    m, size = 128, 1024
    q = systolic.Quantized(
        jax.ShapeDtypeStruct((size, size), jnp.int8), jax.ShapeDtypeStruct((size // 128, size), jnp.float32)
    )
    run = systolic.simulate(in_a_row, jax.ShapeDtypeStruct((m, size), jnp.bfloat16), q, q, q, chip="v6e")
    assert run.hbm_written_bytes == 2 * m * size


@pytest.mark.sampled(2)
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
def test_rows_are_read_once_and_quantized_in_the_kernel(
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


@pytest.mark.sampled(2)
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


def kernel_within(
    spec: QuantizedSpec, schedule: QuantizedSchedule, chip: str, limit_bytes: int, lhs: Any, values: Any, scales: Any
) -> Any:
    operands = QuantizedOperands(lhs=lhs, values=values, scales=scales)
    kernel = HbmKernel(spec=spec, schedule=schedule, chip=systolic.chip(chip), vmem_limit_bytes=limit_bytes)
    return quantized_product(operands, kernel, activation=None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("chip", "m", "k", "n", "name", "block", "row_format"),
    [
        ("v6e", 16, 65536, 32768, "int4", None, None),
        ("v5e", 9, 65536, 16384, "int4", None, None),
        ("v7x", 16, 131072, 32768, "int4", 128, None),
    ],
)
def test_plans_of_long_k_fit_and_their_buffers_are_those_of_the_compiler(
    chip: str, m: int, k: int, n: int, name: str, block: int | None, row_format: str | None
) -> None:
    """The first was refused: 34.41 MiB of 32, for tiles of four bits took twice what the plan counted."""
    machine, full = systolic.chip(chip), format_named(name)
    plain = QuantizedSpec(m=m, k=k, n=n, dtype_lhs="bfloat16", dtype_rhs=full, dtype_out="bfloat16", block=block or k)
    spec = dataclasses.replace(plain, quantize_lhs=row_format)
    schedule = QuantizedSchedule.of(spec, systolic.plan(spec, chip).config, machine)
    shapes = [((m, k), "bfloat16"), ((k, n), full), ((k // spec.block, n), "float32")]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in shapes]

    with WorkerPool(max_workers=1) as pool:
        fits, refused = (
            submit_compilation(
                pool,
                functools.partial(kernel_within, spec, schedule, chip, limit),
                arguments,
                target_of(machine),
                cache=None,
            )
            for limit in (schedule.vmem_limit_bytes, 2**20)
        )
        fits.result()
        with pytest.raises(CompilerRefusal) as caught:
            refused.result()
    size = re.search(r"allocation with size ([\d.]+)M", str(caught.value))
    assert size is not None, caught.value
    needed = float(size[1]) * 2**20
    assert needed <= 1.02 * total_bytes(schedule.buffers) <= 1.1 * needed
