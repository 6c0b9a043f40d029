"""Changes between two explanations, or two simulated runs: the record, saved and shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from systolic.accuracy.time_error import RatioVerdict, TimeError, ratio_error_percent, ratio_verdict
from systolic.report.time_errors import verdict_text
from systolic.support.ranges import Amount
from systolic.support.saved import SavedResult
from systolic.support.summary import Summary

FORMAT = 1  # of `Comparison.to_json`


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One quantity before and after; None where one side has none."""

    group: str  # "time", "waiting", "communication", "collective", "memory", "units", "traffic"
    quantity: str
    unit: str  # "µs", "cycles", "share", "bytes", "bundles", "Tflop/s"
    before: Amount | None
    after: Amount | None

    @property
    def change(self) -> float | None:
        """Relative change: 0.1 is a tenth more. For shares, the difference. None: not known."""
        if self.before is None or self.after is None:
            return None
        if self.unit == "share":
            return self.after - self.before
        if self.before == self.after:
            return 0.0
        return self.after / self.before - 1 if self.before else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(SavedResult):
    """Changes on one chip.

    Attributes:
      findings_gone: titles of findings that only the first has.
      findings_new: titles of findings that only the second has.
    """

    saved_name: ClassVar = "comparison"

    chip: str
    before: str  # the function's name
    after: str
    rows: tuple[ComparedRow, ...]
    findings_gone: tuple[str, ...] = ()
    findings_new: tuple[str, ...] = ()
    flags_before: Mapping[str, str] = field(default_factory=dict)  # the first one's compiler flags
    flags_after: Mapping[str, str] = field(default_factory=dict)
    error_before: TimeError | None = None  # of the first simulated time
    error_after: TimeError | None = None
    same_kernel: bool = False  # True if both take most of their time in Pallas kernels of one name
    topology_before: str = ""  # the slice; "" on one device
    topology_after: str = ""
    format: int = FORMAT

    def check_saved(self) -> None:
        """Raise `ValueError` for a saved comparison without a time."""
        if not self.rows:
            raise ValueError("rows: there are none")

    @property
    def before_us(self) -> float:
        """The first's simulated time."""
        return self.rows[0].before or 0.0

    @property
    def after_us(self) -> float:
        """The second's simulated time."""
        return self.rows[0].after or 0.0

    @property
    def ratio_error_percent(self) -> float | None:
        """The error of the ratio of the two times; None: not known."""
        if self.error_before is None or self.error_after is None:
            return None
        return ratio_error_percent(self.error_before, self.error_after, same_kernel=self.same_kernel)

    @property
    def verdict(self) -> RatioVerdict:
        """Return whether the second is faster than the first, by more than their times may be off."""
        if not (self.before_us and self.after_us):
            return "not known"
        return ratio_verdict(self.before_us / self.after_us, self.ratio_error_percent)

    @property
    def slower(self) -> float:
        """Return the second time relative to the first, less 1: 0.1 is a tenth longer."""
        return self.rows[0].change or 0.0

    def summary(self) -> Summary:
        """Return whether it has become faster, with a row for each quantity; shares in percent."""
        names = " → ".join(dict.fromkeys(filter(None, (self.before, self.after))))
        change = f"{abs(self.slower):.1%} {'slower' if self.slower > 0 else 'faster'}" if self.slower else "as fast"

        def shown(row: ComparedRow, value: float | None) -> float | None:
            return value if value is None or row.unit != "share" else 100 * value

        return Summary(
            heading=f"{self.chip} {names}: {change}, simulated {self.before_us:,.1f} → {self.after_us:,.1f} µs",
            facts={
                "verdict": verdict_text(self.verdict, self.ratio_error_percent, same_kernel=self.same_kernel),
                "findings gone": "; ".join(self.findings_gone),
                "findings new": "; ".join(self.findings_new),
            },
            columns=("of", "quantity", "unit", "before", "after", "change %"),
            rows=tuple(
                (
                    row.group,
                    row.quantity,
                    "%" if row.unit == "share" else row.unit,
                    shown(row, row.before),
                    shown(row, row.after),
                    None if row.change is None else 100 * row.change,
                )
                for row in self.rows
            ),
        )
