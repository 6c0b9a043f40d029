"""Calls of products across chips that are wrong, and their messages."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

import systolic
from systolic.ops.engine.backend import Implementation
from systolic.schedule import IllegalTilesError
from systolic.spec import SpecError

MESH = AbstractMesh((2, 4), ("data", "model"))


def shape_of(multiply: Callable[..., Any], x: Any, w: Any, **options: Any) -> Any:
    """Return the shape on one device, of parts of these shapes."""
    whole = PartitionSpec()

    def run(x: Any, w: Any) -> Any:
        shapes.append(multiply(x, w, **({"axis_name": "model"} | options)).shape)
        return jnp.zeros(())

    shapes: list[Any] = []
    mapped = jax.shard_map(run, mesh=MESH, in_specs=(whole, whole), out_specs=whole, check_vma=False)
    jax.eval_shape(jax.jit(mapped), x, w)
    return shapes[0]


@pytest.mark.parametrize("chip", ["v6e", "v5p", "v4"])
def test_the_caller_can_choose(chip: str) -> None:
    whole = PartitionSpec()
    cases: tuple[tuple[Implementation, bool], ...] = (("pallas", True), ("xla", False))
    for implementation, expected in cases:
        multiply = functools.partial(
            systolic.matmul_reduce_scatter, axis_name="model", chip=chip, implementation=implementation
        )
        mapped = jax.shard_map(multiply, mesh=MESH, in_specs=(whole, whole), out_specs=whole, check_vma=False)
        assert ("pallas_call" in str(jax.make_jaxpr(jax.jit(mapped))(zeros(8, 128), zeros(128, 128)))) == expected


def test_calls_over_two_axes_have_two_barriers() -> None:
    whole = PartitionSpec()

    def twice(x: Any, w: Any) -> Any:
        for axis, multiply in (("data", systolic.all_gather_matmul), ("model", systolic.matmul_reduce_scatter)):
            x = multiply(x, w, axis_name=axis, chip="v6e", implementation="pallas")
        return x

    mapped = jax.shard_map(twice, mesh=MESH, in_specs=(whole, whole), out_specs=whole, check_vma=False)
    traced = str(jax.make_jaxpr(jax.jit(mapped))(zeros(8, 128), zeros(128, 128)))
    assert re.findall(r"collective_id=(\d+)", traced) == ["8", "9"]


def zeros(*shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize(
    ("multiply", "rows"),
    [(systolic.all_gather_matmul, 32), (systolic.matmul_reduce_scatter, 2), (systolic.matmul_all_reduce, 8)],
)
def test_rows_are_gathered_or_scattered_along_the_first_dimension(
    multiply: Callable[..., Any], rows: int, implementation: str
) -> None:
    out = shape_of(multiply, zeros(8, 3, 128), zeros(128, 256), implementation=implementation, chip="v6e")
    assert out == (rows, 3, 256)


def test_all_reduce_pads_rows() -> None:
    assert shape_of(systolic.matmul_all_reduce, zeros(5, 128), zeros(128, 256)) == (5, 256)


@pytest.mark.parametrize(
    ("x", "w", "options", "message"),
    [
        (zeros(8, 128), zeros(128, 128), {"axis_name": "rows"}, "axis_name='rows' is not known here.*data, model"),
        (zeros(8, 128), zeros(128, 128), {"axis_name": ("data", "model")}, "one axis of the mesh"),
        (zeros(128), zeros(128, 128), {}, r"x is \[rows, k\]"),
        (zeros(8, 128), zeros(256, 128), {}, "k=128 and 256"),
        (zeros(8, 128, dtype="complex64"), zeros(128, 128), {}, "complex64"),
        (zeros(8, 128), zeros(128, 128), {"bias": jnp.zeros(64)}, r"it has to be \[128\]"),
        (zeros(8, 128), zeros(128, 128), {"activation": "rellu"}, "rellu"),
        (zeros(8, 128), zeros(128, 128), {"ring": (0, 1, 2)}, "not an order of the 4 devices"),
        (zeros(8, 128), zeros(128, 128), {"ring": 4}, "a sequence of axis indices"),
        (zeros(8, 128), zeros(128, 128), {"collective_id": -1}, "collective_id=-1"),
    ],
)
def test_a_wrong_call_is_refused_with_the_value(x: Any, w: Any, options: dict[str, Any], message: str) -> None:
    for multiply in (systolic.all_gather_matmul, systolic.matmul_reduce_scatter):
        with pytest.raises(SpecError, match=message):
            shape_of(multiply, x, w, **options)


@pytest.mark.parametrize(
    ("multiply", "rows"),
    [(systolic.all_gather_matmul, 32), (systolic.matmul_reduce_scatter, 2), (systolic.matmul_all_reduce, 8)],
)
def test_rows_and_sums_travel_in_a_known_dtype(multiply: Callable[..., Any], rows: int) -> None:
    operands = zeros(8, 128), zeros(128, 128)
    for wire_dtype in ("int8", "float8_e4m3fn", jnp.float8_e5m2):
        implementation = "xla" if wire_dtype == "int8" else "interpret"
        options = {"implementation": implementation, "chip": "v6e", "wire_dtype": wire_dtype}
        assert shape_of(multiply, *operands, **options) == (rows, 128)
    for wire_dtype in ("int4", "float9"):
        with pytest.raises(SpecError, match=f"wire_dtype='{wire_dtype}'; use 'int8', 'float8_e4m3fn', 'float8_e5m2'"):
            shape_of(multiply, *operands, wire_dtype=wire_dtype)
    with pytest.raises(SpecError, match="wire_dtype='int8' with operands of int8"):
        shape_of(multiply, *(zeros(*side.shape, dtype="int8") for side in operands), wire_dtype="int8")


def test_a_chip_without_float8_leaves_it_to_xla() -> None:
    operands, options = (zeros(8, 128), zeros(128, 128)), {"wire_dtype": "float8_e4m3fn", "chip": "v4"}
    # On a TPU a `NoKernelWarning` says so.
    assert shape_of(systolic.matmul_reduce_scatter, *operands, **options) == (2, 128)
    with pytest.raises(IllegalTilesError, match="v4 does not compute with it"):
        shape_of(systolic.matmul_reduce_scatter, *operands, **options, implementation="pallas")


def test_rows_that_do_not_divide_are_refused() -> None:
    with pytest.raises(SpecError, match="6 rows do not divide among the 4 devices of 'model'; pad x to 8 rows"):
        shape_of(systolic.matmul_reduce_scatter, zeros(6, 128), zeros(128, 128))


def test_outside_of_shard_map_it_is_refused() -> None:
    with pytest.raises(SpecError, match="call it in"):
        systolic.all_gather_matmul(jnp.zeros((8, 128)), jnp.zeros((128, 128)), axis_name="model")


def test_a_kernel_that_cannot_be_is_refused_with_each_reason() -> None:
    with pytest.raises(IllegalTilesError, match=r"k=96.*columns=96"):
        shape_of(systolic.all_gather_matmul, zeros(8, 96), zeros(96, 96), implementation="interpret", chip="v6e")
    float32 = zeros(8, 128, dtype="float32"), zeros(128, 128, dtype="float32")
    with pytest.raises(IllegalTilesError, match="one or six passes"):
        shape_of(systolic.all_gather_matmul, *float32, implementation="interpret", chip="v6e", precision="high")
