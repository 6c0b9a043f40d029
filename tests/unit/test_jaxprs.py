"""The walker over traced functions, with whichever version of JAX is installed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType, PartitionSpec, explicit_axes, use_abstract_mesh

from systolic.compat.jaxpr_values import bound, calls_inside, computed, evaluate, scan_parts, unknown, while_parts
from systolic.compat.jaxprs import (
    CALLS,
    called_function,
    equation_sites,
    equations,
    functions_inside,
    outside_of_kernels,
    rewritten,
)

TABLE = np.arange(4.0, dtype=np.float32)


@jax.custom_vjp
def doubled(x: jax.Array) -> jax.Array:
    return x * 2


doubled.defvjp(lambda x: (doubled(x), None), lambda _, g: (g,))


@jax.custom_jvp
def halved(x: jax.Array) -> jax.Array:
    return x / 2


halved.defjvp(lambda x, t: (halved(*x), t[0]))


@jax.custom_batching.custom_vmap
def negated(x: jax.Array) -> jax.Array:
    return -x


negated.def_vmap(lambda size, is_batched, x: (-x, is_batched[0]))


def everything(x: jax.Array, n: jax.Array) -> jax.Array:
    x = jax.jit(lambda y: y + TABLE)(x)
    x = jax.checkpoint(jnp.sin)(x)
    x = lax.composite(lambda y: y - 1, "a.name")(halved(doubled(negated(x))))
    x = lax.cond(n > 2, lambda y: y * 3, lambda y: lax.while_loop(lambda z: z.sum() < 9, lambda z: z + 1, y), x)
    return lax.scan(lambda carry, row: (carry + row, carry), jnp.float32(0), x)[1]


def traced() -> Any:
    return jax.make_jaxpr(everything)(jnp.ones(4), jnp.int32(1))


def step(equation: Any, operands: list[Any]) -> list[Any]:
    function = called_function(equation)
    return bound(equation, operands) if function is None else evaluate(function, operands, step)


@pytest.mark.parametrize("n", [1, 3])
def test_evaluating_gives_what_the_function_gives(n: int) -> None:
    """Also with the constants of an inner function, which belong to that function."""
    x = jnp.linspace(-1, 1, 4)
    (result,) = evaluate(traced(), [x, jnp.int32(n)], step)
    np.testing.assert_allclose(result, everything(x, jnp.int32(n)), rtol=1e-6)


def test_every_call_of_one_function_is_in_the_list() -> None:
    names = {equation.primitive.name for equation in equations(traced()) if len(functions_inside(equation)) == 1}
    assert names - {"scan"} == {
        "composite",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vmap_call",
        "jit",
        "remat2",
    }
    assert names - {"scan"} <= CALLS


def test_a_path_leads_to_its_equation_through_branches() -> None:
    closed = traced()
    sites = list(equation_sites(closed))
    for site in sites:
        jaxpr, path = closed.jaxpr, list(site.path)
        if any(caller.primitive.name == "while" for caller in site.callers):
            continue  # whose two functions share their paths
        for caller in site.callers:
            assert jaxpr.eqns[path.pop(0)] is caller
            functions = functions_inside(caller)
            jaxpr = functions[path.pop(0) if caller.primitive.name == "cond" else 0].jaxpr
        assert jaxpr.eqns[path.pop()] is site.equation
        assert not path
    multiplied = [site for site in sites if site.equation.primitive.name == "mul" and "cond" in str(site.callers)]
    assert [site.path[-2] for site in multiplied] == [1]  # the branch where the predicate is true


def test_values_are_handed_to_the_functions_inside() -> None:
    by_name = {equation.primitive.name: equation for equation in equations(traced())}
    assert [operands for _, operands in calls_inside(by_name["cond"], ["index", "x"])] == [["x"], ["x"]]
    assert [operands for _, operands in calls_inside(by_name["while"], ["x"])] == [["x"], ["x"]]
    body, constants, carried, sliced = scan_parts(by_name["scan"], ["sum", "rows"])
    assert (constants, carried, sliced) == ([], ["sum"], ["rows"])
    assert len(body.jaxpr.invars) == 2

    def looped(n: jax.Array, x: jax.Array, start: jax.Array) -> jax.Array:
        return lax.while_loop(lambda y: y < n, lambda y: y + x, start)

    (loop,) = jax.make_jaxpr(looped)(9, 1, 0).jaxpr.eqns
    names = dict(zip(loop.invars, ("n", "x", "start"), strict=True))
    parts = while_parts(loop, [names[atom] for atom in loop.invars])
    assert (parts.condition_constants, parts.body_constants, parts.carried) == (["n"], ["x"], ["start"])
    assert [operands for _, operands in calls_inside(loop, ["n", "x", "start"])] == [["n", "start"], ["x", "start"]]


def test_a_scope_in_a_kernel_takes_references_from_outside() -> None:
    def kernel(x_vmem: Any, out_vmem: Any) -> None:
        def scoped(scratch_vmem: Any) -> None:
            scratch_vmem[...] = x_vmem[...]
            out_vmem[...] = scratch_vmem[...]

        pl.run_scoped(scoped, pltpu.VMEM((8, 128), jnp.float32))

    shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    closed = jax.make_jaxpr(pl.pallas_call(kernel, out_shape=shape))(shape)
    assert [site.equation.primitive.name for site in equation_sites(closed, outside_of_kernels)] == ["pallas_call"]
    accesses: list[Any] = []

    def look(equation: Any, operands: list[str | None]) -> list[None]:
        if equation.primitive.name in ("get", "swap"):
            accesses.append(operands[0])
        for function, inputs in calls_inside(equation, operands):
            evaluate(function, inputs, look, literal=unknown, constant=unknown)
        return [None] * len(equation.outvars)

    (call,) = closed.jaxpr.eqns
    evaluate(call.params["jaxpr"], ["x", "out"], look, literal=unknown, constant=unknown)
    assert accesses == ["x", None, None, "out"]


def test_rewriting_changes_equations_at_any_depth_and_shares_the_rest() -> None:
    closed = traced()
    assert rewritten(closed, lambda equation, path: None) is closed
    (sine,) = [site for site in equation_sites(closed) if site.equation.primitive.name == "sin"]

    def change(equation: Any, path: tuple[int, ...]) -> Any:
        return equation.replace(primitive=lax.cos_p) if path == sine.path else None

    changed = rewritten(closed, change)
    names = [equation.primitive.name for equation in equations(changed)]
    assert "sin" not in names
    assert "cos" in names
    same = [new is old for new, old in zip(changed.jaxpr.eqns, closed.jaxpr.eqns, strict=True)]
    assert same == [number != sine.path[0] for number in range(len(same))]
    (result,) = evaluate(changed, [jnp.ones(4), jnp.int32(3)], step)
    expected = np.cumsum(((-np.cos(1 + TABLE)) - 1) * 3)
    np.testing.assert_allclose(result, [0, *expected[:-1]], rtol=1e-5)


def test_an_equation_is_computed_without_the_mesh_that_it_was_traced_for() -> None:
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Explicit,))

    def rows(row: jax.Array) -> jax.Array:
        return jnp.broadcast_to(row[None], (2, 4)) + 1

    def traced(row: jax.Array) -> Any:
        with use_abstract_mesh(mesh):
            return explicit_axes(rows, in_sharding=PartitionSpec("x"))(row)

    def step(equation: Any, values: list[Any]) -> list[Any]:
        return values if equation.primitive.name == "reshard" else computed(equation, values)

    function = jax.make_jaxpr(traced)(jax.ShapeDtypeStruct((4,), jnp.float32))
    (result,) = evaluate(function, [np.arange(4, dtype=np.float32)], step, literal=lambda atom: atom.val)
    np.testing.assert_array_equal(result, np.tile(np.arange(1, 5), (2, 1)))
