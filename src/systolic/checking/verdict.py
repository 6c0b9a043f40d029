"""The compiler's answer, and the rule that it is about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from systolic.checking.finding import Finding
from systolic.chips import Chip
from systolic.compiler import CompilerRefusal
from systolic.schedule import MIB
from systolic.support.ranges import Amount, Count

# Patterns of the compiler's messages, with the rules that they mean. The first match counts.
_MEANINGS = {
    "smem": r"memory space smem|space=smem|smem.*(?:exceed|exhaust)",
    "block-alignment": r"last two dimensions of your block shape|E2002|block shape.*divisible|unaligned|not aligned",
    "buffering": r"buffer_count|buffered\(|buffering",
    "precision": r"Precision|fp32 contract precision|Bad (?:lhs|rhs) type",
    "dot-dtype": r"E2001|Bad acc type|acc with|Expected \w+ (?:lhs|rhs|acc)|(?:matmul|dot).*not supported",
    "parallel-axis": r"dimension.semantics|core_parallel|parallel dimension",
}

# Rules whose breach the compiler refuses: for these its answer counts, not ours.
REFUSED_BY_COMPILER = frozenset({"vmem", "array-dtype", "vector-dtype", "hbm-block", "block-kind", *_MEANINGS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The compiler's verdict on one chip.

    Attributes:
      accepted: None if there is no answer.
      text: the verbatim message, or the reason why there is no answer; "" if it accepted.
      where: the line that it refuses; "" if it names none.
      vmem_bytes: VMEM of the program, as the compiler reports it; None if there is no program.
      spill_bytes: the part of it for spilled registers.
    """

    chip: str
    accepted: bool | None
    text: str = ""
    where: str = ""
    compile_s: Amount = 0.0
    vmem_bytes: Count | None = None
    spill_bytes: Count = 0


def rule_of(refusal: CompilerRefusal) -> str:
    """Return the rule that a refusal is about; "compiler" if no rule is known."""
    if refusal.kind == "vmem":
        return "vmem"
    text = refusal.message
    rules = (rule for rule, words in _MEANINGS.items() if re.search(words, text, re.IGNORECASE | re.DOTALL))
    return next(rules, "compiler")


def refused(refusal: CompilerRefusal, chip: Chip, kernels: Sequence[str]) -> Finding:
    """Report a refusal as a finding."""
    value, limit = f"the compiler refuses it: {refusal.summary}", f"there is no program for a {chip.name}"
    fix = "see the compiler's own words"
    needed, available = refusal.requested_bytes, refusal.available_bytes
    if refusal.kind == "vmem" and needed is not None and available is not None:
        value = f"it needs {needed / MIB:.2f} MiB of VMEM, with what the compiler adds to blocks and scratch"
        limit = f"there are {available / MIB:.2f} MiB"
        fix = "use smaller blocks"
        raised = (needed // MIB + 1) * MIB  # the compiler's number is rounded
        if raised <= chip.usable_vmem_bytes_per_core:
            fix += f", or vmem_limit_bytes={raised} in pltpu.CompilerParams"
    return Finding(
        rule=rule_of(refusal),
        grade="error",
        value=value,
        limit=limit,
        fix=fix,
        kernel=kernels[0] if len(kernels) == 1 else "",
        where=refusal.where or "",
        chip=chip.name,
        detail=refusal.message,
    )


def reconciled(findings: Sequence[Finding], verdict: Verdict, refusal: Finding | None) -> list[Finding]:
    """Correct our findings on one chip by the compiler's answer.

    A refusal is added to the finding that predicted it, or as a new finding. If the compiler accepts what it refuses by
    a rule, the rule is wrong: the finding becomes a warning that says so.
    """
    ours = list(findings)
    foreseen = [finding for finding in ours if finding.grade == "error" and finding.rule in REFUSED_BY_COMPILER]
    if verdict.accepted:
        return [
            replace(finding, grade="warning", limit=f"{finding.limit} (but the compiler accepts it)")
            if finding in foreseen
            else finding
            for finding in ours
        ]
    if refusal is None:
        return ours
    # A refusal with an unknown message is attributed to the finding that we predicted, if there is one.
    same = [finding for finding in foreseen if refusal.rule in (finding.rule, "compiler")]
    if not same:
        return [refusal, *ours]
    return [replace(finding, detail=refusal.detail) if finding is same[0] else finding for finding in ours]
