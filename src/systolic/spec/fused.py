"""Everything that is fused into a product: functions of its operands, the epilogue, and the arrays that these read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

Side = Literal["lhs", "rhs", "out"]


class Operands(NamedTuple):
    """One value for each operand of a product: an array, its shape, its block, or its ref in a kernel.

    The fields have the order of a kernel's operands. An operand that the product does not have is None or ().
    """

    lhs: Any = None
    rhs: Any = None
    up: Any = None  # the right-hand side of the second product, where there are two (`GatedSpec`); like rhs
    lhs_args: tuple[Any, ...] = ()  # read by the function of lhs
    rhs_args: tuple[Any, ...] = ()
    bias: Any = None
    residual: Any = None
    scale: Any = None
    primal: Any = None  # in a gradient's product: the argument of the derivative of an operand's function

    def map(self, fn: Callable[..., Any], *others: Operands) -> Operands:
        """Apply `fn` to each value that is present, and to the values of `others` in the same field."""
        result: dict[str, Any] = {}
        for name, value, *rest in zip(self._fields, self, *others, strict=True):
            if isinstance(value, tuple) and name.endswith("_args"):
                result[name] = tuple(fn(*values) for values in zip(value, *rest, strict=True))
            elif value is not None:
                result[name] = fn(value, *rest)
        return Operands(**result)

    @property
    def sides(self) -> Operands:
        """The side that each operand applies to."""
        names = ("lhs", "rhs", "rhs", ("lhs",) * len(self.lhs_args), ("rhs",) * len(self.rhs_args))
        return Operands(*names, *("out" for _ in self[len(names) :]))

    @property
    def of_output(self) -> Operands:
        """Only the operands that apply to the output; the others are left out."""
        return self._replace(lhs=None, rhs=None, up=None, lhs_args=(), rhs_args=())

    @property
    def factors(self) -> list[Any]:
        """The multiplied operands, without the arrays that their functions read."""
        return [value for value in (self.lhs, self.rhs, self.up) if value is not None]

    def present(self) -> list[Any]:
        all_operands = (*self.lhs_args, *self.rhs_args, *self[5:])
        return [*self.factors, *(value for value in all_operands if value is not None)]

    def args(self, side: Side) -> tuple[Any, ...]:
        """Return the arrays that the function of an operand reads."""
        return self.lhs_args if side == "lhs" else self.rhs_args

    def swapped(self) -> Operands:
        """Return the operands of the transposed product, rhsᵀ · lhsᵀ."""
        return self._replace(lhs=self.rhs, rhs=self.lhs, lhs_args=self.rhs_args, rhs_args=self.lhs_args)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedOperand:
    """An array with the shape of the matrix that it applies to, or one row, one column or one element of it."""

    rows: bool  # True: the matrix's rows; False: one
    columns: bool
    dtype: str

    def turned(self) -> FusedOperand:
        return replace(self, rows=self.columns, columns=self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prologue:
    """An elementwise function of an operand, applied before it is multiplied."""

    dtype: str  # of its result
    name: str = ""
    op_count: int = 1  # vector operations an element, at a guess
    operands: tuple[FusedOperand, ...] = ()  # further operands that it reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """The operations on the sum before it is stored: `(activation(sum + bias) + residual) · scale`, and a cast.

    In the product of a gradient, the sum is multiplied by the derivative of the function at the operand `primal`.
    """

    bias: FusedOperand | None = None
    activation: str = ""  # its name
    residual: FusedOperand | None = None
    scale: FusedOperand | None = None
    primal: FusedOperand | None = None
    kept_sum: str | None = None  # dtype of a second output, sum + bias, that the gradient needs; None: there is none
    # Vector operations an element with the cast, at a guess; of a cast alone see `MatmulSpec.epilogue_op_count`.
    op_count: int = 0
    transcendentals: int = 0  # among these

    @property
    def is_identity(self) -> bool:
        """True if the sum is only cast."""
        return not (self.activation or self.bias or self.residual or self.scale or self.primal)

    def __str__(self) -> str:
        parts = {
            "bias": self.bias,
            self.activation: self.activation,
            "residual": self.residual,
            "scale": self.scale,
            "derivative": self.primal,
        }
        return ", ".join(name for name, part in parts.items() if part)


PLAIN = Epilogue()  # the sum is only cast
