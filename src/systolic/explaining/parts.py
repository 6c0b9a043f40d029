"""Parts of an explanation about single operands, buffers, stretches of code and lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from systolic.support.ranges import Amount, Count

VmemKind = Literal["window", "scratch", "temporary", "spill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandTraffic:
    """The HBM traffic of one operand of one kernel, by its blocks and its index map."""

    kernel: str
    operand: str
    role: str  # "input", "output"
    shape: tuple[Count, ...]
    dtype: str
    block: tuple[Count, ...]
    block_bytes: Count
    fetches: Count | None  # blocks copied in or out; None where they depend on values that are not known
    moved_bytes: Count | None
    least_bytes: Count  # every element that is touched, once


@dataclass(frozen=True, slots=True, kw_only=True)
class VmemPart:
    """One buffer in VMEM, by the compiler's report."""

    op: str
    name: str
    kind: VmemKind
    size_bytes: Count  # all copies together
    copies: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class VmemMap:
    """VMEM against its limits, of one core."""

    parts: tuple[VmemPart, ...]
    limit_bytes: Count  # the kernel's limit
    capacity_bytes: Count  # of the core


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One stretch of straight code of a kernel, over all its executions."""

    op: str
    name: str  # "in the loop, bundles 17 to 85"
    bundles: Count
    executions: Count  # number of executions
    cycles: Count  # all executions together, stalls included
    matrix_stall_cycles: Count
    issued: Mapping[str, Count]  # instructions by unit
    # The line that most of its bundles came from, "kernel.py:45"; "" where none is known.
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTime:
    """The time of one line of a kernel's source, all executions together, without waits for copies.

    The simulator knows what a stretch of straight code takes. That is shared out evenly among its bundles, and in a
    bundle among the lines of its instructions: the compiler mixes instructions of several lines.
    """

    op: str
    # "kernel.py:45"; "": code without a line, such as Pallas' pipeline around the kernel.
    where: str
    text: str  # the line itself; "" where the file is not there
    cycles: Count  # matrix stalls included
    share: Amount  # of the operation's time
    bundles: Amount  # of the listing, however often they are executed
