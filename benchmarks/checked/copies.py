"""Kernels that start copies, index by prefetched scalars, or write in place: waits, buffers, semaphores."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from checked.case import Case, array, faulty, sound
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ROWS = 8
ANY = pl.BlockSpec(memory_space=pl.ANY)
DMA = pltpu.SemaphoreType.DMA


def doubled_by_copies(x, *, fault=""):
    """Twice x; its blocks are copied into two buffers before they are needed."""
    steps = x.shape[0] // ROWS
    buffers = 1 if fault == "one buffer for two copies" else 2

    def body(x_hbm, out_vmem, x_vmem, sems):
        i = pl.program_id(0)

        def copy(step, slot):
            rows = pl.ds(step * (ROWS - (fault == "overlapping rows")), ROWS)
            number = 0 if fault == "one semaphore for two copies" else slot
            return pltpu.make_async_copy(x_hbm.at[rows], x_vmem.at[slot % buffers], sems.at[number])

        slot = i % 2

        @pl.when(i == 0)
        def _():
            copy(0, 0).start()

        following = i < steps - 1
        if fault == "a copy past the end":
            following = i < steps

        @pl.when(following)
        def _():
            copy(i + 1, 1 - slot).start()

        if fault == "read before its copy is there":
            out_vmem[...] = x_vmem[slot] * 2
            copy(i, slot).wait()
            return
        if fault == "waits for the other buffer":
            copy(i, 1 - slot).wait()
        elif fault == "waits twice":
            copy(i, slot).wait()
            copy(i, slot).wait()
        elif fault != "waits for nothing":
            copy(i, slot).wait()
        out_vmem[...] = x_vmem[1 - slot if fault == "reads the other buffer" else slot % buffers] * 2

    return pl.pallas_call(
        body,
        out_shape=x,
        grid=(steps,),
        in_specs=[ANY],
        out_specs=pl.BlockSpec((ROWS, x.shape[1]), lambda i: (i, 0)),
        scratch_shapes=[pltpu.VMEM((buffers, ROWS, x.shape[1]), x.dtype), DMA((2,))],
    )(x)


def stored_by_copies(x, *, fault=""):
    """Twice x; its blocks are copied from one buffer to the result."""
    steps = x.shape[0] // ROWS

    def body(x_vmem, out_hbm, made_vmem, sem):
        i = pl.program_id(0)

        def copy(step):
            return pltpu.make_async_copy(made_vmem, out_hbm.at[pl.ds(step * ROWS, ROWS)], sem)

        if fault == "overwritten while it is copied":

            @pl.when(i > 0)
            def _():
                made_vmem[...] = x_vmem[...] * 2
                copy(i - 1).wait()

        made_vmem[...] = x_vmem[...] * 2
        if fault == "never started":
            return
        copy(i).start()
        if fault == "overwritten while it is copied":

            @pl.when(i == steps - 1)
            def _():
                copy(i).wait()

        elif fault == "the last not waited for":

            @pl.when(i < steps - 1)
            def _():
                copy(i).wait()

        elif fault != "never waited for":
            copy(i).wait()

    return pl.pallas_call(
        body,
        out_shape=x,
        grid=(steps,),
        in_specs=[pl.BlockSpec((ROWS, x.shape[1]), lambda i: (i, 0))],
        out_specs=ANY,
        scratch_shapes=[pltpu.VMEM((ROWS, x.shape[1]), x.dtype), DMA],
    )(x)


def twice(x):
    return x * 2


def waits(x, *, fault=""):
    """x, copied through a buffer."""

    def body(x_hbm, out_vmem, x_vmem, sem, other_sem):
        copy = pltpu.make_async_copy(x_hbm.at[pl.ds(pl.program_id(0) * ROWS, ROWS)], x_vmem, sem)
        other = pltpu.make_async_copy(x_hbm.at[pl.ds(0, ROWS)], x_vmem, other_sem)
        if fault != "a copy that nobody starts":
            copy.start()
        (other if fault == "waits for another semaphore" else copy).wait()
        if fault == "signals too often":
            pl.semaphore_signal(other_sem)
        start = pl.program_id(0) * 4 if fault == "slice past the end" else 0
        out_vmem[...] = x_vmem[pl.ds(start, ROWS)]

    return pl.pallas_call(
        body,
        out_shape=x,
        grid=(x.shape[0] // ROWS,),
        in_specs=[ANY],
        out_specs=pl.BlockSpec((ROWS, x.shape[1]), lambda i: (i, 0)),
        scratch_shapes=[pltpu.VMEM((ROWS, x.shape[1]), x.dtype), DMA,
                        pltpu.SemaphoreType.REGULAR if fault == "signals too often" else DMA],
    )(x)  # fmt: skip


def same(x):
    return x


def pipelined_sum(x, y, *, fault=""):
    """x + y by `emit_pipeline`."""

    def body(x_hbm, y_hbm, out_hbm):
        def add(x_vmem, y_vmem, out_vmem):
            if fault == "sum never cleared":
                out_vmem[...] += x_vmem[...] + y_vmem[...]
            else:
                out_vmem[...] = x_vmem[...] + y_vmem[...]

        block = pl.BlockSpec((ROWS, x.shape[1]), lambda i: (i, 0))
        turned = pl.BlockSpec((ROWS, x.shape[1]), lambda i: (x.shape[0] // ROWS - 1 - i, 0))
        steps = x.shape[0] // ROWS - (fault == "a step too few")
        out = turned if fault == "output turned round" else block
        pltpu.emit_pipeline(add, grid=(steps,), in_specs=[block, block], out_specs=[out])(x_hbm, y_hbm, out_hbm)

    return pl.pallas_call(body, out_shape=x, in_specs=[ANY] * 2, out_specs=ANY)(x, y)


def gathered(numbers, x, *, fault=""):
    """Blocks of x, in the order of prefetched numbers."""
    steps = numbers.shape[0]

    def body(numbers_smem, x_vmem, out_vmem):
        out_vmem[...] = x_vmem[...]

    def index(i, numbers_smem):
        place = {"the number of the next step": jnp.minimum(i + 1, steps - 1)}.get(fault, i)
        number = numbers_smem[place]
        return (number * ROWS if fault == "rows in place of blocks" else number), 0

    out_index = {"scattered in place of gathered": lambda i, numbers_smem: (numbers_smem[i], 0)}
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(steps,),
        in_specs=[pl.BlockSpec((ROWS, x.shape[1]), index)],
        out_specs=pl.BlockSpec((ROWS, x.shape[1]), out_index.get(fault, lambda i, numbers_smem: (i, 0))),
    )
    shape = jax.ShapeDtypeStruct((steps * ROWS, x.shape[1]), x.dtype)
    return pl.pallas_call(body, grid_spec=spec, out_shape=shape)(numbers, x)


def gathered_plain(numbers, x):
    return x.reshape(-1, ROWS, x.shape[1])[numbers].reshape(-1, x.shape[1])


def in_place(x, y, *, fault=""):
    """x + y, written over x."""

    def body(x_vmem, y_vmem, out_vmem):
        if fault == "reads what is not copied in":
            out_vmem[...] = out_vmem[...] + y_vmem[...]
        else:
            out_vmem[...] = x_vmem[...] + y_vmem[...]

    block = pl.BlockSpec((ROWS, x.shape[1]), lambda i: (i, 0))
    before = pl.BlockSpec((ROWS, x.shape[1]), lambda i: (jnp.maximum(i - 1, 0), 0))
    first = before if fault == "reads a block that is overwritten" else block
    return pl.pallas_call(
        body,
        out_shape=x,
        grid=(x.shape[0] // ROWS,),
        in_specs=[first, block],
        out_specs=block,
        input_output_aliases={0: 0},
    )(x, y)


def shifted_plain(x, y):
    """x of the block before, plus y."""
    return jnp.concatenate([x[:ROWS], x[:-ROWS]]) + y


def halves(x, *, fault=""):
    """Both halves of x, as two results."""

    def body(x_vmem, first_vmem, second_vmem):
        half = x.shape[1] // 2
        first_vmem[...] = x_vmem[:, :half]
        if fault != "the second never written":
            second_vmem[...] = x_vmem[:, :half] if fault == "the first half twice" else x_vmem[:, half:]

    out = jax.ShapeDtypeStruct((x.shape[0], x.shape[1] // 2), x.dtype)
    block = pl.BlockSpec((ROWS, out.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=[out, out],
        grid=(x.shape[0] // ROWS,),
        in_specs=[pl.BlockSpec((ROWS, x.shape[1]), lambda i: (i, 0))],
        out_specs=[block, block],
    )(x)


def halves_plain(x):
    return [x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]]


def turned(x, *, fault=""):
    """x transposed, in blocks."""

    def body(x_vmem, out_vmem):
        out_vmem[...] = x_vmem[...].T

    out_index = {"blocks stay where they are": lambda i, j: (i, j)}
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((x.shape[1], x.shape[0]), x.dtype),
        grid=(x.shape[0] // 128, x.shape[1] // 128),
        in_specs=[pl.BlockSpec((128, 128), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((128, 128), out_index.get(fault, lambda i, j: (j, i))),
    )(x)


X = array(32, 128)
NUMBERS = np.array([2, 0, 3, 1, 1], np.int32)

SOUND: tuple[Case, ...] = (
    *(sound(fn, X, reference=twice) for fn in (doubled_by_copies, stored_by_copies)),
    *(sound(fn, X, reference=None, name="no reference") for fn in (doubled_by_copies, stored_by_copies, waits, halves)),
    sound(waits, X, reference=same),
    sound(pipelined_sum, X, X, reference=jnp.add), sound(pipelined_sum, X, X, reference=None, name="no reference"),
    sound(gathered, NUMBERS, X, reference=gathered_plain),
    sound(gathered, NUMBERS, X, reference=None, name="no reference"),
    sound(in_place, X, X, reference=jnp.add), sound(in_place, X, X, reference=None, name="no reference"),
    sound(halves, X, reference=halves_plain),
    sound(turned, array(256, 384), reference=jnp.transpose),
    sound(turned, array(256, 384), reference=None, name="no reference"),
)  # fmt: skip

FAULTS: tuple[Case, ...] = (
    *(faulty(doubled_by_copies, fault, X, reference=twice, rules=rules) for fault, rules in (
        ("one buffer for two copies", "race"), ("waits for the other buffer", "race order semaphore"),
        ("waits twice", "deadlock"), ("waits for nothing", "race semaphore"), ("reads the other buffer", "race"),
        ("read before its copy is there", "race"), ("a copy past the end", "out-of-bounds semaphore"),
        ("overlapping rows", "wrong-result"), ("one semaphore for two copies", "race order"))),
    *(faulty(stored_by_copies, fault, X, reference=None, rules=rules) for fault, rules in (
        ("overwritten while it is copied", "race"), ("never waited for", "race semaphore"),
        ("the last not waited for", "semaphore"), ("never started", "nan unwritten-output"))),
    *(faulty(waits, fault, X, reference=same, rules=rules) for fault, rules in (
        ("a copy that nobody starts", "deadlock"), ("waits for another semaphore", "deadlock"),
        ("slice past the end", "out-of-bounds"), ("signals too often", "semaphore"))),
    faulty(pipelined_sum, "sum never cleared", X, X, reference=jnp.add, rules="nan uninitialised"),
    faulty(pipelined_sum, "a step too few", X, X, reference=None, rules="nan unwritten-output"),
    faulty(pipelined_sum, "output turned round", X, X, reference=jnp.add, rules="wrong-result"),
    faulty(gathered, "the number of the next step", NUMBERS, X, reference=gathered_plain, rules="wrong-result"),
    faulty(gathered, "rows in place of blocks", NUMBERS, X, reference=None, rules="block-outside out-of-bounds"),
    faulty(gathered, "scattered in place of gathered", NUMBERS, X, reference=None,
           rules="unwritten-output revisited-output nan"),
    faulty(in_place, "reads what is not copied in", X, X, reference=jnp.add, rules="nan uninitialised"),
    faulty(in_place, "reads what is not copied in", X, X, reference=None, rules="nan uninitialised"),
    faulty(in_place, "reads a block that is overwritten", X, X, reference=shifted_plain, rules="wrong-result order"),
    faulty(halves, "the second never written", X, reference=None, rules="unwritten-output nan"),
    faulty(halves, "the first half twice", X, reference=halves_plain, rules="wrong-result"),
    faulty(turned, "blocks stay where they are", array(256, 256), reference=jnp.transpose, rules="wrong-result"),
)  # fmt: skip
