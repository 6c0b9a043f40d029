"""A finding of a check: one rule that a kernel breaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.analysis import KernelCall

# `error`: wrong numbers, or no program. `warning`: right today, or slower or less exact than it looks. `note`: worth
# knowing.
Grade = Literal["error", "warning", "note"]
GRADES: tuple[Grade, ...] = ("error", "warning", "note")

# Every rule and its requirement: the table of docs/check.md.
RULES = {
    # of blocks and grid
    "block-alignment": "the last two dimensions of a block are whole, or multiples of the registers of its dtype",
    "half-registers": "blocks of 16-bit types have 16 rows, or half of each register is empty",
    "block-kind": "all dimensions of a block are given by element, or none",
    "hbm-block": "what stays in HBM is not cut into blocks",
    "buffering": "a pipeline of pallas_call keeps one or two copies of a block",
    "empty-grid": "a grid has steps: size // block is zero where the block is the larger",
    "parallel-axis": "parallel axes come first, and core_parallel ones fit the cores",
    "small-blocks": "a step has more work than a step costs",
    # of the blocks that the grid visits
    "block-outside": "a block begins inside of its array",
    "edge-block": "a block that ends past the end of its array is masked before it is summed",
    "dropped-tail": "every element of an input is read, including those after the last whole block",
    "unwritten-output": "every element of an output is written, or passed in by an alias",
    "revisited-output": "all steps that write one output block follow each other",
    "parallel-revisit": "steps of a parallel axis write different output blocks",
    "grid-unknown": "the blocks that are visited follow from what is known",
    # of memory
    "vmem": "blocks, scratch and what the compiler adds fit VMEM's limit",
    "smem": "prefetched scalars and scratch fit SMEM",
    # of arithmetic
    "dot-dtype": "the chip's matrix unit multiplies these dtypes, without a conversion",
    "array-dtype": "vector registers hold this dtype",
    "vector-dtype": "the chip's vector unit computes with this dtype",
    "precision": "a product, or a sum, is as exact as its dtypes look",
    "uninitialised": "a sum is cleared before it is read",
    # of the code around a call
    "cost-estimate": "XLA is told what the kernel costs",
    "one-core": "both cores of a chip have work",
    "transposed-operand": "nothing is transposed in front of a kernel",
    "padded-operand": "nothing is padded in front of a kernel",
    "cast-operand": "nothing is cast in front of a kernel",
    "no-kernel": "there is a Pallas call to look at",
    # of the run
    "race": "two accesses of one buffer have an order if one of them writes",
    "order": "results do not depend on the order of copies and of parallel steps",
    "deadlock": "what a kernel waits for comes",
    "semaphore": "every copy that is started is waited for: semaphores end at zero",
    "nan": "memory is not used before it is written",
    "out-of-bounds": "nothing is read or written past the end of a buffer",
    "scope": "memory that is allocated for a while is not used afterwards",
    "wrong-result": "results equal the reference's, up to what rounding explains",
    "reference": "the reference computes what the function computes",
    "run": "it runs",
    # of the compiler
    "trace": "the function can be traced",
    "compiler": "the compiler accepts it",
    "compiler-crash": "the compiler survives it",
    "compiler-timeout": "the compiler answers in time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule that a kernel breaks.

    Attributes:
      rule: one of `RULES`.
      value: the violation, with numbers.
      limit: the requirement of the rule, and the consequence of breaking it.
      fix: the suggested change.
      kernel: the kernel's name; "" if the finding is about the function around it.
      where: "file.py:12 in name"; "" if it is not known.
      chip: the chip on which it holds; "": all chips.
      detail: verbatim text of a tool, such as the compiler's; "" if there is none.
    """

    rule: str
    grade: Grade
    value: str
    limit: str
    fix: str
    kernel: str = ""
    where: str = ""
    chip: str = ""
    detail: str = ""

    def __post_init__(self) -> None:
        assert self.rule in RULES, self.rule

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        on = f" on {self.chip}" if self.chip else ""
        return f"{self.grade}: {self.rule}{on}: {self.value}; {self.limit}; {self.fix}{place}"


def call_finding(
    call: KernelCall | None,
    rule: str,
    grade: Grade = "error",
    *,
    value: str,
    limit: str,
    fix: str,
    where: str = "",
    chip: str = "",
    detail: str = "",
) -> Finding:
    """Make a finding about a Pallas call, or about the function; `where` is "" for the line of the call."""
    return Finding(
        rule=rule,
        grade=grade,
        value=value,
        limit=limit,
        fix=fix,
        kernel=call.name if call is not None else "",
        where=where or (call.where if call is not None else ""),
        chip=chip,
        detail=detail,
    )
