"""Smaller arguments with which a kernel keeps its character."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.checking.inputs import regrouped
from systolic.checking.interpreting import traced_as_on
from systolic.checking.scaling import ScaledArguments, scaled_arguments
from systolic.chips import chip
from systolic.compiler.named import named_function

EXAMPLES = Path(__file__).parents[3] / "examples"


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def scaled(
    fn: Callable[..., Any] | str, *leaves: Any, values: Sequence[np.ndarray | None] = (), budget_s: float = 0.8
) -> ScaledArguments:
    found = named_function(f"{EXAMPLES}/{fn}") if isinstance(fn, str) else fn

    def trace(shapes: Sequence[Any]) -> Any:
        with traced_as_on(chip("v5e")):
            return jax.jit(lambda *arguments: found(*arguments)).trace(*shapes).jaxpr

    return scaled_arguments(trace, leaves, values, budget_s=budget_s)


def shapes(found: ScaledArguments) -> list[tuple[int, ...]]:
    return [leaf.shape for leaf in found.leaves]


def test_what_is_small_stays() -> None:
    found = scaled("planted_faults.py:dropped_tail", bf16(512, 512), bf16(512, 512))
    assert shapes(found) == [(512, 512), (512, 512)]
    assert found.changes == ()


def test_equal_sizes_change_together_to_three_steps_of_the_longest_block() -> None:
    found = scaled("planted_faults.py:dropped_tail", bf16(8192, 8192), bf16(8192, 8192), budget_s=5.0)
    assert shapes(found) == [(1536, 1536), (1536, 1536)]
    assert found.changes == ("8192 → 1536",)
    assert found.calls[0].grid == (6, 6, 3)
    assert found.keeps_grid


def test_a_tail_stays_the_same_tail() -> None:
    found = scaled("planted_faults.py:dropped_tail", bf16(8292, 4100), bf16(4100, 8192))
    (m, k), (_, n) = shapes(found)
    assert (m % 256, k % 512, n % 256) == (8292 % 256, 4100 % 512, 0)
    assert m < 8292
    assert all(size is not None and size >= 2 for size in found.calls[0].grid)


def test_pieces_that_a_kernel_copies_by_itself_count_as_blocks() -> None:
    # Of k only the buffers tell: 512 elements long.
    found = scaled("planted_faults.py:racing_copy", bf16(4096, 8192), bf16(8192, 2048))
    (_, k), _ = shapes(found)
    assert k in (1024, 1536)


def test_a_size_that_is_taken_whole_shrinks_only_if_it_is_large() -> None:
    found = scaled("products.py:attention", *(bf16(4, 16, 8192, 128),) * 3)
    batch, heads, length, depth = shapes(found)[0]
    assert depth == 128
    assert length in (1024, 1536)
    assert batch > 1
    assert heads > 1


def test_sizes_of_groups_change_with_the_size_that_they_sum_to() -> None:
    sizes = np.array([5000, 0, 192, 3000], np.int32)
    leaves = bf16(8192, 2048), bf16(4, 2048, 2048), jax.ShapeDtypeStruct((4,), jnp.int32)
    found = scaled("products.py:grouped", *leaves, values=(None, None, sizes))
    rows = found.leaves[0].shape[0]
    groups = found.values[2]
    assert groups is not None
    assert rows < 8192
    assert groups.sum() == rows
    assert groups.dtype == np.int32
    assert (groups == 0).tolist() == [False, True, False, False]


def gathered(x: jax.Array, rows: jax.Array) -> jax.Array:
    """Blocks of 128 rows of x, by their numbers."""

    def body(rows_smem, x_vmem, out_vmem):
        del rows_smem
        out_vmem[...] = x_vmem[...]

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((rows.shape[0] * 128, x.shape[1]), x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(rows.shape[0],),
            in_specs=[pl.BlockSpec((128, x.shape[1]), lambda i, rows: (rows[i], 0))],
            out_specs=pl.BlockSpec((128, x.shape[1]), lambda i, rows: (i, 0)),
        ),
    )(rows, x)


def test_what_values_may_point_at_stays() -> None:
    leaves = bf16(65536, 2048), jax.ShapeDtypeStruct((4,), jnp.int32)
    assert scaled(gathered, *leaves, budget_s=0.2).changes
    for rows in ([0, 1, 0, 1], [0, 511, 3, 4]):
        assert not scaled(gathered, *leaves, values=(None, np.array(rows, np.int32)), budget_s=0.2).changes


def test_a_function_that_refuses_other_sizes_keeps_those_that_it_insists_on() -> None:
    product = named_function(f"{EXAMPLES}/planted_faults.py:dropped_tail")

    def picky(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        if rhs.shape[1] != 4096:
            raise ValueError("n is 4096")
        return product(lhs, rhs)

    found = scaled(picky, bf16(8192, 2048), bf16(2048, 4096))
    (m, _), (_, n) = shapes(found)
    assert n == 4096
    assert m < 8192
    assert found.keeps_grid


def test_two_steps_are_taken_where_three_are_dear() -> None:
    leaves = bf16(8192, 8192), bf16(8192, 8192)
    assert scaled("planted_faults.py:dropped_tail", *leaves, budget_s=0.5).calls[0].grid == (4, 4, 2)


@pytest.mark.parametrize("text", ["products.py:v3", "products.py:v5", "products.py:jax_example"])
def test_every_axis_keeps_several_steps(text: str) -> None:
    found = scaled(text, bf16(8192, 8192), bf16(8192, 8192))
    assert found.changes
    assert all(size is not None and size >= 2 for size in found.calls[0].grid)


@given(
    st.lists(st.integers(0, 2000), min_size=2, max_size=12).filter(lambda sizes: sum(map(bool, sizes)) > 1),
    st.data(),
)
@settings(deadline=None)
def test_regrouping_keeps_the_sum_and_the_empty(sizes: list[int], data: st.DataObject) -> None:
    value = np.array(sizes, np.int32)
    total = int(value.sum())
    wanted = data.draw(st.integers(int(np.count_nonzero(value)), total))
    found = regrouped(value, {total: wanted})
    assert found is not None
    assert found.sum() == wanted
    assert ((found == 0) == (value == 0)).all()
    assert (np.diff(found[np.argsort(value, kind="stable")]) >= -1).all()
