"""The programs that `tune` compiles are built from a spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import pytest

from systolic.bench.suites import OPERAND_STACKS
from systolic.chips import chip
from systolic.cost import ranked_configs
from systolic.ops.matmul.programs import programs_of
from systolic.spec import Epilogue, FusedOperand, MatmulSpec

V6E = chip("v6e")


def as_arguments(spec: MatmulSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in MatmulSpec.__dataclass_fields__}


def test_a_product_with_everything_around_it_is_built() -> None:
    row, matrix = (FusedOperand(rows=rows, columns=True, dtype="bfloat16") for rows in (False, True))
    spec = replace(
        MatmulSpec.of(256, 128, 384, "bfloat16"),
        transpose_rhs=True,
        epilogue=Epilogue(bias=row, activation="gelu", residual=matrix),
    )
    programs = programs_of(spec, V6E)
    (operands,) = programs.arguments
    assert [one.shape for one in operands.present()] == [(256, 128), (384, 128), (1, 384), (256, 384)]
    assert programs.computed.epilogue.op_count > 10


@pytest.mark.parametrize("name", dict(OPERAND_STACKS))
def test_a_product_whose_functions_have_names_is_built(name: str) -> None:
    programs = programs_of(dict(OPERAND_STACKS)[name](16, 256, 512, "bfloat16", "default"), V6E)
    best, *_ = ranked_configs(programs.computed, V6E, count=1)[0]
    for program in (programs.kernel(best.config), programs.xla):
        assert jax.eval_shape(program, *programs.arguments).shape == (16, 512)
    assert max(one.op_count for one in (programs.computed.lhs_prologue, programs.computed.rhs_prologue) if one) > 0


def test_a_batch_is_folded_into_rows_as_matmul_does() -> None:
    plain = as_arguments(MatmulSpec.of(64, 128, 256, "bfloat16"))
    shared = MatmulSpec(**{**plain, "batch": 4, "batch_lhs": 4, "batch_rhs": 1})
    computed = programs_of(shared, V6E).computed
    assert (computed.batch, computed.m, computed.k, computed.n) == (1, 256, 128, 256)
    each = MatmulSpec(**{**plain, "batch": 4, "batch_lhs": 4, "batch_rhs": 4})
    assert programs_of(each, V6E).computed.batch == 4
