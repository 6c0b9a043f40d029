"""The choice between kernels across chips and XLA: by arithmetic, and by the cuts of a product's arrays."""

from __future__ import annotations

import functools
import re
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
from systolic.ops.collective.sizes import RingSizes, WeightSizes
from systolic.spec import SpecError

GATHER = RingSizes(devices=8, rows=256, k=4096, columns=1792, dtype="bfloat16", dtype_out="bfloat16", scatters=False)
SCATTER = replace(GATHER, k=1792, columns=4096, scatters=True)
WEIGHT = WeightSizes(devices=8, rows=512, k=4096, columns=1792, dtype="bfloat16", dtype_out="bfloat16", cut="n")
MESH = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)


@pytest.mark.parametrize(
    ("sizes", "name", "by_kernel", "reason"),
    [
        (GATHER, "v6e", True, "83.* µs by arithmetic, and XLA's collective and a product 128.* µs"),
        (replace(SCATTER, transpose_rhs=True), "v6e", True, "blocks of .* µs by arithmetic"),
        (replace(GATHER, rows=24), "v6e", False, "it has to save 5%"),
        (GATHER, "v5p", True, "on each of 2 cores: 9.* µs by arithmetic, and XLA's collective and a product 166.* µs"),
        (WEIGHT, "v5p", False, "one of a v5p's 2 cores"),
        (replace(GATHER, k=65536), "v6e", False, "have to fit in"),
    ],
)
def test_the_faster_one_by_arithmetic_is_chosen(
    sizes: RingSizes | WeightSizes, name: str, by_kernel: bool, reason: str
) -> None:
    choice = chosen(sizes, chip(name))
    assert choice.by_kernel == by_kernel
    assert re.search(reason, str(choice))


@pytest.mark.parametrize(
    ("rows", "in_ring_order", "by_kernel"),
    [(16, False, False), (32, False, True), (32, True, False), (64, False, True), (64, True, True)],
)
def test_xla_scatters_slower_if_the_axis_is_no_ring(rows: int, in_ring_order: bool, by_kernel: bool) -> None:
    choice = chosen(replace(SCATTER, rows=rows), chip("v6e"), in_ring_order=in_ring_order)
    assert choice.by_kernel == by_kernel


def test_an_all_reduce_gathers_as_well() -> None:
    for rows, by_kernel in ((64, False), (256, True)):
        choice = chosen(replace(SCATTER, rows=rows), chip("v6e"), all_reduces=True)
        assert choice.by_kernel == by_kernel
        assert "by arithmetic with XLA's gathering of its results" in str(choice)


def array(*shape: int, cut: tuple[Any, ...] = ()) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(MESH, P(*cut)))


X = array(2048, 4096, cut=(("data", "model"), None))
X_ONE_AXIS = array(2048, 4096, cut=("model", None))
X_DATA = array(8192, 4096, cut=("data",))
FSDP = array(4096, 14336, cut=("data", "model"))
UP = array(4096, 14336, cut=(None, "model"))
DOWN = array(14336, 4096, cut=("model", None))
HIDDEN = array(2048, 14336, cut=("data", "model"))


def product(out: P | None = None, **options: Any) -> Callable[..., Any]:
    return lambda x, w: systolic.matmul(x, w, out_sharding=out, chip="v6e", **options)


@pytest.mark.parametrize(
    ("fn", "args", "kinds"),
    [
        (product(P("data", "model")), (X, UP), ["rows gathered"]),
        (product(P(None, "model")), (X_ONE_AXIS, UP), ["rows gathered"]),
        (product(P("data", "model"), activation="silu"), (X, UP), ["rows gathered"]),
        (product(P(("data", "model"), None)), (HIDDEN, DOWN), ["summed and scattered"]),
        (product(), (HIDDEN, DOWN), ["summed and scattered"]),
        (product(), (X, UP), ["weight gathered"]),
        (product(P("model", None), activation="silu"), (X_ONE_AXIS, UP), ["weight gathered"]),
        (product(P("data", "model")), (X_DATA, FSDP), ["4096] @ [2 × 2048, 3584], weight gathered"]),
        (product(), (X_DATA, array(4096, 14336, cut=(None, ("model", "data")))), ["[4096, 2 × 1792], weight gathered"]),
        (product(), (X_DATA, array(4096, 14336, cut=(None, ("data", "model")))), []),  # its pieces are not neighbors
        (
            product(transpose_rhs=True),
            (X_DATA, array(14336, 4096, cut=("data",))),
            ["[4096, 2 × 7168], weight gathered"],
        ),
        (product(transpose_rhs=True), (X_DATA, array(14336, 4096, cut=("model", "data"))), ["lie one below another"]),
        (product(P("data", "model"), tiles=(256, 512, 512)), (X, UP), ["tiles of its own"]),
        (product(P("data", "model"), implementation="xla"), (X, UP), ["left to XLA"]),
    ],
)
def test_cuts_choose_the_kernel(fn: Callable[..., Any], args: tuple[Any, ...], kinds: list[str]) -> None:
    choices = [choice for choice in systolic.plan_across_chips(fn, *args) if not choice.by_xla_alone]
    assert len(choices) == len(kinds)
    for choice, kind in zip(choices, kinds, strict=True):
        assert kind in str(choice)
        assert choice.by_kernel == (choice.time_us is not None)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("rows", "by_xla", "reason"),
    [(256, True, "the kernel takes .* µs, and XLA .* µs after it has copied the weight to VMEM"), (65536, False, "")],
)
def test_xla_multiplies_where_its_copy_of_the_weight_is_hidden(rows: int, by_xla: bool, reason: str) -> None:
    choices = systolic.plan_across_chips(product(), array(rows, 4096, cut=("data",)), UP)
    assert [choice.by_xla_alone for choice in choices] == [True] * by_xla
    assert all(re.search(reason, str(choice)) for choice in choices)
    forced = systolic.plan_across_chips(product(implementation="pallas"), array(rows, 4096, cut=("data",)), UP)
    assert forced == ()


@pytest.mark.exhaustive
def test_gradients_have_kernels_and_gather_once() -> None:
    def layer(x: Any, up: Any, down: Any) -> Any:
        hidden = systolic.gated_matmul(x, up, up, out_sharding=P("data", "model"), chip="v6e")
        return systolic.matmul(hidden, down, out_sharding=P(("data", "model"), None), chip="v6e")

    def gradients(*arrays: Any) -> Any:
        out, back = jax.vjp(layer, *arrays)
        return back(out)

    choices = list(map(str, systolic.plan_across_chips(gradients, X, UP, DOWN)))
    # Forward and backward. The products for the weights' gradients have nothing left to gather.
    assert ["gathered" in choice for choice in choices] == [True, False, True, False]


GATHERED = systolic.all_gather_matmul, (P("model"), P(None, "model")), P(None, "model")
SUMMED = (P(None, "model"), P("model"))
SCATTERED = systolic.matmul_reduce_scatter, SUMMED, P("model")
REDUCED = systolic.matmul_all_reduce, SUMMED, P()
FLOAT32 = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
DOWN_INT8 = systolic.Quantized(jax.ShapeDtypeStruct(DOWN.shape, jnp.int8), jax.ShapeDtypeStruct((4, 4096), jnp.float32))


def in_shard_map(multiply: Callable[..., Any], in_specs: tuple[P, P], out: P, **options: Any) -> Callable[..., Any]:
    run = functools.partial(multiply, axis_name="model", **({"chip": "v6e"} | options))
    mesh = AbstractMesh((4,), ("model",), axis_types=(AxisType.Auto,))
    return jax.shard_map(run, mesh=mesh, in_specs=in_specs, out_specs=out, check_vma=False)


def uncut(rows: int, columns: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, columns), jnp.bfloat16)


@pytest.mark.parametrize(
    ("form", "options", "x", "w", "kernels", "reason"),
    [
        (GATHERED, {}, uncut(2048, 4096), uncut(*UP.shape), 1, "a kernel across chips.* µs by arithmetic, and XLA's"),
        (GATHERED, {"activation": "silu"}, uncut(2048, 4096), uncut(*UP.shape), 1, "a kernel across chips"),
        (GATHERED, {}, uncut(8, 4096), uncut(*UP.shape), 0, "XLA's product: the kernel takes .*; it has to save 5%"),
        (SCATTERED, {}, uncut(2048, 14336), uncut(*DOWN.shape), 1, "a kernel across chips"),
        (SCATTERED, {}, uncut(8, 14336), uncut(*DOWN.shape), 0, "XLA's product: the kernel takes"),
        (REDUCED, {}, uncut(8, 14336), uncut(*DOWN.shape), 0, "XLA's product: the kernel takes .* its results, and"),
        (REDUCED, {}, uncut(4096, 14336), uncut(*DOWN.shape), 1, "a kernel across chips"),
        (SCATTERED, {}, uncut(2048, 14336), DOWN_INT8, 1, "with int8 weights.* a kernel across chips"),
        (SCATTERED, {}, uncut(8, 14336), DOWN_INT8, 0, "with int8 weights.* XLA's product: the kernel takes"),
        (GATHERED, {"wire_dtype": "int8"}, uncut(8, 4096), uncut(*UP.shape), 1, "the call sets wire_dtype=int8"),
        (REDUCED, {"wire_dtype": "int8"}, uncut(8, 14336), uncut(*DOWN.shape), 1, "the call sets wire_dtype=int8"),
        (GATHERED, {}, uncut(8, 4000), uncut(4000, 4096), 0, "XLA's product: .*k=4000"),
        (GATHERED, {"wire_dtype": "int8"}, uncut(8, 4000), uncut(4000, 4096), 0, "XLA's product: .*k=4000"),
        (GATHERED, {"precision": "high"}, FLOAT32, FLOAT32, 0, "XLA's product: .*one or six passes"),
        (GATHERED, {"implementation": "pallas"}, uncut(8, 4096), uncut(*UP.shape), 1, None),
        (GATHERED, {"implementation": "xla"}, uncut(2048, 4096), uncut(*UP.shape), 0, None),
        (GATHERED, {"chip": None}, uncut(2048, 4096), uncut(*UP.shape), 0, None),
    ],
)
def test_a_call_in_shard_map_has_the_same_choice(
    form: Any, options: dict[str, Any], x: Any, w: Any, kernels: int, reason: str | None
) -> None:
    fn = in_shard_map(*form, **options)
    choices = systolic.plan_across_chips(fn, x, w)
    assert len(choices) == (reason is not None)
    for choice in choices:
        assert choice.by_kernel == bool(kernels)
        assert re.search(str(reason), str(choice), re.DOTALL)
    assert str(jax.make_jaxpr(fn)(x, w)).count("pallas_call[") == kernels


def test_each_product_of_a_derivative_has_a_choice_of_its_own() -> None:
    def loss(x: Any, w: Any, wire_dtype: str | None) -> Any:
        return in_shard_map(*GATHERED, wire_dtype=wire_dtype)(x, w).astype(jnp.float32).sum()

    def kernels(tokens: int, wire_dtype: str | None = None) -> list[bool]:
        fn = functools.partial(jax.grad(loss, argnums=(0, 1)), wire_dtype=wire_dtype)
        return [choice.by_kernel for choice in systolic.plan_across_chips(fn, uncut(tokens, 4096), uncut(*UP.shape))]

    assert kernels(2048) == [True, True]
    assert kernels(8) == [False, False]
    assert kernels(8, "int8") == [True, False]  # cotangents travel in their own dtype


@pytest.mark.parametrize(
    ("args", "out", "message"),
    [
        ((jnp.ones((8, 8)), jnp.ones((8, 8))), P("x"), "no operand is on a mesh with explicit axes"),
        ((X, UP), P(None, None, "model"), "PartitionSpec of 2 dimensions"),
        ((X, UP), "model", "PartitionSpec of 2 dimensions"),
    ],
)
def test_a_cut_that_no_result_has_is_refused(args: tuple[Any, ...], out: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        jax.eval_shape(product(out), *args)
