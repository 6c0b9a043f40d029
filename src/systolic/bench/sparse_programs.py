"""The programs of the sparse suite: ours, dense XLA, and other kernels that users write or copy."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.bench.docs_kernel import one_block_a_step
from systolic.bench.sparse import PatternSpec
from systolic.chips import Chip
from systolic.ops.op_programs import Peer, RacedPrograms
from systolic.ops.sparse import BlockSparse, sparse_matmul
from systolic.ops.sparse.programs import arguments_of, called, dense_by_xla
from systolic.ops.sparse.spec import SparseSpec
from systolic.support.bugs import runs_user_code

_DOCS_COLUMNS = 512  # of a tile of the docs' kernel


def raced(spec: PatternSpec, chip: Chip, implementation: Any = "pallas") -> RacedPrograms:
    """Return both programs. Rows and columns of blocks are arrays, whose values a simulation has to know."""
    planned = spec.planned
    ours: Any = functools.partial(called, planned, chip, implementation)
    xla: Any = functools.partial(dense_by_xla, planned)
    if spec.backward:
        ours = functools.partial(_backward, planned, chip, implementation)
        xla = functools.partial(_dense_backward, planned)
    return RacedPrograms(spec=spec, arguments=arguments_of(planned, *spec.places), ours=ours, xla=xla)


def peers(spec: PatternSpec) -> Iterator[Peer]:
    """Yield the kernel of JAX's documentation, and XLA's products of gathered blocks, both for dsd."""
    if spec.planned.kind != "dsd" or spec.backward:
        return
    columns = next(size for size in (_DOCS_COLUMNS, 256, 128) if spec.n % size == 0)
    yield Peer(
        name="jax docs", config=f"bn {columns}", program=functools.partial(_by_docs, spec.planned.blocks, columns)
    )
    yield Peer(name="gather", program=functools.partial(_gathered, spec.planned))


@runs_user_code  # any error of a public kernel is its result
def _by_docs(count: int, columns: int, blocks: Array, rhs: Array, rows: Any, places: Any, dense: Array) -> Array:
    zeros = jnp.zeros((dense.shape[0], rhs.shape[1]), rhs.dtype)
    return one_block_a_step(rows, places, blocks, rhs, zeros, count=count, bn=columns)


@runs_user_code
def _gathered(spec: SparseSpec, blocks: Array, rhs: Array, rows: Any, places: Any, _whole: Array) -> Array:
    """Gather a row of blocks of rhs for each block, multiply the batch, and sum."""
    cut = rhs.reshape(spec.grid_columns, spec.block_columns, spec.n)
    products = lax.dot_general(blocks, cut[places], (((2,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32)
    total = jax.ops.segment_sum(products, rows, spec.grid_rows, indices_are_sorted=True)
    return total.reshape(spec.m, spec.n).astype(spec.dtype_out)


def _backward(
    spec: SparseSpec, chip: Chip, implementation: Any, blocks: Array, rhs: Array, rows: Any, columns: Any, _whole: Array
) -> tuple[Array, Array]:
    """Return both gradients for a cotangent as large as the result; it is taken from rhs."""

    def product(blocks: Array, rhs: Array) -> Any:
        matrix = BlockSparse.of_sorted(blocks, rows, columns, spec.sparse_shape)
        return sparse_matmul(matrix, rhs, implementation=implementation, chip=chip)

    cotangent = rhs[: spec.m]
    return jax.vjp(product, blocks, rhs)[1](cotangent)


def _dense_backward(
    spec: SparseSpec, _blocks: Array, rhs: Array, _rows: Any, _columns: Any, dense: Array
) -> tuple[Array, Array]:
    return jax.vjp(lambda dense, rhs: jnp.matmul(dense, rhs), dense, rhs)[1](rhs[: spec.m])
