"""Sizes of products across chips on one device, and the rules that they have to follow for a kernel.

They are the specs of two ops: planner, store and `tune` know a product across chips by them, and by its slice.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from systolic.chips import Chip
from systolic.ops.collective.schedule import MIN_BYTE_ROWS, WAYS, DeviceProduct, multiplies_bytes, row_multiple
from systolic.ops.collective.weight_schedule import WeightCut
from systolic.schedule.legality import LANES, Violation
from systolic.schedule.sizes import padded
from systolic.spec import OneDtype, PrecisionName, SliceMesh, dtype_bytes
from systolic.spec.matmul import check_precision, check_sizes

_DTYPES = ("bfloat16", "float32")
_WEIGHT_DTYPES = ("int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductSizes(OneDtype):
    """Sizes that all products across chips have.

    Attributes:
      devices: on the ring.
      rows: of x on one device, or of a result that is scattered.
      k: of x on one device.
      columns: of the weight that one device has.
      weights, outs, transpose_rhs: as in the schedules.
      slice_mesh: the slice and the mesh, whose axis `ring` it sends over; None: they are not known.
    """

    devices: int
    rows: int
    k: int
    columns: int
    dtype: str
    dtype_out: str
    weights: int = 1
    outs: int = 1
    transpose_rhs: bool = False
    precision: PrecisionName = "default"
    slice_mesh: SliceMesh | None = None

    def __post_init__(self) -> None:
        check_sizes(self, "devices", "weights", "outs")
        check_precision(self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSizes(ProductSizes):
    """Sizes of a product whose rows are gathered, or whose sum is scattered.

    `rows` counts the rows of a chunk. For reduce-scatter with two weights, each has half of k.

    Attributes:
      scatters: True for matmul × reduce-scatter.
      wire_dtype: of rows, or of sums, while they travel, "int8" or "float8_e4m3fn", with a scale for each row; None:
        dtype of the rows, dtype_out of the sums.
      weight_dtype: of quantized weights, "int8" or "float8_e4m3fn", with a scale for each column; None: dtype.
    """

    scatters: bool
    wire_dtype: str | None = None
    weight_dtype: str | None = None

    def __str__(self) -> str:
        product = f"[{self.devices} × {self.rows}, {self.k}] @ [{self.k}, {self.columns}]"
        weights = " and a second product" if self.sums > 1 else ""
        wire = f" in {self.wire_dtype}" if self.wire_dtype else ""
        weights += f" with {self.weight_dtype} weights" if self.weight_dtype else ""
        return f"{product}{weights}, {'summed and scattered' if self.scatters else 'rows gathered'}{wire}"

    @property
    def sums(self) -> int:
        """Sums of each row."""
        return 1 if self.scatters else self.weights

    @property
    def sent_bytes(self) -> float:
        """Bytes that a link carries in each direction: half of all other devices' chunks."""
        return (self.devices - 1) / 2 * self.rows * self.sent_row_bytes(self.columns if self.scatters else self.k)

    def sent_row_bytes(self, columns: int) -> int:
        """Return the bytes of these columns of a row, or of a sum, while it travels."""
        if self.wire_dtype is not None:
            return columns + LANES
        return columns * dtype_bytes(self.dtype_out if self.scatters else self.dtype)

    @property
    def flops(self) -> int:
        return 2 * self.devices * self.rows * self.k * self.columns * self.sums

    @property
    def weight_bytes(self) -> int:
        return self.k * self.columns * self.sums * dtype_bytes(self.weight_dtype or self.dtype)

    @property
    def rows_wire_dtype(self) -> str | None:
        """The dtype of gathered rows while they travel; None: dtype."""
        return None if self.scatters else self.wire_dtype

    @property
    def multiplies_bytes(self) -> bool:
        """True if gathered rows are multiplied in the dtype in which they travel."""
        return multiplies_bytes(self.rows_wire_dtype, self.dtype, self.weight_dtype)

    @property
    def widens(self) -> bool:
        """True if weights are converted to the dtype of x before they are multiplied."""
        is_wide = self.weight_dtype == "int8" or (self.weight_dtype is not None and self.dtype == "float32")
        return is_wide and not self.multiplies_bytes

    @property
    def dtype_multiplied(self) -> str:
        """The dtype in which the matrix unit takes both operands."""
        return self.weight_dtype if self.weight_dtype is not None and self.multiplies_bytes else self.dtype

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes of this device's x and weights, and of the results."""
        x_rows, out_rows = self.rows, self.devices * self.rows
        if self.scatters:
            x_rows, out_rows = out_rows, x_rows
        out_bytes = self.outs * out_rows * self.columns * dtype_bytes(self.dtype_out)
        return x_rows * self.k * dtype_bytes(self.dtype) + self.weight_bytes + out_bytes

    @property
    def row_multiple(self) -> int:
        """Rows of two pieces, the fewest that a ring sends."""
        if self.wire_dtype is not None and self.rows <= WAYS * MIN_BYTE_ROWS:
            return WAYS * MIN_BYTE_ROWS
        return WAYS * max(map(row_multiple, (self.wire_dtype or self.dtype, self.dtype_out)))

    @property
    def padded_rows(self) -> int:
        return padded(max(self.rows, 1), self.row_multiple)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSizes(ProductSizes):
    """Sizes of a product whose weight is gathered.

    Attributes:
      cut: the dimension of the weight that the devices cut.
    """

    cut: WeightCut

    def __str__(self) -> str:
        k, columns = (f"{self.devices} × {self.k // self.devices}", f"{self.columns}")
        if self.cut == "n":
            k, columns = f"{self.k}", f"{self.devices} × {self.columns}"
        weights = " and a second product" if self.weights > 1 else ""
        return f"[{self.rows}, {self.k}] @ [{k}, {columns}]{weights}, weight gathered"

    @property
    def padded_rows(self) -> int:
        return padded(max(self.rows, 1), max(row_multiple(self.dtype), row_multiple(self.dtype_out)))

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the weights that this device has."""
        k = self.k // self.devices if self.cut == "k" else self.k
        return self.weights * k * self.columns * dtype_bytes(self.dtype)

    @property
    def sent_bytes(self) -> float:
        """Bytes that a link carries in each direction."""
        return (self.devices - 1) / 2 * self.chunk_bytes

    @property
    def out_columns(self) -> int:
        return self.columns * (1 if self.cut == "k" else self.devices)

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.k * self.out_columns * self.weights

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes of x, this device's weight and the results."""
        x_bytes = self.rows * self.k * dtype_bytes(self.dtype)
        return x_bytes + self.chunk_bytes + self.outs * self.rows * self.out_columns * dtype_bytes(self.dtype_out)

    @property
    def weight_bytes(self) -> int:
        return self.devices * self.chunk_bytes


def schedule_fields(sizes: RingSizes | WeightSizes) -> dict[str, Any]:
    """Return by name the fields that a schedule of these sizes has in common with them; its rows are padded."""
    shared = {field.name: getattr(sizes, field.name) for field in fields(DeviceProduct)}
    return {**shared, "rows": sizes.padded_rows}


def core_shares(sizes: RingSizes, chip: Chip) -> list[dict[str, Any]]:
    """Return the ways in which a device's cores can share a product, as fields of its schedule, the best one first.

    Cores that share the rows of a chunk send every row once, and copy all weights each. Cores that share columns copy
    every weight once; each sends its own columns of sums, but all gathered rows. So columns are for sums, for rows too
    few to share, and for weights that do not fit otherwise, if gathering first and multiplying then takes longer.
    """
    cores, rows = chip.cores_per_device, sizes.padded_rows
    if cores == 1 or chip.links is None:
        return [{}]
    core_rows = padded(-(-rows // cores), sizes.row_multiple)
    by_rows = [] if sizes.scatters else [{"rows": core_rows, "row_cores": cores}]
    by_columns = [{"columns": sizes.columns // cores, "column_cores": cores}] * (sizes.columns % (cores * LANES) == 0)
    if by_rows and core_rows < rows:
        sent_s = sizes.sent_bytes / chip.links.bytes_per_s
        product_s = sizes.flops * sizes.passes / chip.peak_ops_per_s(sizes.dtype)
        return [*by_rows, *(by_columns if cores * sent_s <= sent_s + product_s else ())]
    return [*by_columns, *by_rows] or [{}]


def violations_of(sizes: ProductSizes, chip: Chip) -> list[Violation]:
    """Return the reasons for which no schedule is legal, whatever its pieces and blocks are."""
    violations: list[Violation] = []

    def refuse(rule: str, value: str, limit: str, fix: str) -> None:
        violations.append(Violation(rule=rule, value=value, limit=limit, fix=fix))

    if sizes.devices < 2:
        refuse("ring", "one device", "there is nothing to send", "use `systolic.matmul`")
    if chip.links is None:
        refuse("links", chip.name, "the links between its chips are not known", "use another chip")
    for dtype in dict.fromkeys((sizes.dtype, sizes.dtype_out)):
        if dtype not in _DTYPES:
            refuse("dtype", dtype, f"the kernel takes {' and '.join(_DTYPES)}", "cast it")
    weight_dtype = sizes.weight_dtype if isinstance(sizes, RingSizes) else None
    if weight_dtype is not None:
        operand_dtypes = chip.dot_operands.floats | chip.dot_operands.integers
        formats = [name for name in _WEIGHT_DTYPES if name in operand_dtypes and chip.unpacks_bytes]
        if weight_dtype not in formats:
            limit = f"the kernel takes {', '.join(formats) or 'no weights of few bits'} on {chip.name}"
            refuse("weight", weight_dtype, limit, "dequantize it")
        if sizes.weights > 1:
            refuse("weights", f"{sizes.weights} of {weight_dtype}", "the kernel takes one", "dequantize them")
    wire_dtype = sizes.wire_dtype if isinstance(sizes, RingSizes) else None
    if wire_dtype not in (None, "int8") and wire_dtype not in chip.dot_operands.floats:
        refuse("wire", f"wire_dtype={wire_dtype}", f"{chip.name} does not compute with it", "use int8")
    for name, size in (("k", sizes.k), ("columns", sizes.columns)):
        if size % LANES or not size:
            refuse(name, f"{name}={size}", f"a register has {LANES} lanes", f"pad to a multiple of {LANES}")
    return violations
