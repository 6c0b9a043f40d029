"""One matrix product with what is fused into it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from systolic.spec.dtypes import EXACT_INT32_PRODUCTS, SpecError, accumulator_dtype, cast_op_count, dtype_bytes
from systolic.spec.fused import PLAIN, Epilogue, FusedOperand, Operands, Prologue, Side
from systolic.support.choices import unknown_name

LARGEST_SIZE = 2**31 - 1


class NoKernelWarning(UserWarning):
    """A program for a TPU holds XLA's product in place of systolic's kernel; the message gives the reason and a fix."""


# Of two products: act(lhs @ rhs) · (lhs @ up), lhs₁ @ rhs + lhs₂ @ up, or lhs @ rhs₁ and lhs @ rhs₂.
Pairing = Literal["gated", "added", "apart"]
PrecisionName = Literal["default", "high", "highest"]

# Passes of the matrix unit over bfloat16 parts of float32 operands. One part each; two parts each without the product
# of the small ones; three parts each, as the TPU compiler does it for Precision.HIGHEST.
PASSES: dict[PrecisionName, int] = {"default": 1, "high": 3, "highest": 6}


def _require_countable(name: str, size: int) -> None:
    if size > LARGEST_SIZE:
        raise SpecError(f"{name} is above {LARGEST_SIZE}, the largest size that a TPU's 32-bit indices count")


def check_sizes(spec: object, *names: str) -> None:
    """Check fields of a spec that are sizes or counts; raise SpecError."""
    for name in names:
        size = getattr(spec, name)
        if not 1 <= size <= LARGEST_SIZE:
            raise SpecError(f"{name}={size}: it has to be a number from 1 to {LARGEST_SIZE}")


def check_precision(precision: str) -> None:
    if precision not in PASSES:
        raise SpecError(unknown_name("precision=", precision, PASSES))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulSpec:
    """The product `lhs[m, k] @ rhs[k, n] -> out[m, n]`, `batch` times.

    Raises:
      SpecError: a size is below one or above 2³¹ − 1, a dtype or the precision is unknown.
    """

    m: int
    k: int
    n: int
    dtype_lhs: str
    dtype_rhs: str
    dtype_out: str
    batch: int = 1
    batch_lhs: int = 1  # different matrices among the batch's
    batch_rhs: int = 1
    transpose_lhs: bool = False  # lhs is stored as [k, m]
    transpose_rhs: bool = False  # rhs is stored as [n, k]
    precision: PrecisionName = "default"
    lhs_prologue: Prologue | None = None
    rhs_prologue: Prologue | None = None
    epilogue: Epilogue = PLAIN

    def __post_init__(self) -> None:
        for name in ("m", "k", "n"):
            size = getattr(self, name)
            if size < 1:
                raise SpecError(f"{name}={size}: a matrix needs at least one row and one column")
            _require_countable(name, size)
        for name in ("batch", "batch_lhs", "batch_rhs"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}={getattr(self, name)}: there has to be at least one matrix")
            _require_countable(name, getattr(self, name))
        for dtype in (self.dtype_lhs, self.dtype_rhs, *self.dtypes_out):
            dtype_bytes(dtype)
        check_precision(self.precision)

    @classmethod
    def of(cls, m: int, k: int, n: int, dtype: str, dtype_out: str | None = None) -> MatmulSpec:
        """Return the spec of operands of `dtype`; so is the output (int32 for integers) unless `dtype_out` is given."""
        if dtype_out is None:
            dtype_out = "int32" if accumulator_dtype(dtype) == "int32" else dtype
        return cls(m=m, k=k, n=n, dtype_lhs=dtype, dtype_rhs=dtype, dtype_out=dtype_out)

    @property
    def pairing(self) -> Pairing | None:
        """The combination of two products; None if there is one product."""
        return None

    @property
    def side_by_side(self) -> bool:
        """True if both right-hand sides, or both outputs of `apart`, lie in one array, the second after the first."""
        return False

    @property
    def joined_outputs(self) -> bool:
        """True if two outputs are one array."""
        return self.side_by_side and self.pairing == "apart"

    @property
    def products(self) -> int:
        """The number of products in a step, each of a tile of lhs and one of a right-hand side."""
        return 1 if self.pairing is None else 2

    @property
    def sums(self) -> int:
        """The number of sums over k that the products are added to."""
        return 1 if self.pairing == "added" else self.products

    @property
    def dtype_dot(self) -> str:
        """The dtype in which a unit sums the products of a step: int32 if both operands are integers."""
        kinds = {accumulator_dtype(dtype) for dtype in self._dtypes}
        return "int32" if kinds == {"int32"} else "float32"

    @property
    def dtype_accumulator(self) -> str:
        """The dtype of the running sum: `dtype_dot`.

        But float32 if k is so long that an int32 may wrap, unless the int32 itself is the requested result.
        """
        is_result = self.dtype_out == "int32" and self.epilogue.is_identity
        return self.dtype_dot if self.k <= EXACT_INT32_PRODUCTS or is_result else "float32"

    @property
    def is_only_cast(self) -> bool:
        """True if the sum, or each of two sums, is cast to the result and nothing else."""
        return self.epilogue.is_identity and self.pairing != "gated"

    @property
    def epilogue_op_count(self) -> int:
        """Vector operations for each element of the result, at a guess: those of the epilogue, with its cast."""
        return cast_op_count(self.dtype_accumulator, self.dtype_out) if self.is_only_cast else self.epilogue.op_count

    def dtype(self, side: Literal["lhs", "rhs"]) -> str:
        """Return the dtype in which an operand is stored."""
        return self.dtype_lhs if side == "lhs" else self.dtype_rhs

    def prologue(self, side: Literal["lhs", "rhs"]) -> Prologue | None:
        """Return the function of an operand."""
        return self.lhs_prologue if side == "lhs" else self.rhs_prologue

    def matrices(self, side: Side) -> int:
        """Return the number of different matrices in an operand's batch."""
        return {"lhs": self.batch_lhs, "rhs": self.batch_rhs, "out": self.batch}[side]

    @property
    def dtypes_out(self) -> tuple[str, ...]:
        """The dtypes of all outputs, each [m, n]."""
        if self.pairing == "apart":
            return self.dtype_out, self.dtype_out
        kept_sum = self.epilogue.kept_sum
        return (self.dtype_out, *(kept_sum,) * self.sums) if kept_sum else (self.dtype_out,)

    @property
    def operands(self) -> Operands:
        """Every array that is read."""
        lhs, rhs = (prologue.operands if prologue else () for prologue in (self.lhs_prologue, self.rhs_prologue))
        epilogue = self.epilogue
        right = FusedOperand(rows=True, columns=True, dtype=self.dtype_rhs)
        return Operands(
            lhs=FusedOperand(rows=True, columns=True, dtype=self.dtype_lhs),
            rhs=right,
            up=right if self.pairing in ("gated", "added") else None,
            lhs_args=lhs,
            rhs_args=rhs,
            bias=epilogue.bias,
            residual=epilogue.residual,
            scale=epilogue.scale,
            primal=epilogue.primal,
        )

    @property
    def _dtypes(self) -> tuple[str, str]:
        """The dtypes of both operands after their functions."""
        lhs, rhs = self.lhs_prologue, self.rhs_prologue
        return lhs.dtype if lhs else self.dtype_lhs, rhs.dtype if rhs else self.dtype_rhs

    @property
    def dtype_multiplied(self) -> str:
        """The dtype in which the matrix unit takes both operands: the wider one where they differ."""
        lhs, rhs = self._dtypes
        if lhs == rhs:
            return lhs
        if self.dtype_dot == "int32":
            return max(lhs, rhs, key=dtype_bytes)
        floats = [dtype for dtype in (lhs, rhs) if accumulator_dtype(dtype) == "float32"]
        return "float32" if "float32" in floats else "bfloat16"

    def multiplied_as(self, dtypes: Collection[str]) -> str:
        """Return `dtype_multiplied`: a chip without it refuses the product."""
        return self.dtype_multiplied

    @property
    def passes(self) -> int:
        """The number of passes of the matrix unit over the operands; above one only for float32."""
        return PASSES[self.precision] if self.dtype_multiplied == "float32" else 1

    @property
    def flops(self) -> int:
        """Multiplications and additions, 2·m·k·n for each product (by convention, not the exact m·n·(2k − 1))."""
        return 2 * self.products * self.batch * self.m * self.k * self.n

    @property
    def lhs_bytes(self) -> int:
        """Bytes of the left operand."""
        return self.batch_lhs * self.m * self.k * dtype_bytes(self.dtype_lhs)

    @property
    def rhs_bytes(self) -> int:
        """Bytes of the right operand, or of both."""
        return (len(self.operands.factors) - 1) * self.batch_rhs * self.k * self.n * dtype_bytes(self.dtype_rhs)

    @property
    def out_bytes(self) -> int:
        """Bytes of all outputs."""
        return self.batch * self.m * self.n * sum(map(dtype_bytes, self.dtypes_out))

    @property
    def fused_bytes(self) -> int:
        """Bytes of the fused operands, each read once."""

        def its_bytes(operand: FusedOperand, side: Side) -> int:
            rows, columns = {"lhs": (self.m, self.k), "rhs": (self.k, self.n), "out": (self.m, self.n)}[side]
            elements = (rows if operand.rows else 1) * (columns if operand.columns else 1)
            matrices = self.matrices(side) if operand.rows and operand.columns else 1
            return matrices * elements * dtype_bytes(operand.dtype)

        operand_bytes = self.operands.map(its_bytes, self.operands.sides)
        return sum(operand_bytes.present()) - sum(operand_bytes.factors)

    @property
    def least_hbm_bytes(self) -> int:
        """The fewest bytes that can cross HBM: everything read once, the result written once."""
        return self.lhs_bytes + self.rhs_bytes + self.fused_bytes + self.out_bytes

    @property
    def intensity_flops_per_byte(self) -> float:
        """Arithmetic intensity over the least traffic."""
        return self.flops / self.least_hbm_bytes
