"""The parts of an explanation that need no compiler: tile sizes, lines of source, words."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from kernels import call_of, product, shape

from systolic.explaining.candidates import tile_sizes
from systolic.explaining.lines import kernel_work, matrix_flops
from systolic.explaining.parameters import TileParameter, WithKeywords, tile_parameters, with_sizes

BF16 = functools.partial(shape, jnp.bfloat16)
ARGS = (BF16(1024, 512), BF16(512, 768))


@dataclass(frozen=True)
class Sizes:
    rows: int = 256
    columns: int = 128
    passes: int = 3


def by_tuple(lhs: Any, rhs: Any, *, blocks: tuple[int, int, int] = (512, 256, 128), scale: float = 1.0) -> Any:
    del scale
    return product(lhs, rhs, tile_m=blocks[0], tile_k=blocks[1], tile_n=blocks[2])


def by_record(lhs: Any, rhs: Any, *, sizes: Sizes = Sizes(), flag: bool = True) -> Any:
    del flag
    return product(lhs, rhs, tile_m=sizes.rows, tile_n=sizes.columns)


def names(fn: Any) -> dict[str, tuple[int, int]]:
    found = tile_parameters(fn, [call_of(fn, *ARGS)])
    return {str(each): (each.value, each.most) for each in found}


def test_tile_sizes_are_keywords_that_are_sizes_of_blocks() -> None:
    assert names(functools.partial(product, tile_m=512, tile_n=128)) == {
        "tile_m": (512, 1024),
        "tile_k": (256, 512),
        "tile_n": (128, 768),
    }
    assert names(by_tuple) == {"blocks[0]": (512, 1024), "blocks[1]": (256, 512), "blocks[2]": (128, 768)}
    # `passes` and the flag are no sizes of blocks. A block of 256 is along m and along k: the larger one counts.
    assert names(by_record) == {"sizes[rows]": (256, 1024), "sizes[columns]": (128, 768)}


def test_sizes_are_bound_where_they_belong() -> None:
    rows = TileParameter(name="sizes", part="rows", value=256, most=1024)
    second = TileParameter(name="blocks", part=1, value=256, most=512)
    assert with_sizes(by_record, {rows: 512}) == {"sizes": Sizes(rows=512)}
    assert with_sizes(by_tuple, {second: 512}) == {"blocks": (512, 512, 128)}
    assert call_of(WithKeywords(by_tuple, {second: 512}), *ARGS).grid == (2, 6, 1)


def test_sizes_to_try_stay_inside_of_the_arrays() -> None:
    tile = TileParameter(name="tile_k", part=None, value=256, most=512)
    assert tile_sizes([tile]) == [((tile, 64),), ((tile, 128),), ((tile, 512),)]
    odd = TileParameter(name="tile_n", part=None, value=256, most=700)
    assert [sizes[0][1] for sizes in tile_sizes([odd])] == [64, 128, 512, 700]
    pairs = tile_sizes([tile, odd])
    assert len(pairs) == 3 + 4 + 3 * 4
    many = [TileParameter(name=f"t{at}", part=None, value=256, most=512) for at in range(5)]
    assert len(tile_sizes(many)) == 5 * 3 + 10 * 9  # one and two at a time


def test_lines_of_a_kernel_count_what_runs() -> None:
    call = call_of(product, *ARGS)
    work = kernel_work(call, (4, 3, 2))
    assert work.flops == 2 * 1024 * 512 * 768
    by_text = {line.text: line for line in work.lines}
    cleared = by_text["acc_vmem[...] = jnp.zeros_like(acc_vmem)"]
    added = next(line for text, line in by_text.items() if text.startswith("acc_vmem[...] +="))
    rounded = by_text["out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)"]
    assert (cleared.executions, added.executions, rounded.executions) == (12, 24, 12)
    assert added.matrix_flops == 2 * 256**3
    assert added.vector_elements == 256**2
    assert added.loaded_bytes == 256**2 * (4 + 2 + 2)
    assert added.stored_bytes == 256**2 * 4
    assert rounded.stored_bytes == 256**2 * 2


def test_lines_of_a_kernel_whose_grid_is_not_known() -> None:
    work = kernel_work(call_of(product, *ARGS), None)
    assert work.flops is None
    assert all(line.executions is None for line in work.lines)


@pytest.mark.parametrize("rounds", [1, 5])
def test_products_outside_of_kernels(rounds: int) -> None:
    def repeated(x: Any) -> Any:
        return jax.lax.fori_loop(0, rounds, lambda _, y: y @ y, x)

    assert matrix_flops(jax.make_jaxpr(repeated)(shape(jnp.float32, 64, 64)).jaxpr) == rounds * 2 * 64**3


def test_branches_that_values_decide_are_not_counted() -> None:
    def kernel(x_vmem, out_vmem):
        @pl.when(x_vmem[0, 0] > 0)
        def _():
            out_vmem[...] = jnp.dot(x_vmem[...], x_vmem[...])

    def conditional(x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=x, grid=(2,))(x)

    assert kernel_work(call_of(conditional, shape(jnp.float32, 128, 128)), (2,)).flops is None
