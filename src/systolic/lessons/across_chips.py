"""Across chips · A product whose rows are on other chips, gathered while it is computed.

    step 1   gather, then multiply                          links + matrix units
    step 2   a ring, one way: a hop and a product at once   the slower one, but links used in one direction
    step 3   the ring both ways                             the slower one

The three kernels are in files of their own. Each device has a chunk of x, 256 × 4096, and some columns of w, and needs
the rows of all devices times its columns.

Overlap alone does not win: XLA's all-gather of step 1 sends both ways, so step 2 hides the products but takes twice as
long on the links. On a v6e and a v7x that makes it slower than step 1; on a v5e, with slower matrix units and more to
hide, it is level.

Faults are in the waits again, and one of them is even faster:

    late       waits moved to the end: rows are multiplied and passed on that may not have arrived, and it is faster,
               because a hop no longer waits for the one before; only race detection shows the fault
    in turn    the next chunk is awaited before this one is multiplied: right, and as slow as step 1

A hop takes longer than its bytes: the core notices that a chunk has arrived, starts the next copy, and the copy crosses
a link. `systolic.all_gather_matmul` cuts chunks in pieces, so that one piece is on its way while the core deals with
another, and passes whole chunks both ways, in half as many hops.

The times include the copy that XLA makes of a collective kernel's result: one more write and read of HBM. "Wire" is the
time of the bytes over one link, "product" is the time of all products at the rate of the matrix units of a device. On
v5p a device has two cores, and the kernels use one of them.

This follows Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning
Models" (ASPLOS 2023). XLA has it too, as windowed einsum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from systolic.chips import Chip
from systolic.lessons.kernels.gather_then_multiply import gather_then_multiply
from systolic.lessons.kernels.ring_both_ways import ring_both_ways
from systolic.lessons.kernels.ring_matmul import ring_matmul
from systolic.lessons.kernels.rings import RING
from systolic.lessons.lesson import Lesson
from systolic.lessons.on_ring import VIRTUAL_DEVICES, RingPart, Shapes, run_on_ring

M, K, N = 256, 4096, 2048  # of one device: rows of x, of w, and columns of w
_RUN_SIZES = (32, 128, 128)
_LEFT_OUT = ("link_mb", "skew_us")  # so that the table fits its page; `wire_us` tells the bytes too
_ROWS_CUT, _COLUMNS_CUT = PartitionSpec(RING), PartitionSpec(None, RING)


def _product(x: Array, w: Array) -> Array:
    return x @ w


def _operands(devices: int, m: int = M, k: int = K, n: int = N) -> Shapes:
    return tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((devices * m, k), (k, devices * n)))


def _part(name: str, kernel: Callable[..., Any], *, ways: int = 2, finds: str = "") -> RingPart:
    return RingPart(
        name=name,
        kernel=kernel,
        in_specs=(_ROWS_CUT, _COLUMNS_CUT),
        out_specs=_COLUMNS_CUT,
        arguments=_operands,
        run_arguments=_operands(VIRTUAL_DEVICES, *_RUN_SIZES),
        link_bytes=lambda devices: (devices - 1) * M * K * 2 // ways,
        reference=_product,
        finds=finds,
    )


PRODUCTS = (
    _part("gather, then multiply", gather_then_multiply),
    _part("ring, one way", ring_matmul, ways=1),
    _part("ring, both ways", ring_both_ways),
    _part("both ways, late", functools.partial(ring_both_ways, late=True), finds="race"),
    _part("both ways, in turn", functools.partial(ring_both_ways, in_turn=True)),
)


def product_us(chip: Chip) -> float:
    """Return the time of a device's products at the peak of its matrix units."""
    return 2 * chip.ring_devices * M * K * N / chip.peak_ops_per_s("bfloat16") * 1e6


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Run the three steps and both faults on virtual devices, and simulate them on each chip's slice."""
    results = run_on_ring(PRODUCTS, chips)
    peaks = {chip.name: product_us(chip) for chip in chips}
    gathered, one_way, both_ways, late, in_turn = (part.name for part in PRODUCTS)
    return Lesson(
        lines=(
            f"{results.soundness(PRODUCTS)}; if the waits are late, the run finds: {results.violations(late)}.",
            f"Gather, then multiply → ring → both ways, simulated: {results.times(gathered, one_way, both_ways)}.",
            f"The race costs nothing, waits in time → late: {results.times(both_ways, late)}.",
            f"A wait before the product does, after → before: {results.times(both_ways, in_turn)}.",
        ),
        rows=tuple(
            {key: value for key, value in row.items() if key not in _LEFT_OUT} | {"product_us": peaks[str(row["chip"])]}
            for row in results.rows
        ),
        ok=results.ok,
    )
