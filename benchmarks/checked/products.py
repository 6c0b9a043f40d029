"""Products in tiles of 128, with faults in sums, tails, index maps and types."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from checked.case import Case, array, faulty, sound
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

T = 128


def plain(lhs, rhs):
    """lhs @ rhs."""
    if jnp.issubdtype(lhs.dtype, jnp.integer):
        return jnp.matmul(lhs, rhs, preferred_element_type=jnp.int32)
    return jnp.matmul(lhs, rhs, precision="highest")


def product(lhs, rhs, *, fault="", dtype_out=None):
    """lhs @ rhs, the sum in scratch memory."""
    (m, k), n = lhs.shape, rhs.shape[1]
    is_integer = jnp.issubdtype(lhs.dtype, jnp.integer)
    total = jnp.int32 if is_integer else jnp.float32
    acc = {"sum in bfloat16": jnp.bfloat16, "sum in eight bits": jnp.int8}.get(fault, total)
    grid = [pl.cdiv(m, T), pl.cdiv(n, T), pl.cdiv(k, T)]
    if fault == "tail of k dropped":
        grid[2] = k // T
    if fault == "tail of rows dropped":
        grid[0] = m // T

    def body(lhs_vmem, rhs_vmem, out_vmem, acc_vmem):
        i, j, kk = (pl.program_id(axis) for axis in range(3))
        first = {"cleared once only": (i == 0) & (j == 0) & (kk == 0), "cleared at the second step": kk == 1}
        if fault != "never cleared":

            @pl.when(first.get(fault, kk == 0))
            def _():
                acc_vmem[...] = jnp.zeros_like(acc_vmem)

        left_block, right_block = lhs_vmem[...], rhs_vmem[...]
        left = k - kk * T
        if fault == "mask one too far":
            left = left + 1
        if fault != "ends not masked":
            left_block = jnp.where(
                lax.broadcasted_iota(jnp.int32, left_block.shape, 1) < left, left_block, jnp.zeros_like(left_block)
            )
        if fault not in ("ends not masked", "only lhs masked"):
            right_block = jnp.where(
                lax.broadcasted_iota(jnp.int32, right_block.shape, 0) < left, right_block, jnp.zeros_like(right_block)
            )
        if fault == "overwrites its sum":
            acc_vmem[...] = jnp.dot(left_block, right_block, preferred_element_type=total)
        else:
            acc_vmem[...] = (acc_vmem[...] + jnp.dot(left_block, right_block, preferred_element_type=total)).astype(acc)
        last = {"stored one step early": kk == pl.num_programs(2) - 2}

        @pl.when(last.get(fault, kk == pl.num_programs(2) - 1))
        def _():
            out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)

    rhs_index = {
        "rhs by the wrong axis": lambda i, j, kk: (kk, i),
        "index in elements": lambda i, j, kk: (kk * T, j),
        "index leaves its array": lambda i, j, kk: (kk + i, j),
        "one block for all of k": lambda i, j, kk: (0, j),
    }
    out_index = {
        "output turned": lambda i, j, kk: (j, i),
        "output always first": lambda i, j, kk: (0, j),
    }
    semantics = ("parallel", "parallel", "parallel" if fault == "sum on a parallel axis" else "arbitrary")
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), dtype_out or total),
        grid=tuple(grid),
        in_specs=[
            pl.BlockSpec((T, T), lambda i, j, kk: (i, kk)),
            pl.BlockSpec((T, T), rhs_index.get(fault, lambda i, j, kk: (kk, j))),
        ],
        out_specs=pl.BlockSpec((T, T), out_index.get(fault, lambda i, j, kk: (i, j))),
        scratch_shapes=[pltpu.VMEM((T, T), acc)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
    )(lhs, rhs)


def in_output(lhs, rhs, *, fault=""):
    """lhs @ rhs, the sum in the output block."""
    (m, k), n = lhs.shape, rhs.shape[1]
    axes = {"sum on the first axis": (1, 2, 0)}.get(fault, (0, 1, 2))  # where i, j, kk stand in the grid
    sizes = [0, 0, 0]
    for axis, size in zip(axes, (m // T, n // T, k // T), strict=True):
        sizes[axis] = size

    def body(lhs_vmem, rhs_vmem, out_vmem):
        kk = pl.program_id(axes[2])
        if fault == "cleared by the first block only":
            kk = kk + pl.program_id(axes[0]) + pl.program_id(axes[1])
        if fault != "never cleared":

            @pl.when(kk == 0)
            def _():
                out_vmem[...] = jnp.zeros_like(out_vmem)

        out_vmem[...] += jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=out_vmem.dtype)

    def at(*names):
        return lambda *place: tuple(place[axes["ijk".index(name)]] for name in names)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        grid=tuple(sizes),
        in_specs=[pl.BlockSpec((T, T), at("i", "k")), pl.BlockSpec((T, T), at("k", "j"))],
        out_specs=pl.BlockSpec((T, T), at("i", "j")),
    )(lhs, rhs)


def whole_k(lhs, rhs, *, fault="", tile_m=T, tile_n=T):
    """lhs @ rhs, all of k at once."""
    (m, k), n = lhs.shape, rhs.shape[1]
    tile_m = {"rows of no register": 100, "block above the array": 2 * m}.get(fault, tile_m)
    rows = m // tile_m if fault == "block above the array" else pl.cdiv(m, tile_m)
    precision = lax.Precision.HIGH if fault == "precision HIGH" else None
    mode = pl.Buffered(3) if fault == "three buffers" else None

    def body(lhs_vmem, rhs_vmem, out_vmem):
        left_block, right_block = lhs_vmem[...], rhs_vmem[...]
        total = jnp.float32 if fault == "float sum of integers" else out_vmem.dtype
        out_vmem[...] = jnp.dot(left_block, right_block, preferred_element_type=total, precision=precision).astype(
            out_vmem.dtype
        )

    is_integer = jnp.issubdtype(lhs.dtype, jnp.integer)
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.int32 if is_integer else jnp.float32),
        grid=(rows, pl.cdiv(n, tile_n)),
        in_specs=[
            pl.BlockSpec((tile_m, k), lambda i, j: (i, 0), pipeline_mode=mode),
            pl.BlockSpec((k, tile_n), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((tile_m, tile_n), lambda i, j: (i, j)),
    )(lhs, rhs)


BF16 = array(256, 384, dtype="bfloat16"), array(384, 256, dtype="bfloat16")
DEEP = array(256, 1024, dtype="bfloat16"), array(1024, 256, dtype="bfloat16")
F32 = array(256, 256), array(256, 256)
UNEVEN = array(200, 300, dtype="bfloat16"), array(300, 250, dtype="bfloat16")
INT8 = array(256, 384, dtype="int8"), array(384, 256, dtype="int8")

SOUND: tuple[Case, ...] = (
    *(sound(product, *args, reference=plain, name=name) for name, args in
      {"bf16": BF16, "deep": DEEP, "f32": F32, "uneven": UNEVEN, "int8": INT8}.items()),
    sound(product, *BF16, reference=plain, dtype_out="bfloat16"),
    sound(product, *UNEVEN, reference=None, name="uneven, no reference"),
    *(sound(in_output, *args, reference=plain, name=name) for name, args in {"bf16": BF16, "f32": F32}.items()),
    sound(in_output, *BF16, reference=None, name="no reference"),
    *(sound(whole_k, *args, reference=plain, name=name) for name, args in
      {"bf16": BF16, "f32": F32, "int8": INT8, "uneven": UNEVEN}.items()),
    sound(whole_k, *BF16, reference=plain, tile_m=64, tile_n=256),
)  # fmt: skip

FAULTS: tuple[Case, ...] = (
    faulty(product, "tail of k dropped", *UNEVEN, reference=plain, rules="dropped-tail wrong-result"),
    faulty(product, "tail of k dropped", *UNEVEN, reference=None, rules="dropped-tail"),
    faulty(product, "tail of rows dropped", *UNEVEN, reference=plain, rules="unwritten-output dropped-tail nan"),
    faulty(product, "tail of rows dropped", *UNEVEN, reference=None, rules="unwritten-output dropped-tail nan"),
    faulty(product, "never cleared", *BF16, reference=plain, rules="uninitialised nan"),
    faulty(product, "cleared once only", *BF16, reference=plain, rules="wrong-result uninitialised nan"),
    faulty(product, "cleared at the second step", *BF16, reference=plain, rules="wrong-result uninitialised nan"),
    faulty(product, "ends not masked", *UNEVEN, reference=plain, rules="edge-block nan"),
    faulty(product, "only lhs masked", *UNEVEN, reference=plain, rules="edge-block nan"),
    faulty(product, "mask one too far", *UNEVEN, reference=None, rules="edge-block nan"),
    faulty(product, "overwrites its sum", *BF16, reference=plain, rules="wrong-result"),
    faulty(product, "stored one step early", *BF16, reference=plain, rules="wrong-result"),
    faulty(product, "rhs by the wrong axis", *F32, reference=plain, rules="wrong-result"),
    faulty(product, "index in elements", *F32, reference=plain, rules="block-outside out-of-bounds"),
    faulty(product, "index leaves its array", *F32, reference=plain, rules="block-outside out-of-bounds"),
    faulty(product, "one block for all of k", *BF16, reference=plain, rules="wrong-result dropped-tail"),
    faulty(product, "output turned", *F32, reference=plain, rules="wrong-result"),
    faulty(product, "output always first", *BF16, reference=plain,
           rules="parallel-revisit revisited-output unwritten-output nan"),
    faulty(product, "sum on a parallel axis", *BF16, reference=plain, rules="parallel-revisit order wrong-result"),
    faulty(product, "sum in bfloat16", *DEEP, reference=plain, rules="precision"),
    faulty(product, "sum in eight bits", *INT8, reference=plain, rules="wrong-result"),
    faulty(in_output, "never cleared", *BF16, reference=plain, rules="uninitialised nan"),
    faulty(in_output, "never cleared", *BF16, reference=None, rules="uninitialised nan"),
    faulty(in_output, "cleared by the first block only", *BF16, reference=plain, rules="uninitialised nan"),
    faulty(in_output, "cleared by the first block only", *BF16, reference=None, rules="uninitialised nan"),
    faulty(in_output, "sum on the first axis", *F32, reference=plain, rules="revisited-output"),
    faulty(in_output, "sum on the first axis", *F32, reference=None, rules="revisited-output"),
    faulty(whole_k, "rows of no register", *BF16, reference=plain, rules="block-alignment"),
    faulty(whole_k, "block above the array", *BF16, reference=plain, rules="empty-grid unwritten-output"),
    faulty(whole_k, "precision HIGH", *F32, reference=plain, rules="precision"),
    faulty(whole_k, "three buffers", *BF16, reference=plain, rules="buffering"),
    faulty(whole_k, "float sum of integers", *INT8, reference=plain, rules="dot-dtype"),
)  # fmt: skip
