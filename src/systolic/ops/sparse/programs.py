"""The programs of block-sparse products that are built from their specs, with blocks at random places."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from systolic.chips import Chip
from systolic.ops.engine.backend import BY_XLA, Backend, Implementation
from systolic.ops.engine.programs import call_options, raced_call
from systolic.ops.op_programs import Programs, RacedPrograms
from systolic.ops.sparse.api import sparse_matmul
from systolic.ops.sparse.array import BlockSparse
from systolic.ops.sparse.mask import BlockMask
from systolic.ops.sparse.pallas import product_by_pallas, sampled_by_pallas
from systolic.ops.sparse.product import Places, SparseProduct
from systolic.ops.sparse.spec import SparseSpec
from systolic.ops.sparse.xla import finished
from systolic.schedule import KernelConfig
from systolic.spec import accumulator_dtype


def programs_of(spec: SparseSpec, chip: Chip) -> Programs:
    """Return the programs of blocks at random places; XLA's multiplies the whole matrix, which is an argument."""
    return Programs(
        computed=spec,
        arguments=arguments_of(spec, *random_places(spec)),
        pallas=functools.partial(_product, spec, chip),
        xla=functools.partial(dense_by_xla, spec),
    )


def raced(spec: SparseSpec, chip: Chip, implementation: Implementation = "pallas") -> RacedPrograms:
    return raced_call(programs_of(spec, chip), functools.partial(called, spec, chip, implementation))


def arguments_of(spec: SparseSpec, rows: np.ndarray, columns: np.ndarray) -> tuple[Any, ...]:
    """Return blocks or lhs, the other operand, rows and columns of blocks, the whole sparse matrix, and a bias.

    A simulation has to know the values of rows and columns. Our programs do not read the whole matrix, and XLA's do not
    read the blocks; JAX passes no argument that is not read. sdd has no whole sparse matrix.
    """
    dtype = jnp.dtype(spec.dtype)
    lhs, rhs = (spec.m, spec.k), (spec.n, spec.k) if spec.transpose_rhs else (spec.k, spec.n)
    blocks = (spec.most_blocks, *spec.stored_block)
    shapes = {"dsd": (blocks, rhs, spec.stored_shape), "dds": (blocks, lhs, spec.stored_shape), "sdd": (lhs, rhs)}[
        spec.kind
    ]
    first, second, *rest = (jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)
    bias = [jax.ShapeDtypeStruct((spec.n,), jnp.float32)] if spec.bias else []
    return first, second, rows, columns, *rest, *bias


def random_places(spec: SparseSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the expected number of blocks, as they are stored."""
    grid = (spec.grid_rows, spec.grid_columns)
    grid = grid[::-1] if spec.transpose_sparse else grid
    places = np.random.default_rng(0).choice(grid[0] * grid[1], spec.blocks, replace=False)
    rows, columns = np.divmod(np.sort(places), grid[1])
    padding = spec.most_blocks - spec.blocks
    return np.pad(rows, (0, padding), constant_values=grid[0]).astype(np.int32), np.pad(columns, (0, padding)).astype(
        np.int32
    )


def called(spec: SparseSpec, chip: Chip, implementation: Implementation, *arrays: Array) -> Any:
    first, second, rows, columns, *rest = arrays
    options = call_options(spec, chip, implementation)
    options |= {"activation": spec.activation or None, "bias": rest[-1] if spec.bias else None}
    if spec.kind == "sdd":
        mask = BlockMask.of_sorted(rows, columns, spec.stored_shape, spec.stored_block)
        out = sparse_matmul(
            first, second, mask=mask, dense_out=spec.dense_out, transpose_rhs=spec.transpose_rhs, **options
        )
        return out.blocks if isinstance(out, BlockSparse) else out
    matrix = BlockSparse.of_sorted(first, rows, columns, spec.stored_shape)
    if spec.kind == "dsd":
        return sparse_matmul(matrix, second, transpose_lhs=spec.transpose_sparse, **options)
    return sparse_matmul(second, matrix, transpose_rhs=spec.transpose_sparse, **options)


def dense_by_xla(spec: SparseSpec, *arrays: Array) -> Any:
    """Multiply whole matrices with their zeros; for sdd return all blocks of the result."""
    first, second, rows, columns, *rest = arrays
    if spec.kind == "sdd":
        total = _dot(spec, first, second.mT if spec.transpose_rhs else second)
        if spec.dense_out:
            return total.astype(spec.dtype_out)
        cut = total.reshape(spec.grid_rows, spec.block_rows, spec.grid_columns, spec.block_columns).swapaxes(1, 2)
        return cut[jnp.minimum(rows, spec.grid_rows - 1), columns].astype(spec.dtype_out)
    dense = rest[0].mT if spec.transpose_sparse else rest[0]
    total = _dot(spec, *((dense, second) if spec.kind == "dsd" else (second, dense)))
    return finished(SparseProduct.of(spec, BY_XLA), total, rest[-1] if spec.bias else None)


def _dot(spec: SparseSpec, lhs: Array, rhs: Array) -> Array:
    plain = not (spec.bias or spec.activation)
    return lax.dot_general(
        lhs,
        rhs,
        (((1,), (0,)), ((), ())),
        precision=lax.Precision[spec.precision.upper()],
        preferred_element_type=jnp.dtype(spec.dtype_out if plain else accumulator_dtype(spec.dtype)),
    )


def _product(spec: SparseSpec, chip: Chip, config: KernelConfig, *arrays: Array) -> Array:
    product = SparseProduct.of(spec, Backend(implementation="pallas", chip=chip, tiles=config))
    first, second, rows, columns, *rest = arrays
    places = Places(rows, columns)
    if spec.kind == "sdd":
        return sampled_by_pallas(product, first, second, places)
    return product_by_pallas(product, first, second, rest[-1] if spec.bias else None, places)
