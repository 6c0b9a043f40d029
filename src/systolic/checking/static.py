"""What can be said of a function's Pallas calls from its traced program alone, on one chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from systolic.analysis.calls import Operand
from systolic.analysis.visits import CallOnGrid, GridVisits, Visits, calls_on_grids
from systolic.bugs import raise_own
from systolic.checking.finding import Finding
from systolic.checking.report import KernelUse, OperandUse
from systolic.checking.rules.around import around_findings
from systolic.checking.rules.blocks import block_findings
from systolic.checking.rules.body import body_findings
from systolic.checking.rules.dtypes import dtype_findings
from systolic.checking.rules.grid import grid_findings
from systolic.checking.rules.memory import VmemEstimate, memory_findings, vmem_estimate
from systolic.checking.rules.steps import step_findings
from systolic.chips import Chip
from systolic.compiler import NamedFunction, source_line, traced_jaxpr
from systolic.timing import target_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticResult:
    """What was found without running or compiling anything."""

    findings: tuple[Finding, ...]
    kernels: tuple[KernelUse, ...]


def read_kernels(
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    values: Sequence[np.ndarray | None],
    chip: Chip,
    settings: Mapping[str, Any],
) -> StaticResult:
    """Traces `fn(*args)` for a chip and applies every rule that needs neither compiler nor execution. For a worker.

    Args:
      fn: the function.
      args: abstract arguments.
      values: what the flat arguments hold; None where it is not known.
      chip: for which it is traced.
      settings: of JAX, to trace under; see `compiler.tracing_settings`.
    """
    try:
        jaxpr = traced_jaxpr(fn, args, target_of(chip), settings=settings)
    except Exception as error:  # noqa: BLE001 -- whatever the user's function raises while it is traced is the answer
        raise_own(error)
        return StaticResult(findings=(_untraceable(error, chip),), kernels=())
    calls = calls_on_grids(jaxpr, values)
    if not calls:
        nothing = Finding(
            rule="no-kernel",
            grade="note",
            value="there is no pallas_call in the function",
            limit="only the compiler's verdict and the run say something about it",
            fix="name the function that launches the kernel",
            chip=chip.name,
        )
        return StaticResult(findings=(nothing,), kernels=())
    return StaticResult(
        findings=tuple(findings_of(jaxpr, calls, chip)),
        kernels=tuple(_use(each, chip, vmem_estimate(each.call, chip)) for each in calls),
    )


def findings_of(jaxpr: Any, calls: Sequence[CallOnGrid], chip: Chip) -> list[Finding]:
    """Every rule that needs neither compiler nor execution, applied to a traced function."""
    around = around_findings(jaxpr, [each.call for each in calls], chip)
    return [*around, *(found for each in calls for found in _of_call(each, chip))]


def _of_call(each: CallOnGrid, chip: Chip) -> list[Finding]:
    call = each.call
    findings = [
        *block_findings(call, chip),
        *memory_findings(call, chip),
        *dtype_findings(call, chip),
        *body_findings(call),
    ]
    if isinstance(each.visits, GridVisits):
        return [*findings, *grid_findings(call, each.visits, chip), *step_findings(call, each.visits, chip)]
    return [
        *findings,
        Finding(
            rule="grid-unknown",
            grade="note",
            value=f"which blocks are visited is not known: {each.visits.why}",
            limit="unwritten outputs, dropped tails and races between steps are looked for in the run only",
            fix="give the values: --arg s32[4]=0,3,3,9, or an array in place of a shape",
            kernel=call.name,
            where=call.where,
        ),
    ]


def _use(each: CallOnGrid, chip: Chip, estimate: VmemEstimate) -> KernelUse:
    call = each.call
    visits = each.visits.visits if isinstance(each.visits, GridVisits) else {}
    grid = each.visits.grid if isinstance(each.visits, GridVisits) else call.grid
    return KernelUse(
        name=call.name,
        where=call.where,
        chip=chip.name,
        grid=tuple(grid),
        semantics=call.semantics,
        operands=tuple(
            _operand(operand, visits.get(at), estimate)
            for at, operand in enumerate(call.operands)
            if operand.memory != "semaphore"
        ),
        vmem_bytes=estimate.total_bytes,
        vmem_limit_bytes=estimate.limit_bytes,
    )


def _operand(operand: Operand, visits: Visits | None, estimate: VmemEstimate) -> OperandUse:
    return OperandUse(
        name=operand.name,
        role=operand.role,
        memory=operand.memory,
        shape=operand.shape,
        dtype=operand.dtype,
        block=operand.block,
        fetches=visits.fetches if visits is not None else None,
        moved_bytes=visits.moved_bytes if visits is not None else None,
        least_bytes=visits.least_bytes if visits is not None else None,
        vmem_bytes=sum(part.size_bytes for part in estimate.parts if part.name == operand.name),
    )


def _untraceable(error: Exception, chip: Chip) -> Finding:
    text = str(error).strip() or type(error).__name__
    return Finding(
        rule="trace",
        grade="error",
        value=f"tracing it raises {type(error).__name__}: {text.splitlines()[0]}",
        limit="there is nothing to check",
        fix="call it with these arguments in plain JAX first; give static arguments with --param",
        where=source_line(error) or "",
        chip=chip.name,
        detail=text,
    )
