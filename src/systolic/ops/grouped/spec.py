"""Products of rows in groups, each group with its own matrix, and the product that is their gradient."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.spec.dtypes import dtype_bytes
from systolic.spec.matmul import PrecisionName, check_precision, check_sizes
from systolic.spec.one_dtype import OneDtype


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
      dtype_rhs: the dtype of quantized right-hand sides, which have a scale for each group and column; None: they are
        of `dtype`, without scales.

    Raises:
      SpecError: a size is below one or above 2³¹ − 1, a dtype or the precision is unknown.
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

    def __post_init__(self) -> None:
        GroupedSizes.__post_init__(self)
        for dtype in filter(None, (self.residual, self.dtype_rhs)):
            dtype_bytes(dtype)

    @property
    def row_dtypes(self) -> tuple[str, ...]:
        """Dtypes of the arrays that are copied by rows."""
        return self.dtype, self.dtype_out, *filter(None, (self.residual,))

    @property
    def weight_bytes(self) -> int:
        """Bytes of a number of the right-hand sides, as they are stored."""
        return dtype_bytes(self.dtype_rhs or self.dtype)

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
        columns = self.products * self.groups_with_rows * self.n
        column_bytes = self.k * self.weight_bytes + (dtype_bytes("float32") if self.dtype_rhs else 0)
        extra_bytes = sum(dtype_bytes(dtype) for dtype in (self.dtype_out, self.residual) if dtype)
        return self.m * self.k * dtype_bytes(self.dtype) + columns * column_bytes + self.m * self.n * extra_bytes


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
