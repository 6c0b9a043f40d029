"""Counts of rows by granules of tokens, and the buffers of the kernels that move rows."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from systolic.chips import CHIPS
from systolic.ops.moe.combining import _runs_and_codes
from systolic.ops.moe.routing import sorted_by_expert, typical_counts
from systolic.ops.moe.schedule import CombineSchedule, CombineSpec, SpreadSchedule, SpreadSpec
from systolic.schedule.buffers import total_bytes
from systolic.schedule.vmem import buffer_bytes

# Tokens, experts of a token, experts, features: Qwen3-30B, DeepSeek-V3, Mixtral, one token.
LAYERS = [(8192, 8, 128, 2048), (4096, 8, 256, 7168), (65536, 2, 8, 4096), (1, 8, 128, 128)]


@pytest.mark.parametrize("name", ["v5e", "v6e", "v7x"])
@pytest.mark.parametrize(("tokens", "top_k", "experts", "d"), LAYERS)
def test_buffers_fit_every_chip(tokens: int, top_k: int, experts: int, d: int, name: str) -> None:
    chip = CHIPS[name]
    spec = CombineSpec(tokens=tokens, top_k=top_k, experts=experts, d=d, dtype="bfloat16", dtype_out="bfloat16")
    combine = CombineSchedule.of(spec, chip)
    assert combine.blocks * combine.tokens >= tokens
    assert combine.slabs * combine.columns == d
    spread = SpreadSchedule.of(SpreadSpec(tokens=tokens + -tokens % 8, rows=tokens * 8, d=d, dtype="bfloat16"), chip)
    assert max(total_bytes(schedule.buffers) for schedule in (combine, spread)) <= buffer_bytes(chip)


@pytest.mark.parametrize("capacity", [None, 40])
def test_runs_hold_every_row_of_a_block_and_fit_its_buffer(capacity: int | None) -> None:
    """Rows are where the code of their choice says, for skewed routings and some choices without an expert."""
    random = np.random.default_rng(0)
    for _ in range(5):
        ids = np.minimum(random.geometric(0.3, (300, 3)) - 2, 11)
        choices = sorted_by_expert(jnp.asarray(ids, jnp.int32), 12, capacity)
        spec = CombineSpec(tokens=300, top_k=3, experts=12, d=128, dtype="float32", dtype_out="float32")
        schedule = CombineSchedule.of(spec, CHIPS["v6e"])
        runs, codes = map(np.asarray, _runs_and_codes(spec, schedule, choices))
        place, kept = np.asarray(choices.place), int(choices.sizes.sum())
        for block in range(schedule.blocks):
            buffer = np.full(schedule.tiles * 8, -1)
            for source, target, count in runs[block].T:
                buffer[target * 8 : (target + count) * 8] = np.arange(source * 8, (source + count) * 8)
            assert (buffer[-8:] == -1).all()  # the tile of zeros
            first = block * schedule.tokens * 3
            expected = place[first : first + schedule.tokens * 3]
            # With 128 columns of float32 a code is the row, before five bits of a shift that is zero.
            rows = buffer[codes[block, 0, : expected.size] >> 5]
            np.testing.assert_array_equal(rows, np.where(expected < kept, expected, -1))


def test_typical_counts_are_those_of_whole_granules() -> None:
    counts = typical_counts(300, 2, 5)
    assert counts.sum(1).tolist() == [256, 256, 88]


def test_typical_counts_of_one_of_several_devices_are_the_most_that_one_has() -> None:
    one, every = typical_counts(1000, 4, 4, 8), typical_counts(1000, 4, 32)
    assert every.sum() == 4000
    assert one.sum() == every.reshape(-1, 8, 4).sum((0, 2)).max() < 600
