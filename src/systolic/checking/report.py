"""The records of a check, which serialize to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from systolic.checking.finding import GRADES, Finding, Grade
from systolic.checking.verdict import Verdict
from systolic.support.ranges import Amount, Count, Magnitude
from systolic.support.saved import SavedResult
from systolic.support.summary import Summary

FORMAT = 1  # of the JSON; raised when a field changes its meaning


class CheckFailedError(ValueError):
    """A kernel has findings of grade error, or warnings if these count as failures; `report` holds all of them."""

    def __init__(self, report: CheckReport) -> None:
        grade: Grade = "warning" if report.ok else "error"
        findings = "\n".join(f"  {finding}" for finding in report.findings if finding.grade == grade)
        super().__init__(f"{report.function} on {', '.join(report.chips)}:\n{findings}")
        self.report = report


class CheckReportError(ValueError):
    """A text is not a report of a check that this version reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandUse:
    """One operand of a kernel: its blocks, the number of fetches, the bytes they move, and their VMEM.

    Attributes:
      fetches: blocks copied in or out; None if the number depends on unknown values.
      moved_bytes: bytes of these copies.
      least_bytes: bytes of all visited blocks, each counted once.
      vmem_bytes: bytes of all its buffers; 0 outside VMEM.
    """

    name: str
    role: str
    memory: str
    shape: tuple[Count, ...]
    dtype: str
    block: tuple[Count, ...]
    fetches: Count | None
    moved_bytes: Count | None
    least_bytes: Count | None
    vmem_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUse:
    """One Pallas call. `vmem_bytes` are blocks and scratch; `Verdict.vmem_bytes` is the compiler's total."""

    name: str
    where: str
    chip: str
    grid: tuple[Count | None, ...]
    semantics: tuple[str, ...]
    operands: tuple[OperandUse, ...]
    vmem_bytes: Count
    vmem_limit_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The runs in TPU interpret mode.

    Attributes:
      ran: True if there was a run.
      sizes: the arguments: "bf16[1024,1024] for bf16[4096,4096]".
      seeds: seeds of inputs and of the order of copies.
      data: the kinds of inputs: normal ones first.
      compared: the reference with which the results were compared; "" if there is none.
      error: the finite absolute error that is largest relative to its tolerance; None if nothing was compared.
      tolerance: the tolerance of that element.
      lost: elements that are NaN or infinite where the reference's are not; they have no error.
      seconds: duration of the runs.
    """

    ran: bool
    sizes: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    data: tuple[str, ...] = ()
    compared: str = ""
    error: Magnitude | None = None
    tolerance: Magnitude | None = None
    lost: Count = 0
    seconds: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport(SavedResult):
    """The result of `systolic check` for one function."""

    saved_name: ClassVar = "report of a check"
    saved_error: ClassVar = CheckReportError

    function: str
    arguments: tuple[str, ...]
    chips: tuple[str, ...]
    versions: Mapping[str, str | None]
    findings: tuple[Finding, ...]
    kernels: tuple[KernelUse, ...]
    verdicts: tuple[Verdict, ...]
    run: RunSummary
    flags: Mapping[str, str] = field(default_factory=dict)  # the compiler's
    format: int = FORMAT

    @property
    def compared(self) -> bool:
        """True if results were compared with a reference."""
        return self.run.error is not None

    @property
    def ok(self) -> bool:
        """True without a finding of grade error. Without a reference, numbers were not checked: see `compared`."""
        return not any(finding.grade == "error" for finding in self.findings)

    @property
    def conclusion(self) -> str:
        """The conclusion in brief: "ok" only if results were compared with a reference and the compiler answered."""
        if not self.ok:
            return "not ok"
        missing = "not compared with a reference" * (not self.compared)
        failed = any(finding.rule in ("compiler-crash", "compiler-timeout") for finding in self.findings)
        missing = ", ".join(filter(None, (missing, "no answer of the compiler" * failed)))
        return f"no fault found, {missing}" if missing else "ok"

    def count(self, grade: Grade) -> int:
        """Count the findings of a grade."""
        return sum(finding.grade == grade for finding in self.findings)

    def raise_on_error(self, *, warnings: bool = False) -> CheckReport:
        """Return this report, if it has no finding of grade error.

        Args:
          warnings: findings of grade warning fail, too.

        Raises:
          CheckFailedError: it has; the message holds all of them.
        """
        if not self.ok or (warnings and self.count("warning")):
            raise CheckFailedError(self)
        return self

    def summary(self) -> Summary:
        """Summarize the report, with a row for each finding."""
        counts = ", ".join(f"{count} {grade}s" for grade in ("error", "warning") if (count := self.count(grade)))
        return Summary(
            heading=f"{self.conclusion}: {self.function}({', '.join(self.arguments)}) on {', '.join(self.chips)}",
            facts={
                "findings": counts,
                "run": ", ".join(self.run.sizes) if self.run.ran else "not run",
                "compared": (self.run.compared or "not compared with a reference") if self.run.ran else "",
            },
            columns=("grade", "rule", "found", "asked for", "do", "where", "chip"),
            rows=tuple(
                (finding.grade, finding.rule, finding.value, finding.limit, finding.fix, finding.where, finding.chip)
                for finding in self.findings
            ),
        )


# Consequences of an error, and findings with the wrong fix: masks after a race, or where a sum is not cleared.
_OF_ORDER = ("race", "order", "semaphore", "deadlock", "out-of-bounds", "scope", "revisited-output", "parallel-revisit")
_OF_MEMORY = ("uninitialised", "empty-grid", "block-outside", "edge-block", "dropped-tail", "unwritten-output")
_CONSEQUENCES = {
    **dict.fromkeys(_OF_ORDER, frozenset({"nan", "wrong-result"})),
    **dict.fromkeys(_OF_MEMORY, frozenset({"nan"})),
}


def without_consequences(findings: Sequence[Finding]) -> list[Finding]:
    """Drop findings that follow from other findings of the same kernel."""
    causes = [finding for finding in findings if finding.grade == "error" and finding.rule in _CONSEQUENCES]

    def follows(finding: Finding) -> bool:
        alike = (cause for cause in causes if not finding.kernel or cause.kernel in ("", finding.kernel))
        return any(finding.rule in _CONSEQUENCES[cause.rule] for cause in alike)

    return [finding for finding in findings if not follows(finding)]


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Order findings by grade, without repetitions; a finding that several chips share appears once."""
    merged: dict[tuple[str, ...], Finding] = {}
    chips: dict[tuple[str, ...], list[str]] = {}
    for finding in findings:
        key = (
            finding.rule,
            finding.grade,
            finding.value,
            finding.limit,
            finding.fix,
            finding.kernel,
            finding.where,
            finding.detail,
        )
        merged.setdefault(key, finding)
        chips.setdefault(key, []).append(finding.chip)
    joined = [_with_chips(finding, chips[key]) for key, finding in merged.items()]
    return tuple(sorted(joined, key=lambda finding: GRADES.index(finding.grade)))


def _with_chips(finding: Finding, chips: list[str]) -> Finding:
    named = list(dict.fromkeys(chip for names in chips for chip in names.split(", ") if chip))
    if "" in chips or ", ".join(named) == finding.chip:
        return finding
    return replace(finding, chip=", ".join(named))
