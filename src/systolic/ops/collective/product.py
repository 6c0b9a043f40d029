"""The static parameters of a product across chips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from systolic.ops.engine.backend import Computed
from systolic.spec import PrecisionName

Kind = Literal["gather", "scatter"]  # all-gather × matmul, matmul × reduce-scatter


@dataclass(frozen=True, slots=True, kw_only=True)
class RingProduct(Computed):
    """All static parameters of a product except its operands' shapes; hashable."""

    kind: Kind
    axis_name: str
    devices: int
    ring: tuple[int, ...] | None  # axis indices round the ring; None: `AxisRing` when it is lowered
    collective_id: int
    precision: PrecisionName
    dtype_out: str
    activation: str = ""  # its name
    function: Callable[..., Any] | None = None  # and its function

    @property
    def plain(self) -> Self:
        return replace(self, activation="", function=None)
