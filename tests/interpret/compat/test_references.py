"""References that are reshaped or bitcast, and masked stores, in TPU interpret mode as `check` runs it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from check_runs import array, errors, ran
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

X = array(4, 8, 128, dtype="float32")


def called(body, shape, *operands, scratch=()):
    return pl.pallas_call(body, out_shape=shape, scratch_shapes=scratch)(*operands)


def every_fourth_row(x):
    def body(x_vmem, out_vmem):
        out_vmem[...] = x_vmem.reshape(32, 128)[1::4, :]

    return called(body, array(8, 128, dtype="float32"), x)


def rows_across_the_first_dimension(x):
    def body(x_vmem, out_vmem):
        out_vmem[...] = x_vmem.reshape(32, 128)[6:14, :]  # of two blocks: no box

    return called(body, array(8, 128, dtype="float32"), x)


def stored_through_a_reshaped_reference(x):
    def body(x_vmem, out_vmem):
        out_vmem[...] = x_vmem[...]
        out_vmem.reshape(32, 128)[6:14, :] = jnp.zeros((8, 128), jnp.float32)

    return called(body, X, x)


def as_words(x):
    def body(x_vmem, out_vmem):
        out_vmem[...] = x_vmem.bitcast(jnp.uint32)[...]

    return called(body, array(8, 128, dtype="uint32"), x)


def words_of(x):
    both = jax.lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32).reshape(8, 2, 128)
    return both[:, 0] | both[:, 1] << 16


def masked_store(x):
    def body(x_vmem, out_vmem):
        out_vmem[...] = jnp.zeros_like(out_vmem)
        part = x_vmem[:, :2, :]
        rows = jax.lax.broadcasted_iota(jnp.int32, part.shape, 0)
        pltpu.store(out_vmem.at[:, 2:4, :], part, mask=rows >= 1)

    return called(body, X, x)


def masked_plain(x):
    return jnp.zeros_like(x).at[1:, 2:4].set(x[1:, :2])


@pytest.mark.parametrize(
    ("fn", "x", "reference"),
    [
        (every_fourth_row, X, lambda x: x.reshape(32, 128)[1::4]),
        (rows_across_the_first_dimension, X, lambda x: x.reshape(32, 128)[6:14]),
        (stored_through_a_reshaped_reference, X, lambda x: x.reshape(32, 128).at[6:14].set(0).reshape(x.shape)),
        (masked_store, X, masked_plain),
    ],
)
def test_a_reference_shows_what_a_tpu_shows(fn, x, reference) -> None:
    outcome = ran(fn, x, reference=reference, seeds=(0,))
    assert not errors(outcome)
    assert outcome.summary.ran
    assert outcome.summary.error == 0.0


def test_rows_that_share_a_word_are_its_low_and_its_high_half() -> None:
    x = jax.random.normal(jax.random.key(0), (16, 128), jnp.bfloat16)
    outcome = ran(lambda: as_words(x), reference=lambda: words_of(x), seeds=(0,))
    assert not errors(outcome)
    assert outcome.summary.error == 0.0


def test_a_masked_store_past_the_end_is_found() -> None:
    def past(x):
        def body(x_vmem, out_vmem):
            out_vmem[...] = x_vmem[...]
            part = x_vmem[...]
            rows = jax.lax.broadcasted_iota(jnp.int32, part.shape, 1)
            start = 4 + (x_vmem[0, 0, 0] * 0).astype(jnp.int32)  # a number that is not known while it is traced
            pltpu.store(out_vmem.at[:, pl.ds(start, 8), :], part, mask=rows < last)

        return called(body, X, x)

    last = 4
    assert not errors(ran(past, X, seeds=(0,)))
    last = 5
    assert {found.rule for found in errors(ran(past, X, seeds=(0,)))} == {"out-of-bounds"}


def test_a_race_through_a_reshaped_reference_is_found_where_it_is_alone() -> None:
    def halves(x, *, reads: int):
        def body(x_hbm, out_vmem, x_vmem, sem):
            copy = pltpu.make_async_copy(x_hbm.at[pl.ds(0, 2)], x_vmem.at[pl.ds(0, 2)], sem)
            other = pltpu.make_async_copy(x_hbm.at[pl.ds(2, 2)], x_vmem.at[pl.ds(2, 2)], sem)
            other.start()
            other.wait()
            copy.start()
            out_vmem[...] = x_vmem.reshape(32, 128)[pl.ds(reads, 8), :]
            copy.wait()

        hbm = pl.BlockSpec(memory_space=pl.ANY)
        scratch = [pltpu.VMEM((4, 8, 128), jnp.float32), pltpu.SemaphoreType.DMA]
        shape = array(8, 128, dtype="float32")
        return pl.pallas_call(body, out_shape=shape, in_specs=[hbm], scratch_shapes=scratch)(x)

    assert not errors(ran(lambda x: halves(x, reads=18), X, seeds=(0,)))
    assert "race" in {found.rule for found in errors(ran(lambda x: halves(x, reads=4), X, seeds=(0,)))}
