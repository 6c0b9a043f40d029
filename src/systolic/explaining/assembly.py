"""Assemble an explanation from simulated runs and the traced program."""

from __future__ import annotations

from systolic.compiler import versions, with_jit_options
from systolic.explaining.baseline import EquivalentMatmul
from systolic.explaining.communication import communication_savings
from systolic.explaining.explanation import Communication, Explanation, Program, ProgramRole
from systolic.explaining.function_analysis import FunctionAnalysis
from systolic.explaining.meshes import only_mesh
from systolic.explaining.request import ExplainRequest
from systolic.explaining.sections import chip_limits, line_times, regions, vmem_map
from systolic.explaining.summary import (
    change_savings,
    limiter,
    notes,
    replacement_savings,
    steps_of,
    surroundings_savings,
    verdict,
)
from systolic.explaining.timeline_windows import timeline_windows
from systolic.explaining.what_if import WhatIf
from systolic.timing.outcome import Outcome


def program_of(label: str, role: ProgramRole, outcome: Outcome, *, flops: float) -> Program:
    """Make the record of a program that was simulated, on one device or on a slice, or was to be."""
    slice_run = outcome.slice_run
    return Program(
        label=label,
        role=role,
        time_us=outcome.time_us,
        reason=outcome.located_reason,
        flops=flops,
        hbm_bytes=outcome.hbm_bytes or 0,
        communication=Communication.of(slice_run) if slice_run is not None else None,
        run=outcome.run if slice_run is None else None,
        slice_run=slice_run,
    )


def explanation_of(
    request: ExplainRequest,
    name: str,
    outcome: Outcome,
    now: FunctionAnalysis,
    product: EquivalentMatmul | None,
    alternatives: list[Program],
    tried: list[WhatIf],
) -> Explanation:
    """Make the record; `now` is the analysis of the traced program, and `tried` has the fastest change first."""
    run, slice_run = outcome.required(), outcome.slice_run
    flops = product.flops if product is not None else now.flops or 0.0
    label = "this kernel" if slice_run is None else "this function"
    this = program_of(label, "this", outcome, flops=flops)
    changes = [
        Program(
            label=result.candidate.title,
            role="change",
            time_us=result.time_us,
            reason=result.reason,
            flops=flops,
            hbm_bytes=result.hbm_bytes,
            communication=result.communication,
        )
        for result in tried
    ]
    # Changes of the function come first, replacements of it after them.
    savings_here = [*change_savings(tried, run.time_us, this.communication), *surroundings_savings(run, now)]
    savings = (
        *sorted(savings_here, key=lambda saving: -(saving.saving or 0.0)),
        *(communication_savings(slice_run, tried_meshes=request.try_mesh) if slice_run is not None else ()),
        *replacement_savings(alternatives, run.time_us, product),
    )
    parts = verdict(run, now, savings, tried=len(tried) + len(alternatives), slice_run=slice_run)
    return Explanation(
        function=name,
        arguments=request.arguments,
        chip=request.chip.name,
        chip_title=request.chip.title,
        flags=request.chip.given_flags if slice_run is None else slice_run.flags,
        topology=request.topology or "",
        versions=versions(),
        verdict=parts.line,
        cause=parts.cause,
        advice=parts.advice,
        programs=(this, *alternatives, *changes),
        roofline=chip_limits(request.chip, now.dtype),
        windows=timeline_windows(run),
        traffic=now.traffic,
        vmem=vmem_map(run, now, request.chip),
        regions=regions(run),
        lines=now.lines,
        line_times=line_times(run),
        steps=steps_of(now),
        limiter=limiter(run, now, slice_run),
        savings=savings,
        notes=(*notes(run, now, product, compared=request.against is not None), *_mesh_notes(request)),
    )


def _mesh_notes(request: ExplainRequest) -> tuple[str, ...]:
    if not request.try_mesh or request.topology is None:
        return ()
    mesh = only_mesh(with_jit_options(request.fn), request.args)
    return () if mesh is not None else ("no other mesh was tried: the call's shardings name none, or several",)
