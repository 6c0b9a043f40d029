"""Products across chips with quantized weights: wrong calls, what is left to XLA and why, and their specs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import systolic
from systolic.chips import chip
from systolic.ops.collective.choice import chosen
from systolic.ops.collective.cost import fastest_schedule, vmem_bytes
from systolic.ops.collective.sizes import RingSizes
from systolic.schedule import IllegalTilesError
from systolic.spec import QuantizationError, SpecError

MESH = AbstractMesh((4,), ("model",))
GATHER = RingSizes(devices=8, rows=256, k=8192, columns=3584, dtype="bfloat16", dtype_out="bfloat16", scatters=False)
BOTH = (systolic.all_gather_matmul, systolic.matmul_reduce_scatter)


def weight(*scales: int, dtype: str = "int8") -> systolic.Quantized:
    """Return shapes of a weight [256, 512]: JAX rebuilds a `Quantized` whatever they are."""
    structure = jax.tree.structure(systolic.quantize(jnp.zeros((1, 1))))
    values = jax.ShapeDtypeStruct((256, 512), jnp.dtype(dtype))
    return structure.unflatten([values, jax.ShapeDtypeStruct(scales, jnp.float32)])


def traced(multiply: Callable[..., Any], w: Any, dtype: str = "bfloat16", k: int = 256, **options: Any) -> str:
    run = functools.partial(multiply, axis_name="model", chip="v6e", **options)
    mapped = jax.shard_map(run, mesh=MESH, in_specs=(P(), P()), out_specs=P(), check_vma=False)
    return str(jax.make_jaxpr(jax.jit(mapped))(jax.ShapeDtypeStruct((8, k), jnp.dtype(dtype)), w))


@pytest.mark.parametrize(
    ("scales", "multiply", "message"),
    [
        ((1, 2048), systolic.all_gather_matmul, r"w: scales of shape \[1, 2048\].*\[256, 512\].*cut scales as their"),
        ((8, 2048), systolic.matmul_reduce_scatter, r"w: scales of shape \[8, 2048\].*cut scales as their"),
        ((1, 128), systolic.matmul_reduce_scatter, r"part of the columns.*cut scales as their.*\[1, 512\] uncut"),
        ((512,), systolic.all_gather_matmul, "as many dimensions"),
    ],
)
def test_scales_that_do_not_go_with_values_are_refused(
    scales: tuple[int, ...], multiply: Callable[..., Any], message: str
) -> None:
    with pytest.raises(QuantizationError, match=message):
        traced(multiply, weight(*scales))


def test_other_operands_are_refused() -> None:
    for multiply in BOTH:
        with pytest.raises(SpecError, match="x is int8; with a quantized w"):
            traced(multiply, weight(1, 512), dtype="int8")
        with pytest.raises(SpecError, match="bias of shape"):
            traced(multiply, weight(1, 512), bias=jnp.zeros(256))
        with pytest.raises(SpecError, match=r"k=128 and 256"):
            traced(multiply, weight(1, 512), k=128)


@pytest.mark.parametrize(
    ("w", "reason"),
    [
        (weight(2, 512), r"scales \[2, 512\] of w \[256, 512\], .*one number for each column"),
        (weight(1, 512, dtype="int4"), "int4.*takes int8, float8_e4m3fn"),
    ],
)
def test_the_kernel_takes_eight_bits_with_a_scale_for_each_column(w: systolic.Quantized, reason: str) -> None:
    for multiply in BOTH:
        program = traced(multiply, w)
        assert "pallas_call" not in program
        assert "no tiles fit" in program
        with pytest.raises(IllegalTilesError, match=reason):
            traced(multiply, w, implementation="pallas")


def test_a_quantized_weight_takes_half_of_the_memory() -> None:
    v6e = chip("v6e")
    for wire, weights in ((None, "float8_e4m3fn"), ("int8", "int8")):
        narrow, wide = replace(GATHER, wire_dtype=wire, weight_dtype=weights), replace(GATHER, wire_dtype=wire)
        assert 2 * narrow.weight_bytes == wide.weight_bytes
        saved = vmem_bytes(fastest_schedule(wide, v6e), wide) - vmem_bytes(fastest_schedule(narrow, v6e), narrow)
        assert saved > 0.9 * narrow.weight_bytes
    large = replace(GATHER, scatters=True, k=8192, columns=8192, rows=128)
    with pytest.raises(IllegalTilesError, match="all rows of x and w are 144 MiB"):
        systolic.plan(large, v6e)
    assert systolic.plan(replace(large, weight_dtype="float8_e4m3fn"), v6e).time_us > 0


def test_integers_have_the_rate_of_integers() -> None:
    narrow = replace(GATHER, wire_dtype="int8", weight_dtype="int8")
    assert narrow.dtype_multiplied == "int8"
    assert replace(narrow, weight_dtype="float8_e4m3fn").dtype_multiplied == "bfloat16"
    times = [systolic.plan(sizes, "v6e").time_us for sizes in (narrow, replace(narrow, wire_dtype=None))]
    assert times[0] < 0.6 * times[1]
    assert "with int8 weights, rows gathered in int8" in str(chosen(narrow, chip("v6e")))
    for sizes, name, message in (
        (replace(narrow, wire_dtype=None), "v4", "no weights of few bits"),
        (replace(narrow, weights=2), "v6e", "2 of int8"),
    ):
        with pytest.raises(IllegalTilesError, match=message):
            systolic.plan(sizes, name)


def test_under_jit_xla_sums_the_products_with_a_quantized_weight() -> None:
    mesh = AbstractMesh((4,), ("model",), axis_types=(AxisType.Explicit,))

    def cut(dtype: str, *shape: int, axes: tuple[Any, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=NamedSharding(mesh, P(*axes)))

    w = systolic.Quantized(cut("int8", 512, 256, axes=("model", None)), cut("float32", 1, 256, axes=(None, None)))
    fn = functools.partial(systolic.matmul, chip="v6e")
    (choice,) = systolic.plan_across_chips(fn, cut("bfloat16", 64, 512, axes=(None, "model")), w)
    assert not choice.by_kernel
    assert "only in `jax.shard_map`" in choice.reason
