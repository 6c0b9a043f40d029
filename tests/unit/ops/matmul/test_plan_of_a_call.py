"""`systolic.plan` of a spec plans what the call plans: every count that the planner reads is the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.chips import CHIPS, Chip, chip
from systolic.kernels.epilogue import as_dtype
from systolic.ops.engine.activations import op_count_of
from systolic.ops.op import op_of
from systolic.spec import Epilogue, FusedOperand, MatmulSpec
from systolic.spec.dtypes import cast_op_count

SIZES = [(2000, 3001, 1501), (16, 4096, 14336), (256, 200000, 128)]
DTYPES = ["float32", "bfloat16", "int8", "float8_e4m3fn"]
RESULTS = [None, "float32", "int8"]
CASTS = ["float32", "bfloat16", "float16", "float8_e4m3fn", "int32", "int8", "int4", "uint8"]


class PlannedError(Exception):
    """Ends the trace of a call at its first plan."""


class Recorder(systolic.Planner):
    """A planner that records its specs."""

    def __init__(self, *, ends_trace: bool) -> None:
        super().__init__(None)
        self.specs: list[Any] = []
        plan = self.plans

        def recorded(spec: Any, chip: Chip, tiles: Any) -> Any:
            self.specs.append(spec)
            if ends_trace:
                raise PlannedError
            return plan(spec, chip, tiles)

        self.plans = recorded


def planned_spec(call: Callable[..., Any], *shapes: Any) -> Any:
    """Return the spec for which a call asks the planner."""
    with systolic.use(Recorder(ends_trace=True)) as planner, pytest.raises(PlannedError):
        jax.eval_shape(call, *shapes)
    return cast(Recorder, planner).specs[-1]


def array(*shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize("dtype_from", ["float32", "int32"])
@pytest.mark.parametrize("dtype_to", CASTS)
def test_a_cast_counts_as_the_kernel_casts(dtype_from: str, dtype_to: str) -> None:
    tile = jax.ShapeDtypeStruct((8, 128), dtype_from)
    assert cast_op_count(dtype_from, dtype_to) == op_count_of(lambda total: as_dtype(total, dtype_to), tile).total


def plain_cases() -> Iterator[tuple[str, str | None, str, tuple[int, int, int]]]:
    """Yield each pair of dtypes with one of the sizes and one of the chips that multiply the first."""
    for number, (dtype, dtype_out) in enumerate(itertools.product(DTYPES, RESULTS)):
        names = [name for name in CHIPS if dtype in chip(name).dtypes]
        yield dtype, dtype_out, names[number % len(names)], SIZES[number % len(SIZES)]


@pytest.mark.parametrize(("dtype", "dtype_out", "name", "sizes"), list(plain_cases()))
def test_a_plain_product(dtype: str, dtype_out: str | None, name: str, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes

    def call(lhs: Any, rhs: Any) -> Any:
        return systolic.matmul(lhs, rhs, preferred_element_type=dtype_out, implementation="pallas", chip=name)

    expected = MatmulSpec.of(m, k, n, dtype, dtype_out)
    assert planned_spec(call, array(m, k, dtype=dtype), array(k, n, dtype=dtype)) == expected
    assert expected.epilogue_op_count == cast_op_count(expected.dtype_accumulator, expected.dtype_out)


@pytest.mark.parametrize("name", ["v5e", "v7x"])
def test_a_fused_product(name: str) -> None:
    """The counts of a spec made by hand are those of its call; the counts that it came with do not matter."""
    row, matrix = (FusedOperand(rows=rows, columns=True, dtype="bfloat16") for rows in (False, True))
    made = replace(
        MatmulSpec.of(512, 1024, 768, "bfloat16"), epilogue=Epilogue(bias=row, activation="gelu", residual=matrix)
    )

    def call(lhs: Any, rhs: Any, bias: Any, residual: Any) -> Any:
        return systolic.matmul(
            lhs, rhs, bias=bias, activation="gelu", residual=residual, implementation="pallas", chip=name
        )

    spec = planned_spec(call, array(512, 1024), array(1024, 768), array(768), array(512, 768))
    assert spec.epilogue_op_count > 10
    assert systolic.plan(made, name) == systolic.plan(spec, name)
    assert systolic.plan(made, name).spec == spec


@pytest.mark.parametrize("activation", [None, "silu", "gelu"])
def test_a_gated_product(activation: str | None) -> None:
    def call(x: Any, gate: Any, up: Any) -> Any:
        return systolic.gated_matmul(x, gate, up, activation=activation, implementation="pallas", chip="v6e")

    made = systolic.GatedSpec.of(512, 1024, 768, "bfloat16", activation=activation or "")
    spec = planned_spec(call, array(512, 1024), array(1024, 768), array(1024, 768))
    assert op_of(made).counted(made) == spec
    assert spec.epilogue_op_count >= 2  # the second factor and the cast
    assert systolic.plan(made, "v6e") == systolic.plan(spec, "v6e")


def test_a_spec_without_a_program_keeps_its_own_counts() -> None:
    """A user's own function has no name here: its call counts it."""
    made = replace(MatmulSpec.of(256, 512, 256, "bfloat16"), epilogue=Epilogue(activation="mine", op_count=7))
    assert systolic.plan(made, "v6e").spec == made


def test_a_gradient() -> None:
    """The cast of a gradient's product counts too."""

    def loss(lhs: Any, rhs: Any) -> Any:
        return jnp.sum(systolic.matmul(lhs, rhs, implementation="pallas", chip="v6e").astype(jnp.float32))

    with systolic.use(Recorder(ends_trace=False)) as planner:
        jax.eval_shape(jax.grad(loss, argnums=(0, 1)), array(16, 128), array(128, 256))
    plain = MatmulSpec.of(16, 128, 256, "bfloat16")
    by_rhs, by_lhs = replace(plain, k=256, n=128, transpose_rhs=True), replace(plain, m=128, k=16, transpose_lhs=True)
    assert set(cast(Recorder, planner).specs) == {plain, by_rhs, by_lhs}
    assert {spec.epilogue_op_count for spec in (plain, by_rhs, by_lhs)} == {1}
