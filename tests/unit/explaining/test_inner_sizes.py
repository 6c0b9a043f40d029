"""Tile sizes that are not keyword arguments of the function itself: found where they stand, and changed there."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from explanations import analysed
from kernels import call_of, product, shape

from systolic.explaining.parameters import Place, TileParameter
from systolic.explaining.resizing import NoRecordError, WithKeywords, with_sizes

ARGS = (shape(jnp.bfloat16, 1024, 512), shape(jnp.bfloat16, 512, 768))
COLUMNS = 384


@dataclasses.dataclass(frozen=True)
class Blocks:
    rows: int
    depth: int
    unused: int = 256

    def __post_init__(self) -> None:
        if self.rows < self.depth:
            raise ValueError(f"{self.rows=} is less than {self.depth=}")

    @classmethod
    def default(cls) -> Blocks:
        return cls(rows=256, depth=128)


class Pair(NamedTuple):
    rows: int = 128
    columns: int = 256


@functools.partial(jax.jit, static_argnames=("rows",))
def inner(lhs: Any, rhs: Any, rows: int) -> Any:
    return launched(lhs, rhs, tile=rows)


def launched(lhs: Any, rhs: Any, *, tile: int) -> Any:
    return product(lhs, rhs, tile_m=tile, tile_k=512, tile_n=columns())


@functools.cache
def columns() -> int:
    return COLUMNS


def by_inner_jit(lhs: Any, rhs: Any) -> Any:
    return inner(lhs, rhs, 128)


@functools.partial(jax.jit, static_argnames=("blocks",))
def by_record(lhs: Any, rhs: Any, blocks: Blocks | None = None) -> Any:
    return with_blocks(lhs, rhs, blocks=blocks or Blocks.default())


def with_blocks(lhs: Any, rhs: Any, blocks: Blocks) -> Any:
    return product(lhs, rhs, tile_m=blocks.rows, tile_k=blocks.depth, tile_n=768)


PAIR = Pair()


def by_pair(lhs: Any, rhs: Any, *, pair: Pair = PAIR) -> Any:
    return product(lhs, rhs, tile_m=pair.rows, tile_n=pair.columns)


def found(fn: Any) -> dict[str, TileParameter]:
    return {str(each): each for each in analysed(fn, *ARGS, look_inside=True).parameters}


def blocks_of(fn: Any) -> list[tuple[int, ...]]:
    return [operand.block for operand in call_of(fn, *ARGS).of("input")]


def test_an_argument_of_an_inner_jit_and_a_constant_are_found_and_changed() -> None:
    sizes = found(by_inner_jit)
    assert {name: each.value for name, each in sizes.items()} == {"rows": 128, "COLUMNS": 384, "tile_k": 512}
    rows, constant = sizes["rows"], sizes["COLUMNS"]
    assert rows.home is not None
    assert constant.home is not None
    assert (rows.home.function, constant.home.function) == ("inner", "")
    assert "test_inner_sizes.py" in rows.home.where
    as_it_is = blocks_of(by_inner_jit)
    assert as_it_is == [(128, 512), (512, 384)]
    # Both at once, through an inner jit and a cached function that have been called before; and afterwards as before.
    assert blocks_of(WithKeywords(by_inner_jit, {rows: 256, constant: 768})) == [(256, 512), (512, 768)]
    assert blocks_of(by_inner_jit) == as_it_is
    assert COLUMNS == 384


def test_a_record_that_the_function_makes_itself_is_changed_by_its_keyword() -> None:
    sizes = found(by_record)
    assert {name: each.value for name, each in sizes.items() if each.home is None} == {
        "blocks.rows": 256,
        "blocks.depth": 128,
        "blocks.unused": 256,
    }
    # Both at once: 512 deep with 256 rows the record refuses.
    deep = {Place.of("blocks.rows"): 512, Place.of("blocks.depth"): 512}
    assert with_sizes(by_record, deep, ARGS) == {"blocks": Blocks(rows=512, depth=512)}
    assert blocks_of(WithKeywords(by_record, deep)) == [(512, 512), (512, 768)]
    with pytest.raises(ValueError, match=r"self.rows=256 is less than self.depth=512"):
        blocks_of(WithKeywords(by_record, {Place.of("blocks.depth"): 512}))


def test_a_named_tuple_is_a_record() -> None:
    assert set(found(by_pair)) >= {"pair.rows", "pair.columns"}
    assert with_sizes(by_pair, {Place.of("pair.rows"): 512}) == {"pair": Pair(rows=512)}


@pytest.mark.parametrize(("fn", "text"), [(by_inner_jit, "blocks.rows"), (by_pair, "pair.depth")])
def test_a_field_of_what_is_no_record_is_refused(fn: Any, text: str) -> None:
    with pytest.raises(NoRecordError, match=text.partition(".")[0]):
        with_sizes(fn, {Place.of(text): 256}, ARGS)
