"""Conditions of runs under which `check` interprets a kernel: they act while it runs, in one compiled program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check_runs import array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.checking.interpreting import Conditions, Interpreter
from systolic.chips import chip

X = np.ones((8, 128), np.float32)


def interpreter(body, *, traces=None, **options):
    def call(x):
        if traces is not None:
            traces.append(x)
        return pl.pallas_call(body, out_shape=array(8, 128, dtype="float32"), **options)(x)

    return Interpreter(call, chip("v5e"))


def test_a_kernel_that_was_traced_once_finds_each_content_in_memory_that_was_never_written():
    def body(x_vmem, out_vmem, scratch):
        out_vmem[...] = x_vmem[...] + scratch[...]

    traces = []
    runs = interpreter(body, traces=traces, scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)])
    nan, zero, large = (runs.run([X], Conditions(memory=memory)).outputs[0] for memory in ("nan", "zero", "large"))
    assert np.isnan(nan).all()
    assert (zero == 1).all()
    assert np.abs(large).min() > 1e9
    assert len(traces) == 1


@pytest.mark.parametrize(("copies", "seen"), [("eager", 1), ("on_wait", 0)])
def test_a_copy_is_done_when_the_conditions_say(copies, seen):
    def body(x_hbm, out_vmem, scratch, semaphore):
        scratch[...] = jnp.zeros_like(scratch)
        copy = pltpu.make_async_copy(x_hbm, scratch, semaphore)
        copy.start()
        out_vmem[...] = scratch[...]  # too early
        copy.wait()

    runs = interpreter(
        body,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA],
    )
    other = "on_wait" if copies == "eager" else "eager"
    runs.run([X], Conditions(copies=other))
    result = runs.run([X], Conditions(copies=copies))
    assert (result.outputs[0] == seen).all()
    assert result.raced


def test_parallel_steps_come_in_an_order_of_their_own_for_each_seed():
    def body(x_vmem, out_vmem, count):
        @pl.when(pl.program_id(1) == 0)  # the other axis stays in order
        def _():
            out_vmem[...] = jnp.full_like(out_vmem, count[0])
            count[0] += 1

    steps = array(64, 128, dtype="float32")
    order = pl.BlockSpec((8, 128), lambda i, _: (i, 0))

    def call(x):
        return pl.pallas_call(
            body,
            out_shape=steps,
            grid=(8, 2),
            in_specs=[pl.BlockSpec((8, 128), lambda i, _: (0, 0))],
            out_specs=order,
            scratch_shapes=[pltpu.SMEM((1,), jnp.float32)],
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        )(x)

    runs = Interpreter(call, chip("v5e"))
    orders = [
        tuple(jax.device_get(runs.run([X], Conditions(order=seed, memory="zero")).outputs[0])[::8, 0].tolist())
        for seed in (0, 1, 2, 0)
    ]
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert len(set(orders)) == 3
    assert orders[0] == orders[3]
