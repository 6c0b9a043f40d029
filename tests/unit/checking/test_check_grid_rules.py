"""The rules on the blocks that a grid visits."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from kernels import product, shape, traced

from systolic.analysis import GridVisits
from systolic.checking.rules.around import around_findings
from systolic.checking.rules.grid import grid_findings
from systolic.checking.rules.steps import step_findings
from systolic.chips import chip

BF16 = functools.partial(shape, jnp.bfloat16)
V5E, V5P = chip("v5e"), chip("v5p")


def rules(fn: Any, *args: Any, on: Any = V5E) -> dict[str, str]:
    """Rule → grade of what is found of a function's grids and of what stands around its calls."""
    jaxpr, calls = traced(fn, *args)
    found = around_findings(jaxpr, [each.call for each in calls], on)
    for each in calls:
        assert isinstance(each.visits, GridVisits)
        found += grid_findings(each.call, each.visits, on)
    return {each.rule: each.grade for each in found}


def test_a_sound_product_visits_everything_and_breaks_no_rule() -> None:
    _, (found,) = traced(product, BF16(1024, 512), BF16(512, 768))
    assert isinstance(found.visits, GridVisits)
    lhs, rhs, out = found.visits.visits.values()
    # Blocks of 256² in order m, n, k: lhs comes again for each of three columns, rhs for each of four rows.
    assert (lhs.fetches, rhs.fetches, out.fetches) == (4 * 3 * 2, 4 * 3 * 2, 4 * 3)
    assert (lhs.moved_bytes, lhs.least_bytes) == (3 * 1024 * 512 * 2, 1024 * 512 * 2)
    assert (rhs.moved_bytes, rhs.least_bytes) == (4 * 512 * 768 * 2, 512 * 768 * 2)
    assert out.moved_bytes == out.least_bytes == 1024 * 768 * 2
    assert rules(product, BF16(1024, 512), BF16(512, 768)) == {"cost-estimate": "note"}


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [((1024, 500, 768), "dropped-tail"), ((1000, 512, 768), "unwritten-output"), ((1024, 512, 700), "dropped-tail")],
)
def test_a_size_that_the_tile_does_not_divide(sizes: tuple[int, int, int], rule: str) -> None:
    m, k, n = sizes
    assert rules(product, BF16(m, k), BF16(k, n))[rule] == "error"


def test_edge_blocks_are_no_dropped_tail() -> None:
    found = rules(functools.partial(product, grid=(4, 3, 2)), BF16(1000, 512), BF16(512, 700))
    assert found == {"cost-estimate": "note", "edge-block": "note"}


def test_blocks_behind_the_end() -> None:
    assert (
        rules(functools.partial(product, grid=(5, 3, 2)), BF16(1024, 512), BF16(512, 768))["block-outside"] == "error"
    )


def test_a_reduction_axis_that_is_not_last() -> None:
    found = rules(functools.partial(product, order="kmn"), BF16(1024, 512), BF16(512, 768))
    assert found["revisited-output"] == "error"


@pytest.mark.parametrize(("on", "grade"), [(V5E, "warning"), (V5P, "error")])
def test_a_parallel_reduction(on: Any, grade: str) -> None:
    fn = functools.partial(product, semantics=("parallel", "parallel", "parallel"))
    assert rules(fn, BF16(1024, 512), BF16(512, 768), on=on)["parallel-revisit"] == grade


def test_an_idle_core() -> None:
    assert rules(product, BF16(1024, 512), BF16(512, 768), on=V5P)["one-core"] == "warning"
    fn = functools.partial(product, semantics=("parallel", "arbitrary", "arbitrary"))
    assert "one-core" not in rules(fn, BF16(1024, 512), BF16(512, 768), on=V5P)


def test_copies_in_front_of_a_kernel() -> None:
    def turned(lhs: Any, rhs: Any) -> Any:
        return product(lhs, jnp.swapaxes(rhs, 0, 1))

    def inside(lhs: Any, rhs: Any) -> Any:
        return jax.jit(product)(lhs, rhs.T.astype(jnp.bfloat16))

    assert rules(turned, BF16(1024, 1024), BF16(1024, 1024))["transposed-operand"] == "warning"
    assert rules(inside, BF16(1024, 1024), shape(jnp.float32, 1024, 1024))["cast-operand"] == "warning"
    assert "transposed-operand" not in rules(turned, BF16(256, 256), BF16(256, 256))  # too small for a word


def scattered(rows: Any, x: Any, *, steps: int) -> Any:
    """Copies block i of x to block rows[i] of the output."""

    def kernel(rows_smem, x_vmem, out_vmem):
        del rows_smem
        out_vmem[...] = x_vmem[...]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(steps,),
            in_specs=[pl.BlockSpec((8, 128), lambda i, rows: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, rows: (rows[i], 0)),
        ),
    )(rows, x)


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ([0, 1, 2, 3], None),
        ([3, 2, 1, 0], None),
        ([0, 1, 2, 2], "unwritten-output"),
        ([0, 1, 0, 2], "revisited-output"),
        ([0, 1, 2, 4], "block-outside"),
        ([0, 1, 2, -1], "block-outside"),
    ],
)
def test_index_maps_that_read_prefetched_scalars(rows: list[int], rule: str | None) -> None:
    fn = functools.partial(scattered, steps=4)
    found = rules(fn, np.array(rows, np.int32), shape(jnp.float32, 32, 128))
    errors = [name for name, grade in found.items() if grade == "error"]
    assert errors == [] if rule is None else rule in errors


def test_unknown_scalars_are_said_to_be_missing() -> None:
    _, (found,) = traced(functools.partial(scattered, steps=4), shape(jnp.int32, 4), shape(jnp.float32, 32, 128))
    assert not isinstance(found.visits, GridVisits)
    assert "only the shape" in found.visits.why


def test_aliased_outputs_need_not_be_written() -> None:
    def kernel(x_vmem, out_vmem):
        out_vmem[...] = x_vmem[...] + 1

    def first_rows(x: Any) -> Any:
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel, out_shape=x, grid=(2,), in_specs=[block], out_specs=block, input_output_aliases={0: 0}
        )(x)

    assert "unwritten-output" not in rules(first_rows, shape(jnp.float32, 64, 128))


def copied(index_map: Any, *, steps: int = 4) -> Any:
    """A copy whose blocks follow prefetched scalars."""

    def kernel(order_smem, x_vmem, out_vmem):
        out_vmem[...] = x_vmem[...]

    def launched(order: Any, x: Any) -> Any:
        return pl.pallas_call(
            kernel,
            out_shape=x,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(steps,),
                in_specs=[pl.BlockSpec((128, 128), index_map)],
                out_specs=pl.BlockSpec((128, 128), lambda i, _: (i, 0)),
            ),
        )(order, x)

    return launched


def test_an_index_map_that_branches_on_scalars_is_not_known_and_no_error() -> None:
    def branching(i: Any, order_smem: Any) -> Any:
        return jax.lax.cond(order_smem[0] > 0, lambda: order_smem[i], lambda: 0), 0

    _, (found,) = traced(copied(branching), np.array([1, 0, 3, 2], np.int32), BF16(512, 128))
    assert not isinstance(found.visits, GridVisits)
    assert "an index map" in found.visits.why


def test_two_calls_of_one_jitted_function_have_their_own_scalars() -> None:
    once = jax.jit(copied(lambda i, order_smem: (order_smem[i], 0)))

    def twice(first: Any, second: Any, x: Any) -> Any:
        return once(second, once(first, x))

    orders = np.array([0, 1, 2, 3], np.int32), np.array([2, 2, 2, 2], np.int32)
    _, calls = traced(twice, *orders, BF16(512, 128))
    found = [each.visits.visits[1].fetches for each in calls if isinstance(each.visits, GridVisits)]
    assert found == [4, 1]


def test_nothing_is_outside_of_an_empty_array() -> None:
    def kernel(x_vmem, out_vmem):
        out_vmem[...] = x_vmem[...]

    def launched(x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=x)(x)

    assert rules(launched, BF16(0, 128)) == {"cost-estimate": "note"}


def test_blocks_are_numbered_in_order_of_place() -> None:
    _, (found,) = traced(product, BF16(1024, 512), BF16(512, 768))
    assert isinstance(found.visits, GridVisits)
    for visits in found.visits.visits.values():
        distinct, numbers = np.unique(visits.starts, axis=0, return_inverse=True)
        np.testing.assert_array_equal(visits.distinct, distinct)
        np.testing.assert_array_equal(visits.numbered(), numbers.reshape(-1))


def test_dots_in_a_loop_count_as_often_as_they_run() -> None:
    def kernel(x_vmem, out_vmem):
        def add(_: Any, total: Any) -> Any:
            return total + jnp.dot(x_vmem[...], x_vmem[...], preferred_element_type=jnp.float32)

        out_vmem[...] = jax.lax.fori_loop(0, 64, add, jnp.zeros((128, 128), jnp.float32))

    def launched(x: Any) -> Any:
        block = pl.BlockSpec((128, 128), lambda i: (i, 0))
        out = jax.ShapeDtypeStruct(x.shape, jnp.float32)
        return pl.pallas_call(kernel, grid=(256,), in_specs=[block], out_specs=block, out_shape=out)(x)

    _, (found,) = traced(launched, BF16(256 * 128, 128))
    assert isinstance(found.visits, GridVisits)
    # 64 products of 128³ take 1.4 µs on a v5e: much more than a step costs beside them.
    assert list(step_findings(found.call, found.visits, V5E)) == []


def test_axes_that_vmap_makes_are_parallel() -> None:
    found = rules(jax.vmap(product), BF16(2, 1024, 512), BF16(2, 512, 768), on=V5P)
    assert found == {"cost-estimate": "note"}
    said = functools.partial(product, semantics=("parallel", "arbitrary", "arbitrary"))
    (call,) = traced(jax.vmap(said), BF16(2, 1024, 512), BF16(2, 512, 768))[1]
    assert call.call.semantics == ("parallel", "parallel", "arbitrary", "arbitrary")


def test_an_output_that_nobody_takes_is_memory_of_each_core() -> None:
    def scaled(x: jax.Array, *, returned: bool) -> Any:
        def kernel(x_ref: Any, out_ref: Any, kept_ref: Any) -> None:
            kept_ref[...] = x_ref[...] * 2
            out_ref[...] = kept_ref[...]

        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        shapes = [x, jax.ShapeDtypeStruct((8, 128), x.dtype)]
        out, kept = pl.pallas_call(
            kernel,
            grid=(4,),
            in_specs=[block],
            out_specs=[block, pl.BlockSpec((8, 128), lambda i: (0, 0))],
            out_shape=shapes,
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        )(x)
        return (out, kept) if returned else out

    x = jax.ShapeDtypeStruct((32, 128), jnp.float32)
    taken = rules(functools.partial(scaled, returned=True), x, on=V5P)
    thrown_away = rules(functools.partial(scaled, returned=False), x, on=V5P)
    assert taken["parallel-revisit"] == "error"
    assert "parallel-revisit" not in thrown_away
