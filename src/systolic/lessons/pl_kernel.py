"""Run the kernels of `kernels/pl_kernel.py`, and report the results."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from systolic.chips import Chip
from systolic.lessons.kernels.pl_kernel import _VMEM_LIMIT_BYTES, matmul_kernel
from systolic.lessons.ladder import RUNGS
from systolic.lessons.lesson import Lesson, Part, everywhere
from systolic.lessons.runner import run_parts
from systolic.schedule import Tiles


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
    """Run the product of the ladder's v5 on a mesh of cores, with deeper pipelines, and with lookahead."""
    results = run_parts(PARTS, chips)
    same = results.ratios("two buffers", "ladder v5", chips)
    deeper = results.ratios("three buffers", "two buffers", chips)
    lookahead = results.ratios("all of k, lookahead", "all of k", chips)
    waits = ", ".join(
        f"{chip.name} {before:.1%} → {after:.1%}"
        for chip in chips
        if (before := results["all of k", chip.name].waiting) is not None
        and (after := results["all of k, lookahead", chip.name].waiting) is not None
    )
    cores = results.ratios("two buffers", "one core of two", chips)
    return Lesson(
        lines=(
            f"The same blocks as the ladder's v5, 512/1024/1024 (m/k/n), against v5: {same} as fast.",
            f"Three buffers of x and y against two: {deeper} as fast.",
            *([f"Blocks of all of k: lookahead for x {lookahead} as fast; waits for copies {waits}."] if waits else []),
            *([f"The mesh of all cores of a device against one of them: {cores} as fast."] if cores else []),
        ),
        rows=results.rows,
        ok=results.ok,
    )
