"""Between chips · An all-gather and a reduce-scatter by hand, in a ring of chips.

    all-gather       every device ends with all blocks        each sends 1 MiB on, seven times, with eight devices
    reduce-scatter   every device ends with one block's sum   the same bytes in the other direction

The kernels are in `kernels/rings.py`. They get references to HBM and copy from there, to a neighbor's HBM or VMEM: a
kernel that only moves bytes needs no block in VMEM.

In a ring, either collective sends (count − 1) blocks over each link, and no other route sends fewer. But a link carries
both directions at once. Half of each block to the right and half to the left is the same program with two copies a hop,
and takes half the time.

Faults of collectives are in their waits, and the time does not show them:

    a wait too few   the neighbor's copy is passed on, perhaps before it has arrived: a race, and no slower
    a wait too many  one direction's copy is waited for before the other's starts: right, and no faster than one way

If a wait is missing, the numbers are right as long as all devices keep pace. In interpret mode on eight virtual devices
the race detector reports it. No check reports a superfluous wait, because nothing is wrong; the simulated time and the
busy share of the links show it.

Times are simulated: the real compiler's program for a slice, on a model of its devices and of the links between them.
The tables also have the time of the bytes alone over one link. A hop takes longer than its bytes: it also starts the
copy, crosses the link, stores the data, and waits. XLA copies the kernel's result once more, because it must lie at the
same address on all devices.

This follows "Pallas Tutorial Notes": passing HBM buffers, and semaphores.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from systolic.chips import Chip
from systolic.lessons.kernels.rings import RING, all_gather, reduce_scatter
from systolic.lessons.lesson import Lesson
from systolic.lessons.on_ring import VIRTUAL_DEVICES, RingPart, Shapes, run_on_ring

ROWS, COLUMNS = 256, 1024  # of one block, 1 MiB
_RUN_ROWS, _RUN_COLUMNS = 16, 128
_CUT = PartitionSpec(RING)


def _gathered(x: Array) -> Array:
    return jnp.tile(x, (VIRTUAL_DEVICES, 1))


def _summed(x: Array) -> Array:
    return x.reshape(VIRTUAL_DEVICES, -1, x.shape[1]).sum(0)


def _blocks(count: int, rows: int = ROWS, columns: int = COLUMNS) -> Shapes:
    return (jax.ShapeDtypeStruct((count * rows, columns), jnp.float32),)


def _bytes_one_way(devices: int) -> int:
    return (devices - 1) * ROWS * COLUMNS * 4


def _gather(name: str, *ways: int, finds: str = "", **chosen: bool) -> RingPart:
    return RingPart(
        name=name,
        kernel=functools.partial(all_gather, ways=ways, **chosen),
        in_specs=(_CUT,),
        out_specs=_CUT,
        arguments=_blocks,
        run_arguments=_blocks(VIRTUAL_DEVICES, _RUN_ROWS, _RUN_COLUMNS),
        link_bytes=lambda devices: _bytes_one_way(devices) // len(ways),
        reference=_gathered,
        finds=finds,
    )


def _scatter(name: str, *ways: int) -> RingPart:
    return RingPart(
        name=name,
        kernel=functools.partial(reduce_scatter, ways=ways),
        in_specs=(_CUT,),
        out_specs=_CUT,
        arguments=lambda devices: _blocks(devices**2),  # every device has a block for each
        run_arguments=_blocks(VIRTUAL_DEVICES**2, _RUN_ROWS, _RUN_COLUMNS),
        link_bytes=lambda devices: _bytes_one_way(devices) // len(ways),
        reference=_summed,
    )


COLLECTIVES = (
    _gather("all-gather, one way", 1),
    _gather("all-gather, both ways", 1, -1),
    _scatter("reduce-scatter, one way", 1),
    _scatter("reduce-scatter, both ways", 1, -1),
    _gather("all-gather, a wait too few", 1, waits=False, finds="race"),
    _gather("all-gather, a wait too many", 1, -1, in_turn=True),
)


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Run both collectives, one way and both ways round, on virtual devices, and simulate them on each chip's slice."""
    results = run_on_ring(COLLECTIVES, chips)
    one_way, both_ways, _, _, too_few, too_many = (collective.name for collective in COLLECTIVES)
    return Lesson(
        lines=(
            f"{results.soundness(COLLECTIVES)}; with a wait too few the run finds: {results.violations(too_few)}.",
            f"All-gather one way → both ways, simulated: {results.times(one_way, both_ways)}.",
            f"The race costs nothing, with the wait → without: {results.times(one_way, too_few)}.",
            f"A wait too many does, both ways at once → in turn: {results.times(both_ways, too_many)}.",
        ),
        rows=results.rows,
        ok=results.ok,
    )
