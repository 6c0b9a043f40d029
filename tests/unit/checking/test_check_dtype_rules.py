"""The rules on dtypes in a kernel's body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl

from systolic.analysis import KernelCall, kernel_calls
from systolic.checking.finding import Finding
from systolic.checking.rules.dtypes import dtype_findings
from systolic.chips import CHIPS, chip
from systolic.compat.jaxprs import equations


def called(compute: Callable[..., Any], *dtypes: str) -> KernelCall:
    """A kernel that puts `compute` of its 128 × 128 inputs into its output."""

    def body(*refs):
        refs[-1][...] = compute(*(ref[...] for ref in refs[:-1]))

    inputs = [jax.ShapeDtypeStruct((128, 128), jnp.dtype(dtype)) for dtype in dtypes]

    def launch(*arrays):
        return pl.pallas_call(body, out_shape=jax.eval_shape(compute, *arrays))(*arrays)

    (call,) = kernel_calls(jax.make_jaxpr(launch)(*inputs))
    return call


def dot(total: str = "float32", precision: Any = None) -> Callable[..., jax.Array]:
    def product(lhs, rhs):
        return lax.dot_general(
            lhs, rhs, (((1,), (0,)), ((), ())), precision=precision, preferred_element_type=jnp.dtype(total)
        )

    return product


def found_on(name: str, compute: Callable[..., Any], *dtypes: str) -> list[Finding]:
    return dtype_findings(called(compute, *dtypes), chip(name))


def grades(name: str, compute: Callable[..., Any], *dtypes: str) -> dict[str, str]:
    return {found.rule: found.grade for found in found_on(name, compute, *dtypes)}


# Taken by v4, v5e, v5p, v6e, v7x: what compiling said of a product of 128 × 256 × 128.
@pytest.mark.parametrize(
    ("lhs", "rhs", "total", "taken"),
    [
        ("bfloat16", "bfloat16", "float32", "yes yes yes yes yes"),
        ("int8", "int8", "int32", "no yes yes yes yes"),
        ("int4", "int4", "int32", "no yes yes yes yes"),
        ("int8", "int4", "int32", "no no no no yes"),
        ("int8", "int8", "float32", "no no no no yes"),
        ("bfloat16", "int8", "float32", "yes yes yes yes yes"),
        ("bfloat16", "int4", "float32", "yes yes yes yes yes"),
        ("bfloat16", "bfloat16", "int32", "no no no no yes"),
        ("float8_e4m3fn", "float8_e4m3fn", "float32", "no yes yes yes yes"),
        ("float8_e5m2", "float8_e4m3fn", "float32", "no yes yes yes yes"),
        ("float8_e4m3b11fnuz", "float8_e4m3b11fnuz", "float32", "no yes yes yes no"),
        ("uint8", "uint8", "int32", "no no no no no"),
        ("int16", "int16", "int32", "no no no no no"),
        ("int32", "int32", "int32", "no no no no no"),
        ("bfloat16", "bfloat16", "bfloat16", "no no no no no"),
    ],
)
def test_operands_of_a_dot(lhs: str, rhs: str, total: str, taken: str) -> None:
    said = ["no" if grades(name, dot(total), lhs, rhs).get("dot-dtype") == "error" else "yes" for name in CHIPS]
    assert said == taken.split()


def test_a_refused_dot_names_its_line_and_a_way_out() -> None:
    (found,) = found_on("v5e", dot("float32"), "int8", "int8")
    assert found.value == "a dot of int8 and int8 with float32 sums"
    assert "preferred_element_type=jnp.int32" in found.fix
    assert "test_check_dtype_rules.py" in found.where
    assert found.where.endswith("product")
    assert found.chip == "v5e"


@pytest.mark.parametrize("name", CHIPS)
def test_precision(name: str) -> None:
    highest, high = lax.Precision.HIGHEST, lax.Precision.HIGH
    assert grades(name, dot(precision=high), "float32", "float32") == {"precision": "error"}
    assert grades(name, dot(precision=(highest, lax.Precision.DEFAULT)), "float32", "float32") == {"precision": "error"}
    assert grades(name, dot(precision=highest), "bfloat16", "bfloat16") == {"precision": "error"}
    assert grades(name, dot(precision=highest), "float32", "float32") == {}
    (found,) = found_on(name, dot(), "float32", "float32")
    assert (found.rule, found.grade) == ("precision", "warning")
    assert "6 passes" in found.fix


@pytest.mark.parametrize(
    ("lhs", "rhs", "total", "taken"),
    [
        ("float32", "float32", "float32", True),
        ("bfloat16", "float32", "float32", False),
        ("bfloat16", "bfloat16", "float32", False),
        ("int8", "int8", "int32", False),
    ],
)
def test_one_row_of_rhs_is_multiplied_elementwise(lhs: str, rhs: str, total: str, taken: bool) -> None:
    def compute(x, y):
        row = y[:1, :]
        return lax.dot_general(x, row, (((1,), (1,)), ((), ())), preferred_element_type=jnp.dtype(total))

    assert (grades("v5e", compute, lhs, rhs).get("dot-dtype") != "error") is taken


@pytest.mark.parametrize(
    ("name", "dtype", "total", "slow"),
    [
        ("v5e", "float8_e4m3fn", "float32", True),
        ("v5e", "float8_e5m2", "float32", False),
        ("v7x", "float8_e4m3fn", "float32", False),
        ("v5e", "int8", "int32", False),
        ("v7x", "int8", "int32", True),
    ],
)
def test_what_is_converted_first_saves_no_time(name: str, dtype: str, total: str, slow: bool) -> None:
    assert grades(name, dot(total), dtype, dtype) == ({"dot-dtype": "warning"} if slow else {})


@pytest.mark.parametrize(
    ("compute", "dtype", "refused"),
    [
        (lambda x: x + x, "int8", True),
        (lambda x: x + x, "int16", False),
        (lambda x: x * x, "float8_e5m2", True),
        (lambda x: x.astype(jnp.float32) * 2, "float8_e5m2", False),
        (lambda x: jnp.maximum(x, x), "int16", True),
        (lambda x: jnp.maximum(x, x), "int32", False),
        (lambda x: jnp.sum(x, axis=1, keepdims=True), "bfloat16", False),
        (lambda x: jnp.sum(x, axis=1, keepdims=True), "uint32", True),
        (lambda x: x, "int8", False),
    ],
)
def test_vector_operations(compute: Callable[..., Any], dtype: str, refused: bool) -> None:
    assert grades("v6e", compute, dtype) == ({"vector-dtype": "error"} if refused else {})


def test_float16_is_not_held() -> None:
    found = found_on("v7x", lambda x: x, "float16")
    assert [(each.rule, each.grade) for each in found] == [("array-dtype", "error")] * 2
    assert all("is float16 in VMEM" in each.value for each in found)


def test_branches_and_loops_are_looked_into() -> None:
    def compute(x):
        def step(_, total):
            return lax.cond(total[0, 0] > 0, lambda y: y + dot()(y, y), lambda y: y, total)

        return lax.fori_loop(0, 3, step, x)

    call = called(compute, "float32")
    assert "dot_general" in [equation.primitive.name for equation in equations(call.body)]
    (found,) = dtype_findings(call, chip("v5e"))
    assert (found.rule, found.grade) == ("precision", "warning")
