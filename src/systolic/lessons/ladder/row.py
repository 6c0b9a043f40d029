"""One line of the ladder's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.timing import Measurement, Provenance

Status = Literal["ok", "illegal", "refused", "wrong"]
NOT_CHECKED = "not checked at this size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Tiles that a sweep tried: their time, or why they have none."""

    tile_m: int
    tile_k: int
    tile_n: int
    modelled_us: float
    simulated_us: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRow:
    """What became of one rung at one size. None where there is nothing to say.

    `status`: `ok`; `illegal`, a rule forbids it; `refused`, the compiler does; `wrong`, the result is.
    `ratio_to_xla` is XLA's time over this one: above 1, this one is faster.
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
    time_us: float | None = None
    provenance: Provenance | None = None
    tflops: float | None = None
    percent_of_peak: float | None = None
    peak_tflops: float | None = None
    xla_time_us: float | None = None
    xla_prefetch_us: float | None = None
    xla_tflops: float | None = None
    ratio_to_xla: float | None = None
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
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """XLA's own product of one size, or why there is none."""

    measurement: Measurement | None
    reason: str = ""
