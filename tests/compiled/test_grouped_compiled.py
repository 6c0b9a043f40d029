"""The TPU compiler takes grouped products, and they move what they must: each row, and each matrix that has some."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic.compiler import row_major
from systolic.ops.grouped.api import grouped_matmul
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.schedule import KernelConfig, Tiles

M, K, N = 256, 256, 512
SIZES = (70, 0, 3, 101)


def product(lhs: Any, rhs: Any, *beside: Any, chip: str, **keywords: Any) -> Any:
    fused = dict(zip(("bias", "row_scale"), beside, strict=False))
    sizes = np.array(SIZES, np.int32)
    return grouped_matmul(lhs, rhs, sizes, implementation="pallas", chip=chip, **fused, **keywords)


def gradients(lhs: Any, rhs: Any, *, chip: str) -> Any:
    def total(lhs: Any, rhs: Any) -> Any:
        return product(lhs, rhs, chip=chip).astype(jnp.float32).sum()

    return jax.grad(total, (0, 1))(lhs, rhs)


def shapes(dtype: str, k: int = K, n: int = N) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype)) for sizes in ((M, k), (len(SIZES), k, n))]


BESIDE = [jax.ShapeDtypeStruct(sizes, jnp.float32) for sizes in ((len(SIZES), N), (M,))]


@pytest.mark.parametrize(
    ("chip", "dtype", "keywords"),
    [
        ("v5e", "bfloat16", {}),
        ("v7x", "bfloat16", {"transpose_rhs": True}),
        ("v6e", "int8", {}),
        ("v4", "float32", {"precision": "highest"}),
    ],
)
def test_empty_groups_are_not_read(chip: str, dtype: str, keywords: dict[str, Any]) -> None:
    lhs, rhs = shapes(dtype)
    if keywords.get("transpose_rhs"):
        rhs = jax.ShapeDtypeStruct((len(SIZES), N, K), rhs.dtype)
    run = systolic.simulate(functools.partial(product, chip=chip, **keywords), lhs, rhs, chip=chip)
    kernels = [max(core.ops, key=lambda one: one.hbm_read_bytes) for core in run.cores]
    # Each core reads all rows, and its columns of the matrices.
    matrix, row = (K * N * rhs.dtype.itemsize, len(kernels) * K * lhs.dtype.itemsize)
    rows = sum(one.hbm_read_bytes for one in kernels) - 3 * matrix
    assert sum(SIZES) * row <= rows <= (sum(SIZES) + 4 * 32) * row + 4096
    assert sum(one.hbm_written_bytes for one in kernels) == M * N * (4 if dtype != "bfloat16" else 2)


@pytest.mark.exhaustive
def test_activations_stay_in_vmem_between_products() -> None:
    """Only the last result is written to HBM."""

    def in_a_row(x: Any, rhs: Any, down: Any) -> Any:
        return product(product(x, rhs, chip="v6e"), down, chip="v6e", residual=x)

    down = jax.ShapeDtypeStruct((len(SIZES), N, K), jnp.bfloat16)
    run = systolic.simulate(in_a_row, *shapes("bfloat16"), down, chip="v6e")
    assert run.hbm_written_bytes == 2 * M * K


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("chip", "codes", "block", "columns", "keywords"),
    [
        ("v5e", "int4", 128, 1, {}),
        ("v5e", "float8_e4m3fn", 128, 128, {}),
        ("v5p", "float8_e5m2", 384, 1, {}),
        ("v6e", "float8_e4m3fn", 128, 128, {"transpose_rhs": True}),
        ("v6e", "int4", 128, 128, {"quantize_lhs": "int8"}),
        ("v6e", "int8", 384, 1, {"quantize_lhs": "int8", "activation": "silu", "side_by_side": True}),
        ("v7x", "float8_e4m3fn", 128, 128, {"quantize_lhs": "e4m3"}),
        ("v7x", "int4", 384, 1, {"transpose_rhs": True}),
    ],
)
def test_codes_are_read_as_they_are_stored(
    chip: str, codes: str, block: int, columns: int, keywords: dict[str, Any]
) -> None:
    k = 384
    shape = (len(SIZES), N, k) if keywords.get("transpose_rhs") else (len(SIZES), k, N)
    parts = (columns, block) if keywords.get("transpose_rhs") else (block, columns)
    values = jax.ShapeDtypeStruct(shape, jnp.dtype(codes))
    scales = jax.ShapeDtypeStruct(
        (len(SIZES), *(size // part for size, part in zip(shape[1:], parts, strict=True))), jnp.float32
    )

    def run(lhs: Any, values: Any, scales: Any) -> Any:
        return product(lhs, systolic.Quantized(values, scales), chip=chip, **keywords)

    lhs = jax.ShapeDtypeStruct((M, k), jnp.bfloat16)
    names = [op.name for op in systolic.simulate(run, lhs, values, scales, chip=chip).cores[0].ops]
    assert any(name.startswith("systolic_grouped") and codes in name for name in names), names


def test_what_is_fused_and_sizes_that_no_register_divides() -> None:
    fused = functools.partial(product, chip="v6e", activation="silu")
    assert systolic.simulate(fused, *shapes("bfloat16"), *BESIDE, chip="v6e").time_us > 0
    odd = functools.partial(product, chip="v5e")
    assert systolic.simulate(odd, *shapes("bfloat16", 200, 300), chip="v5e").time_us > 0


@pytest.mark.exhaustive
def test_a_gated_product_into_an_array_in_three_passes() -> None:
    """Both arrays of matrices are read once, rows once or from VMEM; only rows of groups that are here are written."""

    def gated(lhs: Any, rhs: Any, up: Any, existing: Any) -> Any:
        here = {"group_offset": np.int32(1), "existing_out": existing}
        return product(lhs, rhs[1:], chip="v6e", up=up[1:], activation="silu", precision="high", **here)

    lhs, rhs = shapes("float32")
    run = systolic.simulate(gated, lhs, rhs, rhs, jax.ShapeDtypeStruct((M, N), jnp.float32), chip="v6e")
    kernel = next(one for one in run.cores[0].ops if "systolic_grouped" in one.name)
    matrices, rows = 2 * 2 * K * N * 4, (sum(SIZES) - SIZES[0]) * 4
    assert matrices <= kernel.hbm_read_bytes <= matrices + (rows + 64 * 4) * K + 2 * 8 * N * 4 + 4096
    assert rows * N <= kernel.hbm_written_bytes <= (rows + 32 * 4) * N


@pytest.mark.parametrize("chip", ["v6e", "v5p"])
def test_rows_that_are_added_are_read_once(chip: str) -> None:
    """If two cores share the columns, each reads its columns of the matrices and the addends, and all of lhs."""

    def added(lhs: Any, rhs: Any, residual: Any) -> Any:
        return product(lhs, rhs, chip=chip, residual=residual)

    lhs, rhs = shapes("bfloat16", n=2 * N)
    run = systolic.simulate(added, lhs, rhs, jax.ShapeDtypeStruct((M, 2 * N), jnp.float32), chip=chip)
    kernels = [next(one for one in core.ops if "systolic_grouped" in one.name) for core in run.cores]
    assert len(kernels) == systolic.chip(chip).cores_per_device
    read, row = sum(one.hbm_read_bytes for one in kernels), len(kernels) * K * 2 + 2 * N * 4
    rows = read - 3 * K * 2 * N * 2
    assert sum(SIZES) * row <= rows <= (sum(SIZES) + 3 * 16) * row + 4096
    assert sum(one.hbm_written_bytes for one in kernels) == M * 2 * N * 2


@pytest.mark.parametrize("chip", ["v7x", "v5p"])
def test_a_last_tile_that_is_wider_than_the_others(chip: str) -> None:
    """Columns that no tile divides: all are written once, none beyond the end."""
    tiles = Tiles(tile_m=64, tile_k=K, tile_n=300)
    config = KernelConfig(tiles=tiles, subtile_m=32, subtile_n=300, pipeline="manual")

    def added(lhs: Any, rhs: Any, residual: Any) -> Any:
        return product(lhs, rhs, chip=chip, residual=residual, tiles=config)

    residual = jax.ShapeDtypeStruct((M, 556), jnp.bfloat16)
    run = systolic.simulate(row_major(added), *shapes("bfloat16", n=556), residual, chip=chip)
    kernels = [next(one for one in core.ops if "systolic_grouped" in one.name) for core in run.cores]
    written = sum(one.hbm_written_bytes for one in kernels)
    assert M * 556 * 2 <= written <= M * 640 * 2  # a copy moves whole registers, of 128 columns


def test_gradients() -> None:
    run = systolic.simulate(functools.partial(gradients, chip="v5e"), *shapes("bfloat16"), chip="v5e")
    assert sum("systolic_grouped" in one.name for one in run.cores[0].ops) == 2  # the forward product is not needed


def test_arrays_in_the_order_of_their_dimensions_are_not_copied() -> None:
    """For 192 columns XLA stores 128 matrices with their numbers in the lanes, and copies them ahead of the kernel."""
    sizes = np.ones(128, np.int32)
    matrices = jax.ShapeDtypeStruct((128, 192, 192), jnp.bfloat16)

    def one_row_each(lhs: Any, rhs: Any) -> Any:
        return grouped_matmul(lhs, rhs, sizes, implementation="pallas", chip="v6e")

    for fn, is_copied in ((one_row_each, True), (row_major(one_row_each), False)):
        run = systolic.simulate(fn, jax.ShapeDtypeStruct((128, 192), jnp.bfloat16), matrices, chip="v6e")
        copies = [op for op in run.cores[0].ops if op.name.startswith("copy")]
        assert any(op.hbm_read_bytes >= 128 * 192 * 192 * 2 for op in copies) == is_copied


@pytest.mark.parametrize("spec_type", [GroupedSpec, GroupedGradientSpec])
def test_it_is_tuned(spec_type: Any) -> None:
    spec = spec_type(m=M, k=K, n=N, groups=4, rows_per_group=64, dtype="bfloat16", dtype_out="bfloat16")
    against_xla = spec_type is GroupedSpec
    result = systolic.tune(spec, "v5e", trials=2, against_xla=against_xla, workers=1)
    assert result.winner is not None
    assert (result.xla_us is not None) == against_xla, "the sizes of groups are known to XLA's program too"
