"""The cutting of products whose weight is gathered: of x @ all_gather(w), in which w's pieces go round the ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.ops.collective.schedule import OUT_SLOTS, WAYS, DeviceProduct, row_multiple
from systolic.schedule import VmemBuffer
from systolic.schedule.legality import LANES, IllegalTilesError, Violation

WeightCut = Literal["k", "n"]  # dimension of the weight that is cut over the ring
TRANSPOSED = Violation(
    rule="transpose",
    value="a weight [columns, k] that is cut by k",
    limit="the rows of all devices' pieces lie one below another",
    fix="store it as [k, columns]",
)
_AHEAD = 2  # groups whose own pieces have been sent when a group is multiplied


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSchedule(DeviceProduct):
    """The schedule of x @ all_gather(w) on one device.

    A chunk is the weight that one device has. It is cut into groups of columns, and a group into two pieces. The groups
    go round the ring one after another, each as a chunk of all-gather × matmul does in `RingSchedule`. Each matrix of
    weights has a sum of its own.

    Attributes:
      k: of x.
      cut: the dimension that the devices' chunks cut.
      groups: of columns.
      block: rows of x that are multiplied at once.
      in_hbm: True if gathered pieces lie in HBM, and each product copies its own to VMEM.

    Raises:
      IllegalTilesError: a size is not cut evenly, or the weight is transposed and cut by k.
    """

    k: int
    cut: WeightCut
    groups: int
    block: int
    in_hbm: bool = False

    def __post_init__(self) -> None:
        violations: list[Violation] = []

        def refuse(rule: str, value: str, limit: str, fix: str) -> None:
            violations.append(Violation(rule=rule, value=value, limit=limit, fix=fix))

        if self.columns % (self.groups * WAYS * LANES):
            value = f"{self.groups} groups of {self.columns} columns"
            refuse("groups", value, f"a piece has a multiple of {LANES} columns", "use a divisor")
        if self.cut == "k" and self.k % (self.devices * row_multiple(self.dtype)):
            value = f"k={self.k} on {self.devices} devices"
            refuse("k", value, "a piece has whole registers", "pad k")
        if self.cut == "k" and self.transpose_rhs:
            violations.append(TRANSPOSED)
        if self.rows % self.block or self.block % row_multiple(self.dtype):
            refuse("block", f"block={self.block} of {self.rows} rows", "whole registers", "pad the rows")
        if violations:
            raise IllegalTilesError(str(self), violations)

    @property
    def steps(self) -> int:
        """Pieces of a group that are sent in each direction."""
        return self.devices - 1

    @property
    def ahead(self) -> int:
        return min(_AHEAD, self.groups)

    @property
    def width(self) -> int:
        """Columns of a piece."""
        return self.columns // (self.groups * WAYS)

    @property
    def piece_k(self) -> int:
        return self.k // self.devices if self.cut == "k" else self.k

    @property
    def out_columns(self) -> int:
        return self.columns * (1 if self.cut == "k" else self.devices)

    @property
    def blocks(self) -> int:
        return self.rows // self.block

    @property
    def multiplied_pieces(self) -> int:
        """Pieces of a weight that are multiplied at once."""
        return self.devices if self.cut == "k" else 1

    @property
    def products(self) -> int:
        """Products of all rows with as many columns as a piece has."""
        return self.out_columns // self.width

    @property
    def semaphores(self) -> int:
        return self.blocks + self.groups + 2 * WAYS + self.groups * WAYS * self.steps + OUT_SLOTS + 1

    @property
    def gathered_shape(self) -> tuple[int, ...]:
        """Shape of all gathered pieces, in VMEM or in HBM."""
        return (self.weights, self.groups, WAYS, self.devices, *self._piece)

    @property
    def _piece(self) -> tuple[int, int]:
        return (self.width, self.piece_k) if self.transpose_rhs else (self.piece_k, self.width)

    def buffers(self, dtype_out: str) -> tuple[VmemBuffer, ...]:
        """Return the kernel's VMEM."""
        out = (self.outs, self.block, self.width)
        shapes = {
            "x": (self.blocks, self.block, self.k),
            "w": (self.weights, WAYS, self.multiplied_pieces, *self._piece) if self.in_hbm else self.gathered_shape,
        }
        operands = (
            VmemBuffer(name=name, shape=shape, dtype=self.dtype, copies=1, ref_shape=shape)
            for name, shape in shapes.items()
        )
        return (
            *operands,
            VmemBuffer(name="out", shape=out, dtype=dtype_out, copies=OUT_SLOTS, ref_shape=(OUT_SLOTS, *out)),
        )

    def __str__(self) -> str:
        place = ", gathered in HBM" if self.in_hbm else ""
        return f"{self.groups} groups of {WAYS} × {self.width} columns{place}, {self.block} rows at once"
