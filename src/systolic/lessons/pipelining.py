"""Pipelining · Copy the next block while this one is computed.

    z = x + y                       512 × 512 float32 in the text; here 8192 × 4096, which does not fit VMEM whole

A kernel computes on what lies in VMEM, the arrays lie in HBM, and the copies between take longer than the addition. Cut
into blocks, the copy of one block runs beside the addition of another. `grid` says how many blocks there are and
`BlockSpec` which block a step gets; Pallas makes the pipeline of it: two buffers of each block, a copy ahead for the
next step, a copy behind for the last one's result.

Adding two arrays asks for one operation an element and twelve bytes. It can only be as fast as HBM, so the question is
how much of HBM's time is used. Without a second buffer each step copies, then adds, then copies back, one after the
other: the same bytes take much longer.

Grid: none; (i,) over blocks of rows; (i, j) over blocks of rows and columns. In VMEM: x, y and z whole; or a block of
each, twice.

The page that this follows: Pallas TPU, "Pipelining".
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float32

from systolic.chips import Chip
from systolic.explaining.limits import windows
from systolic.lessons.lesson import Lesson, Part
from systolic.lessons.showing import show
from systolic.measure import simulate


def add_matrices_kernel(
    x_vmem,  # [bm, bn] float32
    y_vmem,  # the same
    z_vmem,  # the same
):
    """Loads x and y into registers, adds, stores z; Pallas has copied the blocks."""
    z_vmem[...] = x_vmem[...] + y_vmem[...]


def add_matrices(x: Float32[Array, "m n"], y: Float32[Array, "m n"]) -> Float32[Array, "m n"]:
    """x + y, both whole in VMEM: nothing is added before everything has been copied."""
    return pl.pallas_call(add_matrices_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), name="whole")(x, y)


def add_matrices_pipelined(
    x: Float32[Array, "m n"], y: Float32[Array, "m n"], *, bm: int = 256
) -> Float32[Array, "m n"]:
    """x + y by blocks of `bm` whole rows."""
    block = pl.BlockSpec((bm, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        add_matrices_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // bm,),
        in_specs=[block, block],
        out_specs=block,
        name="pipelined",
    )(x, y)


def add_matrices_pipelined_2d(
    x: Float32[Array, "m n"], y: Float32[Array, "m n"], *, bm: int = 256, bn: int = 256, buffers: int = 2
) -> Float32[Array, "m n"]:
    """x + y by blocks of bm × bn; with one buffer of each there is no pipeline, only blocks."""
    mode = None if buffers == 2 else pl.Buffered(buffers)
    block = pl.BlockSpec((bm, bn), lambda i, j: (i, j), pipeline_mode=mode)
    return pl.pallas_call(
        add_matrices_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // bm, x.shape[1] // bn),
        in_specs=[block, block],
        out_specs=block,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        name=f"pipelined_{bm}_{bn}_{buffers}",
    )(x, y)


def _added(x: Array, y: Array) -> Array:
    return x + y


def _shapes(m: int, n: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return (jax.ShapeDtypeStruct((m, n), jnp.float32),) * 2


LARGE, SMALL = _shapes(8192, 4096), _shapes(512, 512)
PARTS = (
    Part(name="whole 512²", fn=add_matrices, args=SMALL, reference=_added),
    Part(name="rows", fn=functools.partial(add_matrices_pipelined, bm=128), args=LARGE, reference=_added),
    *(
        Part(
            name=f"blocks of {bm}×{bn}",
            fn=functools.partial(add_matrices_pipelined_2d, bm=bm, bn=bn),
            args=LARGE,
            reference=_added,
        )
        for bm, bn in ((128, 128), (256, 256), (512, 512), (512, 1024))
    ),
    Part(
        name="not pipelined",
        fn=functools.partial(add_matrices_pipelined_2d, bm=512, bn=512, buffers=1),
        args=LARGE,
        reference=_added,
    ),
)


def steady_step(buffers: int, chip: Chip) -> str:
    """What the simulator's timeline shows of one step in the middle, in words."""
    fn = functools.partial(add_matrices_pipelined_2d, bm=512, bn=512, buffers=buffers)
    found = windows(simulate(fn, *LARGE, chip=chip, spans=60))
    return next(each.words for each in found if each.title == "one steady step")


def lesson(chips: Sequence[Chip]) -> Lesson:
    """The same addition whole, by rows, by blocks of four sizes, and by blocks without a pipeline."""
    found = show(PARTS, chips)
    pipelined = found.ratios("blocks of 512×512", "not pipelined", chips)
    larger = found.ratios("blocks of 512×512", "blocks of 128×128", chips)
    return Lesson(
        name="pipelining",
        title="Memory spaces and pipelining: x + y, 8192 × 4096 float32",
        lines=(
            "Whole, arrays of 512² fit VMEM and these do not; by blocks any size does, and copies run beside it.",
            f"Blocks of 512×512 with a pipeline against the same without: {pipelined} as fast.",
            f"Blocks of 512×512 against 128×128: {larger} as fast, since a step costs time of its own.",
            f"A step in the middle on {chips[0].name}, with a pipeline: {steady_step(2, chips[0])}",
            f"The same without: {steady_step(1, chips[0])}",
        ),
        rows=found.rows,
        ok=found.ok,
    )


if __name__ == "__main__":
    import sys

    from systolic.cli import main

    sys.exit(main(["lessons", "pipelining", *sys.argv[1:]]))
