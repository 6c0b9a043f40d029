"""Results of a race: a row for each case on each chip."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

from systolic.accuracy.time_error import TimeError
from systolic.cost import repeated_us
from systolic.support.ranges import Amount, Count, Time
from systolic.support.status import Status
from systolic.support.untrusted import UntrustedError, structured

# Properties of a row that a saved result has in addition to its fields.
_DERIVED = ("xla_repeated_us", "ratio", "ratio_alone", "ratio_with_prefetch", "over_even", "limit_us", "share")
_DERIVED += ("share_of_model", "best_peer", "best_peer_us", "ratio_best_peer")
_SAVED_NAME = "saved name"  # of a field, where a flat row names it otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class RacedCase:
    """A case, and the chip that its programs are compiled for.

    Attributes:
      m, k, n, groups, density: where the spec has such a size.
      series: rows that differ only in m, or in density.
      precision: float32's, if the spec has it.
      flags: both programs'.
      topology: the slice that m, k and n are cut over; all other fields are the slowest device's.
    """

    suite: str
    group: str
    name: str = field(metadata={_SAVED_NAME: "case"})
    chip: str
    dtype: str
    op: str = "matmul"
    m: Count | None = None
    k: Count | None = None
    n: Count | None = None
    groups: Count | None = None
    density: Amount | None = None
    series: str = ""
    precision: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    topology: str = ""
    mesh: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times of the matrix units alone and of the least HBM traffic alone.

    Attributes:
      mxu_us, hbm_us: at the published peak and bandwidth.
      model_mxu_us, model_hbm_us: at the clock and bandwidth that the simulator's model of the chip has.
    """

    mxu_us: Amount | None = None
    hbm_us: Amount | None = None
    model_mxu_us: Amount | None = None
    model_hbm_us: Amount | None = None
    least_hbm_bytes: Count | None = None

    @property
    def published_us(self) -> float | None:
        return None if self.mxu_us is None or self.hbm_us is None else max(self.mxu_us, self.hbm_us)

    @property
    def model_us(self) -> float | None:
        return max(self.model_mxu_us or 0, self.model_hbm_us or 0) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedKernel:
    """The planner's kernel and configuration, and its time by arithmetic."""

    kernel: str = ""
    config: str = ""
    modelled_us: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OurTime:
    """Our program's time in repeated calls, or the reason why there is none.

    If we leave a product to XLA, it copies an operand before the call (`prefetch_us`), as in its own program.
    """

    status: Status
    reason: str = ""
    time_us: Time | None = field(default=None, metadata={_SAVED_NAME: "ours_us"})
    alone_us: Time | None = field(default=None, metadata={_SAVED_NAME: "ours_alone_us"})  # without that copy
    prefetch_us: Amount | None = field(default=None, metadata={_SAVED_NAME: "ours_prefetch_us"})
    error: TimeError | None = field(default=None, metadata={_SAVED_NAME: "ours_error"})  # how far the time may be off
    even_us: Time | None = None  # our time at the next larger sizes that tiles divide
    even_reason: str = ""
    bundles: Count | None = None
    compile_s: Amount | None = None
    hbm_bytes: Count | None = None  # simulated, read and written
    other_ops_us: Amount | None = None  # outside the longest operation: a copy to pad or to transpose
    stall_share: Amount | None = None
    # Communication that nothing hides.
    exposed_us: Amount | None = field(default=None, metadata={_SAVED_NAME: "ours_exposed_us"})
    # On a slice, in addition to both programs' flags, if our program is faster with them.
    flags: Mapping[str, str] = field(default_factory=dict, metadata={_SAVED_NAME: "ours_flags"})


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaTime:
    """The time of XLA's fastest program.

    Attributes:
      prefetch_us: the copy that XLA starts before the call.
      reason: why there is no time.
      assumption: of the simulator, on which the time rests.
      flags: in addition to both programs' flags, if it is faster with them.
      without_flags_us: XLA's time in repeated calls without them.
      form: how the program is written, if not the usual way.
    """

    time_us: Time | None = field(default=None, metadata={_SAVED_NAME: "xla_us"})
    prefetch_us: Amount | None = field(default=None, metadata={_SAVED_NAME: "xla_prefetch_us"})
    reason: str = field(default="", metadata={_SAVED_NAME: "xla_reason"})
    assumption: str = field(default="", metadata={_SAVED_NAME: "xla_assumption"})
    error: TimeError | None = field(default=None, metadata={_SAVED_NAME: "xla_error"})
    flags: Mapping[str, str] = field(default_factory=dict, metadata={_SAVED_NAME: "xla_flags"})
    without_flags_us: Time | None = field(default=None, metadata={_SAVED_NAME: "xla_without_flags_us"})
    form: str = field(default="", metadata={_SAVED_NAME: "xla_form"})
    exposed_us: Amount | None = field(default=None, metadata={_SAVED_NAME: "xla_exposed_us"})

    @property
    def with_prefetch_us(self) -> float | None:
        """The time with the copy of an operand into VMEM that XLA starts before the call."""
        return None if self.time_us is None else self.time_us + (self.prefetch_us or 0.0)

    def repeated_us(self, limits: Limits) -> float | None:
        """Return the time in repeated calls, where the copy runs during the call before."""
        if self.time_us is None:
            return None
        return repeated_us(self.time_us, self.prefetch_us or 0.0, limits.model_hbm_us or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTime:
    """The time of a public kernel's program."""

    name: str
    config: str  # of the call, where there is a choice
    time_us: Time | None  # simulated
    reason: str = ""  # why there is none
    error: TimeError | None = None
    assumption: str = ""  # of the simulator, on which the time rests


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One case on one chip. Times are simulated unless their name says otherwise; None is not known."""

    case: RacedCase
    limits: Limits
    plan: PlannedKernel
    ours: OurTime
    xla: XlaTime
    peers: tuple[PeerTime, ...] = ()
    provenance: Literal["simulated"] = "simulated"

    @property
    def ours_us(self) -> float | None:
        return self.ours.time_us

    @property
    def xla_repeated_us(self) -> float | None:
        return self.xla.repeated_us(self.limits)

    @property
    def ratio(self) -> float | None:
        """XLA's time in repeated calls over ours."""
        return over(self.xla_repeated_us, self.ours_us)

    @property
    def ratio_alone(self) -> float | None:
        """XLA's time without its copy over ours."""
        return over(self.xla.time_us, self.ours.alone_us or self.ours_us)

    @property
    def ratio_with_prefetch(self) -> float | None:
        """XLA's time with its copy over ours."""
        alone_us = self.ours.alone_us
        ours_us = self.ours_us if alone_us is None else alone_us + (self.ours.prefetch_us or 0.0)
        return over(self.xla.with_prefetch_us, ours_us)

    @property
    def fastest_peer(self) -> PeerTime | None:
        timed = [peer for peer in self.peers if peer.time_us is not None]
        return min(timed, key=lambda peer: peer.time_us or 0.0, default=None)

    @property
    def best_peer(self) -> str:
        return self.fastest_peer.name if self.fastest_peer is not None else ""

    @property
    def best_peer_us(self) -> float | None:
        return self.fastest_peer.time_us if self.fastest_peer is not None else None

    @property
    def ratio_best_peer(self) -> float | None:
        """The fastest public kernel's time over ours."""
        return over(self.best_peer_us, self.ours_us)

    @property
    def over_even(self) -> float | None:
        """Our time over the time at the next larger sizes that tiles divide."""
        return over(self.ours_us, self.ours.even_us)

    @property
    def over_least_hbm(self) -> float | None:
        """Our HBM traffic over the least."""
        bytes_moved, least = self.ours.hbm_bytes, self.limits.least_hbm_bytes
        return bytes_moved / least if bytes_moved and least else None

    @property
    def limit_us(self) -> float | None:
        """The larger of the published limits."""
        return self.limits.published_us

    @property
    def share(self) -> float | None:
        """The published limit as a share of our time."""
        return over(self.limit_us, self.ours_us)

    @property
    def share_of_model(self) -> float | None:
        """The limit of the simulator's model as a share of our time."""
        return over(self.limits.model_us, self.ours_us)

    def record(self) -> dict[str, Any]:
        """Return a flat row of a saved result: fields and derived ratios."""
        nested = dataclasses.asdict(self)
        flat = {
            saved: nested[part][name] for part, kind in _PARTS.items() for name, saved in _saved_names(kind).items()
        }
        rest = {"peers": nested["peers"], "provenance": self.provenance}
        return {**flat, **rest, **{name: getattr(self, name) for name in _DERIVED}}


_PARTS: dict[str, Any] = {"case": RacedCase, "limits": Limits, "plan": PlannedKernel, "ours": OurTime, "xla": XlaTime}


def _saved_names(kind: Any) -> dict[str, str]:
    """Return the saved name of each field of a part."""
    return {entry.name: entry.metadata.get(_SAVED_NAME, entry.name) for entry in dataclasses.fields(kind)}


@functools.cache
def _saved_row() -> Any:
    """Make the record of a saved row, with the fields of all parts."""
    flat: list[tuple[str, Any, Any]] = []
    for kind in (*_PARTS.values(), BenchRow):
        hints = get_type_hints(kind, include_extras=True)
        for entry in dataclasses.fields(kind):
            if entry.name not in _PARTS:
                default: Any = dataclasses.field(kw_only=True)
                default.default, default.default_factory = entry.default, entry.default_factory
                flat.append((entry.metadata.get(_SAVED_NAME, entry.name), hints[entry.name], default))
    return dataclasses.make_dataclass("SavedRow", flat)


def read_rows(rows: Any) -> tuple[BenchRow, ...]:
    """Read rows that `BenchRow.record` wrote.

    Args:
      rows: values from `read_json`.

    Raises:
      UntrustedError: they are none, or a value is out of its range.
    """
    documents = structured(rows, tuple[dict[str, Any], ...])
    if not documents:
        raise UntrustedError("it has no rows")
    plain = [{name: value for name, value in row.items() if name not in _DERIVED} for row in documents]
    return tuple(map(_nested, structured(plain, tuple[_saved_row(), ...])))


def _nested(row: Any) -> BenchRow:
    parts = {
        part: kind(**{name: getattr(row, saved) for name, saved in _saved_names(kind).items()})
        for part, kind in _PARTS.items()
    }
    return BenchRow(**parts, peers=row.peers, provenance=row.provenance)


def over(time_us: float | None, other_us: float | None) -> float | None:
    """Return a ratio of times; None if one is not known or the second is zero."""
    return None if time_us is None or not other_us else time_us / other_us
