"""What came of a race: a row for each case on each chip."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from systolic.accuracy.time_error import TimeError
from systolic.cost import repeated_us
from systolic.support.ranges import Amount, Count, Time
from systolic.support.status import Status
from systolic.support.untrusted import UntrustedError, structured

# Properties of a row that stand in a result beside its fields.
_DERIVED = ("xla_repeated_us", "ratio", "ratio_alone", "ratio_with_prefetch", "over_even", "limit_us", "share")
_DERIVED += ("share_of_model", "best_peer", "best_peer_us", "ratio_best_peer")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTime:
    """What came of a public kernel."""

    name: str
    config: str  # how it is called, where that is a choice
    time_us: Time | None  # simulated
    reason: str = ""  # why there is none
    error: TimeError | None = None
    assumption: str = ""  # of the simulator, about a value on which the time depends


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One case on one chip. Times are simulated unless their name says otherwise; None is not known.

    Limits are those of the matrix units and of the least HBM traffic, once at the published peak and bandwidth, once at
    the clock and bandwidth that the simulator's model of the chip has.
    """

    suite: str
    group: str
    case: str
    chip: str
    dtype: str
    status: Status  # of our program
    op: str = "matmul"
    m: Count | None = None  # where the spec has such a size
    k: Count | None = None
    n: Count | None = None
    groups: Count | None = None
    density: Amount | None = None
    series: str = ""  # of rows that differ in m alone, or in density
    precision: str | None = None  # of float32, where the spec says it
    reason: str = ""
    flags: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of both programs
    provenance: Literal["simulated"] = "simulated"
    ours_us: Time | None = None
    xla_us: Time | None = None
    xla_prefetch_us: Amount | None = None  # of the copy that XLA starts ahead of the call
    xla_reason: str = ""  # why XLA has no time
    ours_error: TimeError | None = None  # how far the time may be off
    xla_error: TimeError | None = None
    xla_flags: Mapping[str, str] = dataclasses.field(default_factory=dict)  # beside `flags`, where it is faster so
    xla_form: str = ""  # how XLA's program is written, where that is not the usual way
    xla_without_flags_us: Time | None = None  # XLA's time in repeated calls without them
    peers: tuple[PeerTime, ...] = ()
    even_us: Time | None = None  # our time at the next larger sizes that tiles divide
    even_reason: str = ""
    mxu_us: Amount | None = None  # published
    hbm_us: Amount | None = None
    model_mxu_us: Amount | None = None  # the simulator's
    model_hbm_us: Amount | None = None
    kernel: str = ""
    config: str = ""
    modelled_us: Amount | None = None  # by the planner's arithmetic
    bundles: Count | None = None
    compile_s: Amount | None = None
    hbm_bytes: Count | None = None  # simulated, read and written
    least_hbm_bytes: Count | None = None
    other_ops_us: Amount | None = None  # of our program, outside its longest operation: a copy to pad or to transpose
    stall_share: Amount | None = None
    topology: str = ""  # of the slice that m, k and n are cut over; all else is of the slowest device
    mesh: str = ""
    ours_exposed_us: Amount | None = None  # of our time, communication that nothing hides
    xla_exposed_us: Amount | None = None

    @property
    def xla_with_prefetch_us(self) -> float | None:
        """XLA's time with the copy of an operand into VMEM that it starts ahead of the call."""
        return None if self.xla_us is None else self.xla_us + (self.xla_prefetch_us or 0.0)

    @property
    def xla_repeated_us(self) -> float | None:
        """XLA's time in repeated calls, where the copy runs during the call before."""
        if self.xla_us is None:
            return None
        return repeated_us(self.xla_us, self.xla_prefetch_us or 0.0, self.model_hbm_us or 0.0)

    @property
    def ratio(self) -> float | None:
        """XLA's time in repeated calls over ours."""
        return _over(self.xla_repeated_us, self.ours_us)

    @property
    def ratio_alone(self) -> float | None:
        """XLA's time without its copy over ours."""
        return _over(self.xla_us, self.ours_us)

    @property
    def ratio_with_prefetch(self) -> float | None:
        """XLA's time with its copy over ours."""
        return _over(self.xla_with_prefetch_us, self.ours_us)

    @property
    def best_peer(self) -> str:
        """The fastest of the public kernels."""
        return self._best_peer.name if self._best_peer is not None else ""

    @property
    def best_peer_us(self) -> float | None:
        """Its time."""
        return self._best_peer.time_us if self._best_peer is not None else None

    @property
    def best_peer_is_assumed(self) -> bool:
        """Whether its time depends on values that the simulator had to assume."""
        return self._best_peer is not None and bool(self._best_peer.assumption)

    @property
    def _best_peer(self) -> PeerTime | None:
        timed = [peer for peer in self.peers if peer.time_us is not None]
        return min(timed, key=lambda peer: peer.time_us or 0.0, default=None)

    @property
    def ratio_best_peer(self) -> float | None:
        """Its time over ours."""
        return _over(self.best_peer_us, self.ours_us)

    @property
    def over_even(self) -> float | None:
        """Our time over that at the next larger sizes that tiles divide."""
        return _over(self.ours_us, self.even_us)

    @property
    def over_least_hbm(self) -> float | None:
        """Our HBM traffic over the least."""
        return self.hbm_bytes / self.least_hbm_bytes if self.hbm_bytes and self.least_hbm_bytes else None

    @property
    def limit_us(self) -> float | None:
        """The larger of the published limits."""
        return None if self.mxu_us is None or self.hbm_us is None else max(self.mxu_us, self.hbm_us)

    @property
    def share(self) -> float | None:
        """What share of our time the published limit is."""
        return _over(self.limit_us, self.ours_us)

    @property
    def share_of_model(self) -> float | None:
        """What share of our time the limit of the simulator's model is."""
        return _over(max(self.model_mxu_us or 0, self.model_hbm_us or 0) or None, self.ours_us)

    def record(self) -> dict[str, Any]:
        """Fields and what follows from them, as a result holds them."""
        return {**dataclasses.asdict(self), **{name: getattr(self, name) for name in _DERIVED}}


def read_rows(rows: Any) -> tuple[BenchRow, ...]:
    """Read rows of a result, as `BenchRow.record` wrote them.

    Args:
      rows: what `read_json` has read.

    Raises:
      UntrustedError: they are none, or a value is out of its range.
    """
    documents = structured(rows, tuple[dict[str, Any], ...])
    if not documents:
        raise UntrustedError("it has no rows")
    plain = [{name: value for name, value in row.items() if name not in _DERIVED} for row in documents]
    return structured(plain, tuple[BenchRow, ...])


def _over(time_us: float | None, other_us: float | None) -> float | None:
    return None if time_us is None or other_us is None else time_us / other_us
