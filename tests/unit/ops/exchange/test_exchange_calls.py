"""Calls of `ragged_all_to_all` that are wrong, which program a call makes, and the kernel's tables."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

import systolic
from systolic.ops.exchange.schedule import ExchangeSchedule, ExchangeSpec
from systolic.ops.exchange.tables import Edge, Slices, tables
from systolic.schedule import IllegalTilesError
from systolic.spec import SpecError

MESH = AbstractMesh((2, 4), ("data", "expert"))
OFFSETS = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")


def traced(rows: int = 32, d: int = 128, dtype: str = "bfloat16", **changes: Any) -> str:
    given: dict[str, Any] = {
        "operand": jax.ShapeDtypeStruct((rows, d), jnp.dtype(dtype)),
        "output": jax.ShapeDtypeStruct((40, d), jnp.dtype(dtype)),
        **{name: jax.ShapeDtypeStruct((4,), jnp.int32) for name in OFFSETS},
    }
    arrays = {name: changes.pop(name, array) for name, array in given.items()}
    exchange = functools.partial(systolic.ragged_all_to_all, **{"axis_name": "expert", "chip": "v6e"} | changes)
    mapped = jax.shard_map(
        lambda *arrays: exchange(*arrays),
        mesh=MESH,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return str(jax.make_jaxpr(jax.jit(mapped))(*arrays.values()))


@pytest.mark.parametrize(
    ("d", "dtype", "expected"), [(128, "bfloat16", True), (96, "bfloat16", False), (128, "int8", False)]
)
def test_a_kernel_moves_whole_registers_of_16_and_32_bits(d: int, dtype: str, expected: bool) -> None:
    assert ("pallas_call" in traced(d=d, dtype=dtype)) == expected
    if not expected:
        with pytest.raises(IllegalTilesError, match=str(d) if d % 128 else dtype):
            traced(d=d, dtype=dtype, implementation="interpret")


def test_an_axis_has_a_barrier_of_its_own() -> None:
    assert "collective_id=9" in traced(implementation="pallas")
    assert "collective_id=3" in traced(implementation="pallas", collective_id=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axis_name": "nothing"}, "axis_name='nothing' is not known here"),
        ({"axis_name": ("data", "expert")}, "use the name of one axis"),
        ({"output": jax.ShapeDtypeStruct((40, 256), jnp.bfloat16)}, r"output bfloat16\[40, 256\]"),
        ({"output": jax.ShapeDtypeStruct((40, 128), jnp.float32)}, r"output float32\[40, 128\]"),
        ({"send_sizes": jax.ShapeDtypeStruct((4,), jnp.float32)}, r"send_sizes of float32\[4\]"),
        ({"recv_sizes": jax.ShapeDtypeStruct((8,), jnp.int32)}, r"recv_sizes\[8\]; all have the same number of slices"),
        ({name: jax.ShapeDtypeStruct((6,), jnp.int32) for name in OFFSETS}, "a multiple of 'expert''s 4 devices"),
        ({"collective_id": -1}, "collective_id=-1"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        traced(**changes)


def test_edges_are_the_rows_that_fill_no_tile() -> None:
    """Every row that arrives is in a whole tile or in one edge, and edges of one tile are put together."""
    random = np.random.default_rng(0)
    for _ in range(20):
        sizes = random.integers(0, 30, 8)
        begins = np.cumsum(sizes + random.integers(0, 3, 8)) - sizes
        slices = [jnp.asarray(array, jnp.int32) for array in (begins, sizes, begins, sizes, begins)]
        _, edges, counts = map(np.asarray, tables(Slices(*slices), block_tiles=2))
        rows, arriving = np.zeros(400, int), 0
        for begin, size in zip(begins, sizes, strict=True):
            first, last = begin // 8, (begin + size - 1) // 8
            whole = [t for t in range(first, last + 1) if size and begin <= 8 * t and 8 * t + 8 <= begin + size]
            arriving += last - first + 1 if size else 0
            for tile in whole:
                rows[8 * tile : 8 * tile + 8] += 1
        for tile, edge_begin, edge_end, merged in edges.T:
            rows[8 * tile + edge_begin : 8 * tile + edge_end] += 1
            assert edge_begin == edge_end or edges[Edge.TILE, merged] == tile
        expected = np.zeros(400, int)
        for begin, size in zip(begins, sizes, strict=True):
            expected[begin : begin + size] += 1
        np.testing.assert_array_equal(rows, expected)
        assert counts[1] == arriving


def test_edges_that_do_not_fit_in_vmem_are_refused() -> None:
    spec = ExchangeSpec(devices=8, slices=1024, rows=4096, out_rows=4096, d=8192, dtype="bfloat16")
    with pytest.raises(IllegalTilesError, match="1024 slices"):
        ExchangeSchedule.of(spec, systolic.chip("v7x"))
