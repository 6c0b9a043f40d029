"""One product of a suite: sizes, dtype and what is fused into it. Pure data; `bench.programs` makes programs of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from systolic.spec import PrecisionName, accumulator_dtype

LhsFn = Literal["", "cast", "mask", "norm"]
RhsFn = Literal["", "dequantise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What happens around the product, with names as `systolic.matmul` has them."""

    bias: bool = False  # [n]
    activation: str = ""
    residual: bool = False  # [m, n]
    out_scale: bool = False  # [n] float32
    transpose_lhs: bool = False
    transpose_rhs: bool = False
    lhs_fn: LhsFn = ""  # cast from another float; mask by [m, k] int8; scales of rows and columns, as after a norm
    rhs_fn: RhsFn = ""  # int8 weight times a float32 scale for each column
    dtype_out: str = ""  # "": see `Case.dtype_out`

    @property
    def has_epilogue(self) -> bool:
        """Whether more happens to the sum than a cast."""
        return self.bias or bool(self.activation) or self.residual or self.out_scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`lhs[m, k] @ rhs[k, n]` with a stack around it. `dtype` is what is multiplied."""

    suite: str
    group: str
    name: str
    m: int
    k: int
    n: int
    dtype: str
    precision: PrecisionName = "default"
    stack: Stack = Stack()
    beside_even: bool = False  # to be compared with the next larger sizes that tiles divide

    @property
    def dtype_lhs(self) -> str:
        """As stored: a cast comes from the other float."""
        if self.stack.lhs_fn == "cast":
            return "bfloat16" if self.dtype == "float32" else "float32"
        return self.dtype

    @property
    def dtype_rhs(self) -> str:
        """As stored."""
        return "int8" if self.stack.rhs_fn == "dequantise" else self.dtype

    @property
    def dtype_beside(self) -> str:
        """Of a bias and a residual: what a network of this dtype keeps its activations in."""
        return "float32" if self.dtype == "float32" else "bfloat16"

    @property
    def dtype_out(self) -> str:
        """The operands' own; int32 of integers; bfloat16 where that would lose too much, or a stack leaves integers."""
        if self.stack.dtype_out:
            return self.stack.dtype_out
        if accumulator_dtype(self.dtype) == "int32":
            return "bfloat16" if self.stack.has_epilogue else "int32"
        return self.dtype_beside

    def program(self) -> Case:
        """The case without its names: two cases with the same program are equal then."""
        return dataclasses.replace(self, suite="", group="", name="", beside_even=False)

    def even(self) -> Case:
        """The case at the next larger sizes that tiles divide: multiples of 512; below that, powers of two."""
        m, k, n = _even(self.m), _even(self.k), _even(self.n)
        return dataclasses.replace(self, name=sizes(m, k, n), m=m, k=k, n=n)


def sizes(m: int, k: int, n: int) -> str:
    """4096³, or 16·4096·14336 (m·k·n)."""
    return f"{m}³" if m == k == n else f"{m}·{k}·{n}"


def _even(size: int) -> int:
    return -(-size // 512) * 512 if size > 512 else max(8, 1 << (size - 1).bit_length())
