"""The TPU compiler takes block-sparse products, and they move what they have to: each block and dense matrix once."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic.compiler import WorkerPool, submit_compilation
from systolic.ops.sparse.programs import called, programs_of
from systolic.ops.sparse.spec import SparseSpec
from systolic.timing import target_of


def spec(kind: Any, block: int, blocks: int, **more: Any) -> SparseSpec:
    return SparseSpec(
        kind=kind, m=1024, k=1024, n=1024, block_rows=block, block_columns=block, blocks=blocks, most_blocks=16,
        dtype="bfloat16", dtype_out="bfloat16", **more,
    )  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("chip", "wanted"),
    [
        ("v5e", spec("dsd", 128, 11)),
        ("v6e", spec("dsd", 256, 9, transpose_sparse=True)),
        ("v7x", spec("dds", 128, 11)),
        ("v5p", spec("dds", 256, 9, transpose_sparse=True, bias=True, activation="silu")),
        ("v6e", spec("sdd", 128, 11)),
        ("v4", spec("sdd", 256, 9, transpose_rhs=True, dense_out=True)),
    ],
)
def test_each_matrix_moves_once(chip: str, wanted: SparseSpec) -> None:
    known = systolic.chip(chip)
    run = systolic.simulate(
        functools.partial(called, wanted, known, "pallas"), *programs_of(wanted, known).arguments, chip=known
    )
    # Both cores of a device read all blocks, or all of the other operand, of which each uses its part.
    cores = known.cores_per_device
    most = wanted.least_hbm_bytes + (cores - 1) * 2 * 2**21 + 2**18
    padding = 0 if wanted.dense_out or wanted.kind != "sdd" else (16 - wanted.blocks) * wanted.block_rows**2 * 2
    assert run.hbm_bytes <= most + padding
    assert run.hbm_bytes >= 0.4 * wanted.least_hbm_bytes  # of what is small XLA may keep some in VMEM
    assert not run.assumptions


def loss(matrix: Any, x: Any) -> Any:
    return systolic.sparse_matmul(matrix, x, implementation="pallas", chip="v6e").astype(jnp.float32).sum()


def test_gradients_are_kernels() -> None:
    rows = np.array([0, 1, 1, 3], np.int32)
    columns = np.array([1, 0, 3, 2], np.int32)
    blocks, x = jax.ShapeDtypeStruct((4, 128, 128), jnp.bfloat16), jax.ShapeDtypeStruct((512, 256), jnp.bfloat16)

    def gradients(blocks: Any, x: Any, rows: Any, columns: Any) -> Any:
        matrix = systolic.BlockSparse.of_sorted(blocks, rows, columns, (512, 512))
        return jax.grad(lambda blocks, x: loss(matrix.with_blocks(blocks), x), (0, 1))(blocks, x)

    run = systolic.simulate(gradients, blocks, x, rows, columns, chip="v6e")
    names = {op.name.split(".")[0] for op in run.later_core.ops}
    assert {"systolic_dsd_bfloat16_512_512_256", "systolic_sdd_bfloat16_512_256_512"} <= names


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "calls"),
    [("dsd", 2), pytest.param("dds", 3, marks=pytest.mark.slow), pytest.param("sdd", 2, marks=pytest.mark.slow)],
)
def test_a_list_that_smem_does_not_hold_is_cut(kind: Any, calls: int) -> None:
    """One kernel in a loop; where blocks are sorted anew, their list takes twice the room."""
    size, blocks = 128 * 1160, 150_000
    m, k, n = {"dsd": (size, size, 256), "dds": (256, size, size), "sdd": (size, 256, size)}[kind]
    wanted = SparseSpec(
        kind=kind, m=m, k=k, n=n, block_rows=128, block_columns=128, blocks=blocks, most_blocks=blocks,
        dtype="bfloat16", dtype_out="bfloat16",
    )  # fmt: skip
    chip = systolic.chip("v6e")
    assert f"{calls} calls" in systolic.plan(wanted, chip).reason
    arguments = programs_of(wanted, chip).arguments[:4]  # without the matrix with its zeros
    with WorkerPool(max_workers=1) as pool:
        program = submit_compilation(
            pool, functools.partial(called, wanted, chip, "pallas"), arguments, target_of(chip), cache=None
        ).result()
    assert sum(f"systolic_{kind}" in name for name in program.listings) == 1
