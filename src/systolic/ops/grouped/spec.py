"""Products of rows in groups, each group with its own matrix, and the product that is their gradient."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.chips import Chip
from systolic.schedule.legality import LANES
from systolic.spec.dtypes import EXACT_INT32_PRODUCTS, SpecError, dtype_bytes
from systolic.spec.formats import format_bytes
from systolic.spec.matmul import PrecisionName, check_precision, check_sizes
from systolic.spec.one_dtype import OneDtype

# Formats of quantized right-hand sides that the kernel reads as they are stored.
KERNEL_FORMATS = ("int8", "int4", "float8_e4m3fn", "float8_e5m2")


def reads_codes(dtype: str, k: int, block: int, chip: Chip | None) -> bool:
    """True if the kernel reads codes of this format as they are stored, where each `block` of k shares a scale.

    Args:
      chip: None: any chip may run the product.
    """
    operands = None if chip is None else chip.dot_operands
    taken = operands is None or dtype in operands.floats | operands.integers
    return dtype in KERNEL_FORMATS and taken and (block == k or block % LANES == 0)


def multiplies_codes(row_format: str, dtype: str, k: int, chip: Chip | None) -> bool:
    """True if the kernel multiplies rows quantized to a format by codes that it reads, both as they are.

    Args:
      chip: None: XLA multiplies them.
    """
    if chip is not None:
        taken = chip.dot_operands.floats | chip.dot_operands.integer_pairs
        if row_format not in taken or row_format not in chip.peak_ops_per_s_per_chip:
            return False
    if row_format == "int8":
        return dtype in ("int8", "int4") and k <= EXACT_INT32_PRODUCTS
    return row_format == dtype and dtype.startswith("float8") and chip is not None


def pushed_dtype(dtype: str, codes: str | None) -> str:
    """Return the dtype of the weights in the matrix units, next to rows of a dtype.

    Floats of eight bits go there as they are, next to bfloat16; integers, which are exact in that, are converted.
    """
    return codes if codes and codes.startswith("float8") and dtype == "bfloat16" else dtype


def shared_columns(n: int, block: int) -> int:
    """Return the columns that share scales of blocks of k as the kernel reads them: a register's columns, or one.

    The kernel makes the scales of single columns itself, which may be a hundred times as many.
    """
    return LANES if n % LANES == block % LANES == 0 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedSizes(OneDtype):
    """The common fields of a product of rows in groups and its gradient: sizes, dtypes and precision."""

    m: int
    k: int
    n: int
    groups: int
    rows_per_group: int
    dtype: str
    dtype_out: str
    precision: PrecisionName = "default"

    def __post_init__(self) -> None:
        check_sizes(self, "m", "k", "n", "groups", "rows_per_group")
        for dtype in (self.dtype, self.dtype_out):
            dtype_bytes(dtype)
        check_precision(self.precision)

    @property
    def row_dtypes(self) -> tuple[str, ...]:
        """Dtypes of the arrays that are copied by rows."""
        return self.dtype, self.dtype_out

    @property
    def rows_of_groups(self) -> int:
        """The expected number of rows that belong to a group: with groups on several devices, a part of all rows."""
        return min(self.m, self.groups * self.rows_per_group)

    @property
    def flops(self) -> int:
        """Multiplications and additions: each row of one operand meets one matrix."""
        return 2 * self.m * self.k * self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedSpec(GroupedSizes):
    """`out[rows of group g] = lhs[rows of group g] @ rhs[g]`: lhs is [m, k], rhs [groups, k, n], out [m, n].

    Rows of one group are consecutive, groups in order; the number of rows of each is known when the program runs.

    Attributes:
      rows_per_group: expected rows of a group, for which tiles are chosen.
      transpose_rhs: rhs is stored as [groups, n, k].
      bias: True if a row of [groups, n] is added to each row of its group.
      activation: the name of a function of the sum and the bias.
      row_scale: True if each row of the result is multiplied by its own number.
      gated: True if the function of the first product is multiplied by a second one, lhs[rows of group g] @ up[g].
      side_by_side: True if rhs and up are one array, the columns of up after the columns of rhs.
      residual: the dtype of an array of [m, n] that is added last to the rows of groups; "" if there is none.
      existing_out: True if the result is written into an array, whose rows remain if no group has them.
      dtype_rhs: the dtype of quantized right-hand sides, which have scales for each group and column; None: they are of
        `dtype`, without scales.
      rhs_block: rows of k of a column that share a scale, a divisor of k; None: all of them.
      scale_columns: columns that share scales: 1, or with `rhs_block` 128 if that divides n.
      lhs_scale: True if rows are codes of `dtype` with a scale for each row, which multiplies the sums.

    Raises:
      SpecError: a size is below one or above 2³¹ − 1, a dtype or the precision is unknown, or `rhs_block` or
        `scale_columns` does not fit.
    """

    transpose_rhs: bool = False
    bias: bool = False
    activation: str = ""
    row_scale: bool = False
    gated: bool = False
    side_by_side: bool = False
    residual: str = ""
    existing_out: bool = False
    dtype_rhs: str | None = None
    rhs_block: int | None = None
    scale_columns: int = 1
    lhs_scale: bool = False

    def __post_init__(self) -> None:
        GroupedSizes.__post_init__(self)
        for dtype in filter(None, (self.residual, self.dtype_rhs)):
            dtype_bytes(dtype)
        if self.rhs_block is not None and (self.rhs_block < 1 or self.k % self.rhs_block):
            raise SpecError(f"rhs_block={self.rhs_block} does not divide k={self.k}; use a divisor")
        if self.scale_columns != 1 and (self.scale_columns != LANES or self.n % LANES or self.rhs_block is None):
            raise SpecError(
                f"scale_columns={self.scale_columns}; use 1, or {LANES} with rhs_block and such a divisor of n"
            )

    @property
    def row_dtypes(self) -> tuple[str, ...]:
        """Dtypes of the arrays that are copied by rows."""
        return self.dtype, self.dtype_out, *filter(None, (self.residual,))

    def weights_bytes(self, columns: int) -> int:
        """Return the bytes of columns of a matrix of the right-hand sides, as they are stored, with their scales."""
        scales = columns // self.scale_columns * self.scale_blocks * dtype_bytes("float32") if self.dtype_rhs else 0
        return format_bytes(self.dtype_rhs or self.dtype, columns * self.k) + scales

    @property
    def scale_blocks(self) -> int:
        """The number of scales of a column of quantized right-hand sides."""
        return self.k // (self.rhs_block or self.k)

    @property
    def dtype_pushed(self) -> str:
        """The dtype of the weights in the matrix units."""
        return pushed_dtype(self.dtype, self.dtype_rhs)

    @property
    def products(self) -> int:
        """The number of a group's matrices that each of its rows meets."""
        return 2 if self.gated else 1

    @property
    def flops(self) -> int:
        """Multiplications and additions of all products."""
        return self.products * 2 * self.m * self.k * self.n

    @property
    def groups_with_rows(self) -> int:
        """The expected number of groups whose matrices are read."""
        return min(self.groups, -(-self.m // self.rows_per_group))

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes of each row, each matrix of a group that has rows, its scales, the residual, and the result, once."""
        weights_bytes = self.weights_bytes(self.products * self.groups_with_rows * self.n)
        extra_bytes = sum(dtype_bytes(dtype) for dtype in (self.dtype_out, self.residual) if dtype)
        lhs_bytes = self.m * (self.k * dtype_bytes(self.dtype) + (dtype_bytes("float32") if self.lhs_scale else 0))
        return lhs_bytes + weights_bytes + self.m * self.n * extra_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGradientSpec(GroupedSizes):
    """`out[g] = lhs[rows of group g]ᵀ @ cotangent[rows of group g]`: lhs is [m, k], cotangent [m, n].

    out is [groups, k, n], zero for a group without rows.

    Attributes:
      rows_per_group: expected rows of a group, for which tiles are chosen.

    Raises:
      SpecError: as `GroupedSpec`.
    """

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes of each row of both operands and each matrix of the result, once."""
        read = self.m * (self.k + self.n) * dtype_bytes(self.dtype)
        return read + self.groups * self.k * self.n * dtype_bytes(self.dtype_out)
