"""Cases of a race: specs with their names, and specs of products as networks have them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from systolic.bench.contest import OF_OP, Contest
from systolic.spec import Epilogue, FusedOperand, MatmulSpec, PrecisionName, Prologue, accumulator_dtype

LhsFn = Literal["", "cast", "mask", "norm"]
RhsFn = Literal["", "dequantize"]

EXPERT = "expert"  # the mesh axis that a layer's experts are cut over


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A spec, its names, and how it is raced."""

    suite: str
    group: str
    name: str
    spec: Any
    series: str = ""  # of cases that differ in their rows alone, or in density
    contest: Contest = OF_OP
    even: Any = None  # the spec at the next larger sizes that tiles divide, to be compared with


def fused_spec(
    m: int,
    k: int,
    n: int,
    dtype: str,
    precision: PrecisionName = "default",
    *,
    bias: bool = False,
    activation: str = "",
    residual: bool = False,
    scale: bool = False,
    transpose_lhs: bool = False,
    transpose_rhs: bool = False,
    lhs_fn: LhsFn = "",
    rhs_fn: RhsFn = "",
    dtype_out: str = "",
) -> MatmulSpec:
    """Return `lhs[m, k] @ rhs[k, n]` as a network has it, with functions that `ops.matmul.named` knows by name.

    Args:
      dtype: the operands'.
      bias: [n], in the dtype in which a network of this dtype keeps its activations.
      residual: [m, n], in the same.
      scale: [n] float32.
      lhs_fn: a cast from another float; a mask [m, k] of int8; scales of rows and columns, as after a norm.
      rhs_fn: an int8 weight times a float32 scale for each column.
      dtype_out: "": the operands' own; int32 of integers; bfloat16 where that would lose too much, or where functions
        after the sum give other values than integers.
    """
    row_dtype = "float32" if dtype == "float32" else "bfloat16"
    row = FusedOperand(rows=False, columns=n > 1, dtype=row_dtype)
    float_row = dataclasses.replace(row, dtype="float32")
    dtype_lhs = {"float32": "bfloat16"}.get(dtype, "float32") if lhs_fn == "cast" else dtype
    read: dict[str, tuple[FusedOperand, ...]] = {
        "mask": (FusedOperand(rows=m > 1, columns=k > 1, dtype="int8"),),
        "norm": (
            FusedOperand(rows=m > 1, columns=False, dtype="float32"),
            FusedOperand(rows=False, columns=k > 1, dtype="float32"),
        ),
        "dequantize": (float_row,),
    }

    def prologue(name: str) -> Prologue | None:
        return Prologue(name=name, dtype=dtype, operands=read.get(name, ())) if name else None

    epilogue = Epilogue(
        bias=row if bias else None,
        activation=activation,
        residual=FusedOperand(rows=m > 1, columns=n > 1, dtype=row_dtype) if residual else None,
        scale=float_row if scale else None,
    )
    # Of integers a network keeps the sum itself; after an epilogue it keeps bfloat16, as it does for bfloat16.
    usual_out = "int32" if epilogue.is_identity and accumulator_dtype(dtype) == "int32" else row_dtype
    return MatmulSpec(
        m=m,
        k=k,
        n=n,
        dtype_lhs=dtype_lhs,
        dtype_rhs="int8" if rhs_fn == "dequantize" else dtype,
        dtype_out=dtype_out or usual_out,
        transpose_lhs=transpose_lhs,
        transpose_rhs=transpose_rhs,
        precision=precision,
        lhs_prologue=prologue(lhs_fn),
        rhs_prologue=prologue(rhs_fn),
        epilogue=epilogue,
    )


def sizes(m: int, k: int, n: int) -> str:
    """4096³, or 16·4096·14336 (m·k·n)."""
    return f"{m}³" if m == k == n else f"{m}·{k}·{n}"


def even_spec(spec: MatmulSpec) -> MatmulSpec:
    """Return the product at the next larger sizes that tiles divide: multiples of 512; below that, powers of two."""
    return dataclasses.replace(spec, m=_even(spec.m), k=_even(spec.k), n=_even(spec.n))


def _even(size: int) -> int:
    return -(-size // 512) * 512 if size > 512 else max(8, 1 << (size - 1).bit_length())
