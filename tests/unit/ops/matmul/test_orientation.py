"""The orientation in which a product is computed."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from systolic.ops.matmul.orientation import Orientation, stored_by_columns
from systolic.ops.planner import plan
from systolic.spec import Epilogue, FusedOperand, MatmulSpec, Operands, Prologue


@pytest.mark.parametrize(
    ("rows", "columns", "by_columns"),
    # As the compiler lays out parameters of these shapes: see `stored_by_columns`.
    [
        (4096, 1000, True),
        (1000, 1000, False),
        (1000, 4096, False),
        (7001, 5003, True),
        (3001, 7001, False),
        (768, 50257, True),
        (16, 1000, False),
        (1000, 16, True),
        (4097, 4096, False),
        (100, 4095, False),
    ],
)
def test_layouts_that_were_seen(rows: int, columns: int, by_columns: bool) -> None:
    assert stored_by_columns(rows, columns) == by_columns


@pytest.mark.parametrize("sizes", [(256, 256, 200), (256, 200, 256), (200, 16, 600), (24, 1000, 16), (7, 5, 3)])
@pytest.mark.parametrize("transposes", [*itertools.product([False, True], repeat=2)])
def test_the_turned_product_is_the_same(sizes: tuple[int, int, int], transposes: tuple[bool, bool]) -> None:
    m, k, n = sizes
    spec = dataclasses.replace(
        MatmulSpec.of(m, k, n, "float32"),
        transpose_lhs=transposes[0],
        transpose_rhs=transposes[1],
        lhs_prologue=Prologue(dtype="bfloat16", operands=(FusedOperand(rows=True, columns=False, dtype="float32"),)),
        epilogue=Epilogue(bias=FusedOperand(rows=False, columns=True, dtype="float32")),
    )
    how = Orientation.of(spec)
    computed = how.spec(spec)
    random = np.random.default_rng(0)
    lhs = random.integers(-3, 4, (k, m) if transposes[0] else (m, k)).astype(np.float64)
    rhs = random.integers(-3, 4, (n, k) if transposes[1] else (k, n)).astype(np.float64)
    row = random.integers(-3, 4, (1, n)).astype(np.float64)
    column = random.integers(1, 4, (lhs.shape[0], 1)).astype(np.float64)

    def product(lhs: np.ndarray, rhs: np.ndarray, spec: MatmulSpec) -> np.ndarray:
        return (lhs.T if spec.transpose_lhs else lhs) @ (rhs.T if spec.transpose_rhs else rhs)

    expected = product(lhs * column, rhs, spec) + row
    arrays = how.operands(Operands(lhs, rhs, lhs_args=(column,), bias=row), np.transpose)
    (scaled,) = (*arrays.lhs_args, *arrays.rhs_args)
    factors = (arrays.lhs, arrays.rhs * scaled) if how.swap_ab else (arrays.lhs * scaled, arrays.rhs)
    found = product(*factors, computed) + arrays.bias
    assert (computed.m, computed.n) == ((n, m) if how.swap_ab else (m, n))
    np.testing.assert_array_equal(found.T if how.swap_ab else found, expected)
    # What the kernel reads lies by rows.
    assert not stored_by_columns(*arrays.lhs.shape)
    assert not stored_by_columns(*arrays.rhs.shape)
    assert not stored_by_columns(computed.m, computed.n)
    # The function goes with its operand, and the spec says how what is fused lies.
    assert (computed.rhs_prologue if how.swap_ab else computed.lhs_prologue) is not None
    assert (computed.lhs_prologue if how.swap_ab else computed.rhs_prologue) is None
    facts = computed.operands._replace(lhs=None, rhs=None)
    assert facts.map(lambda one: (one.rows, one.columns)) == arrays._replace(lhs=None, rhs=None).map(
        lambda one: (one.shape[0] > 1, one.shape[1] > 1)
    )


def test_a_plan_says_so() -> None:
    assert "computed as rhsᵀ · lhsᵀ" in plan(MatmulSpec.of(4096, 4096, 1000, "bfloat16"), "v5e").reason
    assert "lhs read by columns" in plan(MatmulSpec.of(4096, 1000, 4096, "bfloat16"), "v5e").reason
    assert "stores" not in plan(MatmulSpec.of(4096, 4096, 4096, "bfloat16"), "v5e").reason


def test_batches_stay_as_they_are() -> None:
    spec = dataclasses.replace(MatmulSpec.of(4096, 4096, 1000, "bfloat16"), batch=4, batch_lhs=4)
    assert Orientation.of(spec) == Orientation()
