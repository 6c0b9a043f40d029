"""One line of the ladder's table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from systolic.accuracy.time_error import TimeError
from systolic.support.status import Status
from systolic.timing import Provenance

NOT_CHECKED = "not checked at this size"
# Properties of a row that a result holds in addition to its fields.
_DERIVED = ("tflops", "percent_of_peak", "xla_tflops", "ratio_to_xla")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptTiles:
    """Tiles that a sweep tried: their time, or why they have none."""

    tile_m: int
    tile_k: int
    tile_n: int
    modelled_us: float
    simulated_us: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRow:
    """The result of one rung at one size. None means not known.

    `illegal`: a rule forbids it; `refused`: the compiler does; `wrong`: the result is.
    """

    rung: str
    chip: str
    m: int
    k: int
    n: int
    dtype: str
    dtype_out: str
    tile_m: int | None
    tile_k: int | None
    tile_n: int | None
    status: Status
    reason: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)  # of both programs
    time_us: float | None = None
    provenance: Provenance | None = None
    peak_tflops: float | None = None
    time_error: TimeError | None = None
    xla_time_us: float | None = None
    xla_flags: Mapping[str, str] = field(default_factory=dict)  # in addition to `flags`, if XLA is faster with them
    xla_time_error: TimeError | None = None
    xla_prefetch_us: float | None = None
    stall_share: float | None = None
    hbm_bytes: int | None = None
    least_hbm_bytes: int | None = None
    check: str = NOT_CHECKED
    max_abs_error: float | None = None
    tolerance: float | None = None
    vmem_requested_bytes: int | None = None
    vmem_available_bytes: int | None = None
    bundles: int | None = None
    compile_s: float | None = None
    jax: str | None = None
    libtpu: str | None = None
    trials: tuple[SweptTiles, ...] = ()

    @property
    def tflops(self) -> float | None:
        """10¹² operations a second."""
        return self._rate(self.time_us)

    @property
    def xla_tflops(self) -> float | None:
        """XLA's rate."""
        return self._rate(self.xla_time_us)

    @property
    def percent_of_peak(self) -> float | None:
        """The rate as a share of the peak of the operands' dtype."""
        return 100 * self.tflops / self.peak_tflops if self.tflops and self.peak_tflops else None

    @property
    def ratio_to_xla(self) -> float | None:
        """XLA's time over this one: above 1, this one is faster."""
        return self.xla_time_us / self.time_us if self.xla_time_us and self.time_us else None

    @property
    def untimed(self) -> bool:
        """True if it should have a time but has none."""
        return self.time_us is None and self.status in ("ok", "not simulated", "unknown")

    def record(self) -> dict[str, Any]:
        """Return the fields and derived values, as a result holds them."""
        return {**dataclasses.asdict(self), **{name: getattr(self, name) for name in _DERIVED}}

    def _rate(self, time_us: float | None) -> float | None:
        return 2 * self.m * self.k * self.n / time_us / 1e6 if time_us else None
