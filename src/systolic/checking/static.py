"""Judge a function's Pallas calls by its traced program alone, on one chip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from systolic.compiler import at_stage, compiler_is_there, loaded_function, traced_jaxpr, under_settings
from systolic.support.bugs import raise_own, runs_user_code
from systolic.timing import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticResult:
    """The findings made without running or compiling anything."""

    findings: tuple[Finding, ...]
    kernels: tuple[KernelUse, ...]


def read_kernels(call: Call, mesh: Mapping[str, int] | None = None) -> StaticResult:
    """Trace a function for a chip and apply every rule that needs neither compiler nor execution. For a worker.

    Args:
      call: the function with its arguments, and the chip.
      mesh: axes of a mesh that is set while the function is traced; None: no mesh.
    """
    chip = call.chip
    try:
        jaxpr = _traced(call, mesh)
    except Exception as error:  # noqa: BLE001 -- whatever the user's function raises while it is traced is the answer
        raise_own(error)
        return StaticResult(findings=(trace_failure(error, chip.name),), kernels=())
    calls = calls_on_grids(jaxpr, call.values)
    if not calls:
        on_cores = any(equation.primitive.name == "mpmd_map" for equation in equations(jaxpr))
        nothing = Finding(
            rule="no-kernel",
            grade="note",
            value="its kernel has no grid: it runs on a mesh of cores"
            if on_cores
            else "there is no pallas_call in the function",
            limit="only the compiler and the run can judge it",
            fix="read their results" if on_cores else "name the function that launches the kernel",
            chip=chip.name,
        )
        return StaticResult(findings=(nothing,), kernels=())
    return StaticResult(
        findings=tuple(static_findings(jaxpr, calls, chip)),
        kernels=tuple(_use(kernel, chip, vmem_estimate(kernel.call, chip)) for kernel in calls),
    )


def _traced(call: Call, mesh: Mapping[str, int] | None) -> Any:
    """Trace a function for a chip: for a mesh, or without the TPU compiler, for devices that JAX makes up."""
    if compiler_is_there() and not mesh:
        return traced_jaxpr(call.fn, call.args, call.target, settings=call.settings)
    import jax

    provide_devices(mesh)
    with under_settings(call.settings), traced_as_on(call.chip, mesh):
        return _closed_jaxpr(jax.jit(loaded_function(call.fn), keep_unused=True), call.args)


@runs_user_code
def _closed_jaxpr(jitted: Any, args: Sequence[Any]) -> Any:
    with at_stage("tracing"):
        return jitted.trace(*args).jaxpr


def static_findings(jaxpr: Any, calls: Sequence[CallOnGrid], chip: Chip) -> list[Finding]:
    """Apply every rule that needs neither compiler nor execution to a traced function."""
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
            value=f"the visited blocks are not known: {call_on_grid.visits.why}",
            limit="only the run looks for unwritten outputs, dropped tails and races between steps",
            fix="give the values: --arg s32[4]=0,3,3,9, or an array in place of a shape",
        ),
    ]


def _use(call_on_grid: CallOnGrid, chip: Chip, estimate: VmemEstimate) -> KernelUse:
    call, known_visits = call_on_grid.call, call_on_grid.known_visits
    return KernelUse(
        name=call.name,
        where=call.where,
        chip=chip.name,
        grid=tuple(call.grid if known_visits is None else known_visits.grid),
        semantics=call.semantics,
        operands=tuple(
            _operand(operand, call_on_grid.visits_of(at), estimate)
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
