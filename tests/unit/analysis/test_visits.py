"""The blocks that a grid visits, and facts from a call's text."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from kernels import call_of, copy_call, product, product_call, shape, traced

from systolic.analysis import PREFETCHED, GridVisits, index_axes, kernel_calls
from systolic.analysis.step_walk import overwritten_each_step

BF16 = functools.partial(shape, jnp.bfloat16)


def visits(order: str, tile_k: int = 256) -> GridVisits:
    _, (found,) = traced(functools.partial(product, order=order, tile_k=tile_k), BF16(1024, 512), BF16(512, 768))
    assert isinstance(found.visits, GridVisits)
    return found.visits


def test_reordered_visits_are_those_of_the_grid_written_in_that_order() -> None:
    by_rows, by_columns = visits("mnk", tile_k=512), visits("nmk", tile_k=512)
    assert (by_rows.grid, by_columns.grid) == ((4, 3, 1), (3, 4, 1))
    assert by_rows.reordered((1, 0, 2)).moved_bytes == by_columns.moved_bytes != by_rows.moved_bytes
    assert by_columns.reordered((1, 0, 2)).moved_bytes == by_rows.moved_bytes


def test_a_call_behind_a_condition_is_known_where_it_is_executed() -> None:
    def either(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.cond(True, functools.partial(product, tile_k=512), product, x, y)

    _, (left, taken) = traced(either, BF16(1024, 512), BF16(512, 768))
    assert isinstance(taken.visits, GridVisits)
    assert taken.visits.grid == (4, 3, 1)
    assert not isinstance(left.visits, GridVisits)
    assert left.call.site != taken.call.site


def test_an_output_comes_back_where_the_sum_is_not_the_last_axis() -> None:
    (output,) = visits("mnk").outputs
    (again,) = visits("mnk").reordered((2, 0, 1)).outputs
    assert (output.comes_back, again.comes_back) == (False, True)


def test_output_blocks_are_shared_along_the_axis_of_the_sum_only() -> None:
    found = visits("mnk")
    (output,) = found.outputs
    assert output.shared_blocks(found.grid) == [0, 0, 12]


@pytest.mark.parametrize(
    ("index_map", "axes"),
    [
        (lambda i, j: (i, j), {0, 1}),
        (lambda i, j: (j // 2, 0), {1}),
        (lambda i, j: (i * 0, j - j), set()),
        (lambda i, j: (jnp.minimum(i, 0), 0), {0}),
    ],
)
def test_the_axes_on_which_a_block_depends(index_map: Any, axes: set[int]) -> None:
    call = copy_call((256, 512), (64, 128), index_map=index_map)
    assert index_axes(call, call.operands[0]) == axes
    assert PREFETCHED not in axes


@pytest.mark.parametrize(("steps", "overwritten"), [(1, True), (4, False)])
def test_sums_over_one_step_are_overwritten(steps: int, overwritten: bool) -> None:
    call = product_call(512, 128, 512, steps, scratch=True)
    (scratch,) = (at for at, operand in enumerate(call.operands) if operand.role == "scratch")
    assert (scratch in overwritten_each_step(call)) == overwritten


def test_calls_know_how_often_they_run() -> None:
    def launched(x: Any, often: Any) -> Any:
        once = product(x, x)
        thrice = jax.lax.fori_loop(0, 3, lambda _, y: product(y, x), once)
        return jax.lax.fori_loop(0, often, lambda _, y: product(y, x), thrice)

    calls = kernel_calls(jax.make_jaxpr(launched)(BF16(256, 256), 7))
    assert [call.executions for call in calls] == [1, 3, None]
    assert call_of(product, BF16(256, 256), BF16(256, 256)).executions == 1
