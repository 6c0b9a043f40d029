"""pl.kernel · The kernel holds the arrays where they lie, and runs its pipeline itself.

    acc[i, j]  = Σ_kk x[i, kk] @ y[kk, j]                                 4096³, bfloat16, summed in float32
    out[i, j]  = acc rounded to bfloat16                                  once, at the last kk

`pl.pallas_call` has one grid, and the compiler makes the pipeline. `pl.kernel` has a mesh of cores: its body runs once
on each, and is given references to the arrays in HBM. Inside, `pltpu.emit_pipeline` is the loop over blocks, written
out: the same grid and block specifications, but now a call in the body, which could run two of them, or one over part
of an array. `core_axis_name` shares the parallel axes of its grid among the cores of the mesh.

The pipeline may be deeper than that of `pallas_call`, which has two buffers of a block or one. With a third, two copies
are under way while a step computes, and a long one no longer holds up the next step. With `use_lookahead`, the next
*other* block is fetched as soon as a buffer is free, however many steps ahead it is: x's next row of blocks comes
during all steps of this row, not during the last. It has an effect only where a block stays for several steps: here
with blocks of all of k, so that x's stays for a whole row of the output.

The notes' own sketch leaves open: where the sum lives (`acc_ref` is never used; adding to a bfloat16 output rounds at
every step), that y's block is bk × bn and the output's bm × bn, and on how many cores it runs. The answer is below: the
sum is a scratch buffer, cleared at the first step along k and rounded at the last; the mesh is of all cores of the
device, and the rows and columns of blocks are "parallel", so that two cores halve them.

Grid: (i, j, kk) = (m/bm, n/bn, k/bk), kk innermost, of the inner pipeline. In VMEM: two or three blocks of x and y, two
of out, acc once.

The notes that this follows: "Pallas Tutorial Notes", pl.kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, BFloat16

from systolic.chips import Chip
from systolic.compat import tensorcore_mesh
from systolic.lessons.ladder import RUNGS
from systolic.lessons.lesson import Lesson, Part, everywhere
from systolic.lessons.showing import show
from systolic.tiling import Tiles

_VMEM_LIMIT_BYTES = 40 * 2**20  # blocks of all of k take 31.4 MiB, and kernels are given 16 to 32 unasked


def multiply_blocks_kernel(
    x_vmem,  # [bm, bk] bfloat16
    y_vmem,  # [bk, bn] bfloat16
    out_vmem,  # [bm, bn] bfloat16
    acc_vmem,  # [bm, bn] float32, scratch of the kernel around it
    *,
    steps: int,
):
    """One step of the inner pipeline: adds a product of blocks; rounds the sum into the output at the last."""

    @pl.when(pl.program_id(2) == 0)
    def _clear():
        acc_vmem[...] = jnp.zeros_like(acc_vmem)

    acc_vmem[...] += lax.dot_general(
        x_vmem[...], y_vmem[...], (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )

    @pl.when(pl.program_id(2) == steps - 1)
    def _finish():
        out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)


def matmul_kernel(
    x: BFloat16[Array, "m k"],
    y: BFloat16[Array, "k n"],
    *,
    bm: int = 512,
    bk: int | None = 1024,
    bn: int = 1024,
    buffers: tuple[int, int] = (2, 2),
    lookahead: bool = False,
    cores: int | None = None,
) -> BFloat16[Array, "m n"]:
    """x @ y by blocks.

    Args:
      x, y: of sizes that the blocks divide.
      bm, bk, bn: rows, depth and columns of the blocks; `bk=None`: all of k.
      buffers: of blocks of x and of y.
      lookahead: whether x's next other block is fetched as soon as a buffer is free.
      cores: of the mesh; None: those of the device.
    """
    (m, k), n = x.shape, y.shape[1]
    depth = bk or k

    def body(
        x_hbm,  # [m, k] bfloat16
        y_hbm,  # [k, n] bfloat16
        out_hbm,  # [m, n] bfloat16
        acc_vmem,  # [bm, bn] float32, scratch
    ):
        pltpu.emit_pipeline(
            functools.partial(multiply_blocks_kernel, acc_vmem=acc_vmem, steps=k // depth),
            grid=(m // bm, n // bn, k // depth),
            in_specs=[
                pl.BlockSpec(
                    (bm, depth),
                    lambda i, j, kk: (i, kk),
                    pipeline_mode=pl.Buffered(buffers[0], use_lookahead=lookahead),
                ),
                pl.BlockSpec((depth, bn), lambda i, j, kk: (kk, j), pipeline_mode=pl.Buffered(buffers[1])),
            ],
            out_specs=[pl.BlockSpec((bm, bn), lambda i, j, kk: (i, j))],
            core_axis_name="core",
            dimension_semantics=(pltpu.PARALLEL, pltpu.PARALLEL, pltpu.ARBITRARY),
        )(x_hbm, y_hbm, out_hbm)

    multiply: Callable[..., Any] = pl.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), x.dtype),
        mesh=tensorcore_mesh("core", num_cores=cores),
        scratch_types=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=None if bk else _VMEM_LIMIT_BYTES),
        name="matmul_kernel",
    )
    return multiply(x, y)


def _product(x: Array, y: Array) -> Array:
    return x @ y


def _operands(m: int, k: int, n: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return jax.ShapeDtypeStruct((m, k), jnp.bfloat16), jax.ShapeDtypeStruct((k, n), jnp.bfloat16)


def _too_large(chip: Chip) -> str:
    limit, has = _VMEM_LIMIT_BYTES / 2**20, chip.usable_vmem_bytes_per_core / 2**20
    return "" if has >= limit else f"a core has {has:.0f} MiB of VMEM, and {limit:.0f} are asked for"


def _one_core(chip: Chip) -> str:
    return "" if chip.cores_per_device > 1 else "its device is one core"


_ROW = {"bm": 1024, "bk": None, "bn": 256, "buffers": (2, 3)}  # x's block stays for a row of the output
_VARIANTS = {
    "two buffers": {},
    "three buffers": {"buffers": (3, 3)},
    "all of k": _ROW,
    "all of k, lookahead": {**_ROW, "lookahead": True},
}
PARTS = (
    Part(
        name="ladder v5",
        fn=functools.partial(
            RUNGS["v5"].multiply, tiles=Tiles(tile_m=512, tile_k=1024, tile_n=1024), dtype_out="bfloat16"
        ),
        args=_operands(4096, 4096, 4096),
        run_args=_operands(1024, 2048, 1024),
        reference=_product,
    ),
    *(
        Part(
            name=name,
            fn=functools.partial(matmul_kernel, **chosen),
            args=_operands(4096, 4096, 4096),
            run_args=_operands(2048, 256, 512) if "bk" in chosen else _operands(1024, 2048, 2048),
            reference=_product,
            lacks=everywhere if chosen.get("bk", True) else _too_large,
        )
        for name, chosen in _VARIANTS.items()
    ),
    Part(
        name="one core of two",
        fn=functools.partial(matmul_kernel, cores=1),
        args=_operands(4096, 4096, 4096),
        run_args=_operands(1024, 2048, 1024),
        reference=_product,
        lacks=_one_core,
    ),
    # Two cores share one VMEM and HBM in interpret mode, and the race detector sees both: also for chips of one core.
    Part(
        name="two cores, run only",
        fn=functools.partial(matmul_kernel, cores=2),
        args=_operands(1024, 2048, 2048),
        reference=_product,
        simulated=False,
    ),
)


def lesson(chips: Sequence[Chip]) -> Lesson:
    """The product of the ladder's v5 on a mesh of cores, with deeper pipelines, and with lookahead."""
    found = show(PARTS, chips)
    same = found.ratios("two buffers", "ladder v5", chips)
    deeper = found.ratios("three buffers", "two buffers", chips)
    lookahead = found.ratios("all of k, lookahead", "all of k", chips)
    waits = ", ".join(
        f"{chip.name} {before:.1%} → {after:.1%}"
        for chip in chips
        if (before := found["all of k", chip.name].waiting) is not None
        and (after := found["all of k, lookahead", chip.name].waiting) is not None
    )
    cores = found.ratios("two buffers", "one core of two", chips)
    return Lesson(
        name="pl_kernel",
        title="pl.kernel: x @ y, 4096³ bfloat16, by a pipeline inside a kernel on a mesh of cores",
        lines=(
            f"The same blocks as the ladder's v5, 512/1024/1024 (m/k/n), against v5: {same} as fast.",
            f"Three buffers of x and y against two: {deeper} as fast.",
            *([f"Blocks of all of k: lookahead for x {lookahead} as fast; waits for copies {waits}."] if waits else []),
            *([f"The mesh of all cores of a device against one of them: {cores} as fast."] if cores else []),
        ),
        rows=found.rows,
        ok=found.ok,
    )


if __name__ == "__main__":
    import sys

    from systolic.cli import main

    sys.exit(main(["lessons", "pl_kernel", *sys.argv[1:]]))
