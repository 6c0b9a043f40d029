"""Judges a function's Pallas calls by its traced program alone, on one chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from systolic.analysis import (
    CallOnGrid,
    GridVisits,
    Operand,
    Visits,
    VmemEstimate,
    calls_on_grids,
    vmem_estimate,
)
from systolic.checking.exception_findings import trace_failure
from systolic.checking.finding import Finding, call_finding
from systolic.checking.report import KernelUse, OperandUse
from systolic.checking.rules.around import around_findings
from systolic.checking.rules.blocks import block_findings
from systolic.checking.rules.body import body_findings
from systolic.checking.rules.dtypes import dtype_findings
from systolic.checking.rules.grid import grid_findings
from systolic.checking.rules.memory import memory_findings
from systolic.checking.rules.steps import step_findings
from systolic.checking.rules.sums import sum_findings
from systolic.checking.virtual_devices import provide_devices, traced_as_on
from systolic.chips import Chip
from systolic.compat.jaxprs import equations
from systolic.compiler import NamedFunction, at_stage, compiler_is_there, traced_jaxpr, under_settings
from systolic.support.bugs import raise_own, runs_user_code
from systolic.timing import target_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticResult:
    """The findings made without running or compiling anything."""

    findings: tuple[Finding, ...]
    kernels: tuple[KernelUse, ...]


def read_kernels(
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    values: Sequence[np.ndarray | None],
    chip: Chip,
    settings: Mapping[str, Any],
    mesh: Mapping[str, int] | None = None,
) -> StaticResult:
    """Traces `fn(*args)` for a chip and applies every rule that needs neither compiler nor execution. For a worker.

    Args:
      fn: the function.
      args: abstract arguments.
      values: what the flat arguments hold; None where it is not known.
      chip: the chip for which it is traced.
      settings: JAX's settings to trace under; see `compiler.tracing_settings`.
      mesh: the axes of a mesh that is set meanwhile; none: there is no mesh.
    """
    try:
        jaxpr = _traced(fn, args, chip, settings, mesh)
    except Exception as error:  # noqa: BLE001 -- whatever the user's function raises while it is traced is the answer
        raise_own(error)
        return StaticResult(findings=(trace_failure(error, chip.name),), kernels=())
    calls = calls_on_grids(jaxpr, values)
    if not calls:
        on_cores = any(equation.primitive.name == "mpmd_map" for equation in equations(jaxpr))
        nothing = Finding(
            rule="no-kernel",
            grade="note",
            value="its kernel has no grid: it runs on a mesh of cores"
            if on_cores
            else "there is no pallas_call in the function",
            limit="only the compiler's verdict and the run say something about it",
            fix="read these" if on_cores else "name the function that launches the kernel",
            chip=chip.name,
        )
        return StaticResult(findings=(nothing,), kernels=())
    return StaticResult(
        findings=tuple(static_findings(jaxpr, calls, chip)),
        kernels=tuple(_use(call, chip, vmem_estimate(call.call, chip)) for call in calls),
    )


def _traced(
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    chip: Chip,
    settings: Mapping[str, Any],
    mesh: Mapping[str, int] | None,
) -> Any:
    """Traces a function for a chip; for devices of its kind that JAX makes up: without the TPU compiler, and a mesh."""
    if compiler_is_there() and not mesh:
        return traced_jaxpr(fn, args, target_of(chip), settings=settings)
    import jax

    provide_devices(mesh)
    with under_settings(settings), traced_as_on(chip, mesh):
        loaded = fn.load() if isinstance(fn, NamedFunction) else fn
        return _closed_jaxpr(jax.jit(loaded, keep_unused=True), args)


@runs_user_code
def _closed_jaxpr(jitted: Any, args: Sequence[Any]) -> Any:
    with at_stage("tracing"):
        return jitted.trace(*args).jaxpr


def static_findings(jaxpr: Any, calls: Sequence[CallOnGrid], chip: Chip) -> list[Finding]:
    """Applies every rule that needs neither compiler nor execution to a traced function."""
    around = around_findings(jaxpr, [call.call for call in calls], chip)
    return [*around, *(finding for call in calls for finding in _call_findings(call, chip))]


def _call_findings(call_on_grid: CallOnGrid, chip: Chip) -> list[Finding]:
    call = call_on_grid.call
    findings = [
        *block_findings(call),
        *memory_findings(call, chip),
        *dtype_findings(call, chip),
        *body_findings(call),
        *sum_findings(call),
    ]
    if isinstance(call_on_grid.visits, GridVisits):
        return [
            *findings,
            *grid_findings(call, call_on_grid.visits, chip),
            *step_findings(call, call_on_grid.visits, chip),
        ]
    return [
        *findings,
        call_finding(
            call,
            "grid-unknown",
            "note",
            value=f"which blocks are visited is not known: {call_on_grid.visits.why}",
            limit="unwritten outputs, dropped tails and races between steps are looked for in the run only",
            fix="give the values: --arg s32[4]=0,3,3,9, or an array in place of a shape",
        ),
    ]


def _use(call_on_grid: CallOnGrid, chip: Chip, estimate: VmemEstimate) -> KernelUse:
    call = call_on_grid.call
    visits = call_on_grid.visits.visits if isinstance(call_on_grid.visits, GridVisits) else {}
    grid = call_on_grid.visits.grid if isinstance(call_on_grid.visits, GridVisits) else call.grid
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
        vmem_bytes=sum(part.size_bytes for part in estimate.buffers if part.name == operand.name),
    )
