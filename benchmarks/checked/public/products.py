"""JAX's products: its example, megablox' grouped products with gradients, and the kernel that its tests double with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from checked.case import Case, array, sound
from checked.public.plain import gradient
from jax.experimental.pallas.ops.tpu import matmul as pallas_matmul
from jax.experimental.pallas.ops.tpu.megablox import gmm as gmm_with_gradient
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm

SIZES = np.array([100, 0, 140, 16], np.int32)
TILES = (128, 128, 128)


def product(lhs, rhs):
    """JAX's example of a product."""
    return pallas_matmul.matmul(lhs, rhs, block_shape=(128, 128), block_k=128)


def grouped(lhs, rhs, sizes, *, transposed=False):
    """Groups of rows, each times its group's matrix."""
    return gmm(lhs, rhs, sizes, jnp.float32, tiling=TILES, transpose_rhs=transposed)


def grouped_onto(lhs, rhs, sizes, out):
    """Only the second and the third group, written into an existing array."""
    return gmm(lhs, rhs, sizes, jnp.float32, tiling=TILES, group_offset=jnp.int32(1), existing_out=out)


def grouped_by_columns(lhs, rhs, sizes):
    """Groups of columns of lhs, each times the rows of rhs of its group: one matrix per group."""
    return tgmm(lhs, rhs, sizes, jnp.float32, tiling=TILES)


def grouped_gradient(lhs, rhs, sizes):
    """The gradient of a weighted sum, by both operands."""
    return gradient(lambda *both: gmm_with_gradient(*both, sizes, jnp.float32, TILES), 2)(lhs, rhs)


def grouped_in_float32(lhs, rhs, sizes):
    """`grouped` without a kernel, in sums that are said to be of float32."""
    return jax.lax.ragged_dot(lhs, rhs, sizes, preferred_element_type=jnp.float32)


def _rows(sizes, group, length):
    ends = jnp.cumsum(sizes)
    at = jnp.arange(length)
    return (at < ends[group]) & (at >= ends[group] - sizes[group])


def grouped_plain(lhs, rhs, sizes, *, groups=None, transposed=False):
    out = jnp.zeros((lhs.shape[0], rhs.shape[1 if transposed else 2]), lhs.dtype)
    for at, group in enumerate(groups or range(len(SIZES))):
        matrix = rhs[at].T if transposed else rhs[at]
        out = jnp.where(_rows(sizes, group, lhs.shape[0])[:, None], lhs @ matrix, out)
    return out


def _onto_plain(lhs, rhs, sizes, out):
    rows = _rows(sizes, 1, lhs.shape[0]) | _rows(sizes, 2, lhs.shape[0])
    return jnp.where(rows[:, None], grouped_plain(lhs, rhs, sizes, groups=(1, 2)), out)


def columns_plain(lhs, rhs, sizes):
    """One matrix per group, without a kernel."""
    return jnp.stack([(lhs * _rows(sizes, index, lhs.shape[1])) @ rhs for index in range(len(SIZES))])


def _gradient_plain(lhs, rhs, sizes):
    return gradient(lambda left, right: grouped_plain(left, right, sizes), 2)(lhs, rhs)


def _operands(dtype="float32", groups=4) -> tuple[jax.ShapeDtypeStruct, ...]:
    return array(256, 256, dtype=dtype), array(groups, 256, 128, dtype=dtype)


SOUND: tuple[Case, ...] = (
    sound(product, *(array(256, 256, dtype="bfloat16"),) * 2, reference=jnp.matmul),
    *(sound(grouped, *_operands(dtype), SIZES, reference=grouped_plain, name=dtype)
      for dtype in ("float32", "bfloat16")),
    sound(grouped, array(256, 256), array(4, 128, 256), SIZES, transposed=True,
          reference=lambda *given: grouped_plain(*given, transposed=True)),
    sound(grouped, *_operands(), SIZES, reference=grouped_in_float32, name="reference in float32"),
    sound(grouped_onto, *_operands(groups=2), SIZES, array(256, 128), reference=_onto_plain),
    sound(grouped_by_columns, array(256, 256), array(256, 128), SIZES, reference=columns_plain),
    sound(grouped_gradient, *_operands(), SIZES, reference=_gradient_plain),
)  # fmt: skip
