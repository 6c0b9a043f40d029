"""Put an explanation into words: savings, the verdict, notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from systolic.explaining.baseline import EquivalentMatmul
from systolic.explaining.bottleneck import Bottleneck, bottleneck, main_op
from systolic.explaining.communication import communication_words, is_limit
from systolic.explaining.explanation import Communication, Program, Saving
from systolic.explaining.function_analysis import FunctionAnalysis
from systolic.explaining.what_if import WhatIf
from systolic.simulator import SimulatedRun, SliceRun
from systolic.timing.opponent import MORE_VMEM_FLAGS, MORE_VMEM_WORDS

_MAX_LISTED_TILES = 3  # choices of tiles; many may be similar
_WORTH_SAYING = 0.005  # smaller savings, as a share of the time, are noise


def change_savings(tried: Sequence[WhatIf], time_us: float, now: Communication | None = None) -> list[Saving]:
    """List the simulated savings of changes of the function's own parameters, the largest first.

    `tried` has the fastest change first; `now` is the communication of the unchanged function.
    """
    savings: list[Saving] = []
    tiles = 0
    for change in tried:
        if change.time_us is None or change.time_us > time_us * (1 - _WORTH_SAYING):
            continue
        tiles += bool(change.candidate.sizes)
        if change.candidate.sizes and tiles > _MAX_LISTED_TILES:
            continue
        savings.append(
            Saving(
                title=change.candidate.title,
                why=_why(change, now),
                change=change.candidate.change,
                time_us=change.time_us,
                saving=1 - change.time_us / time_us,
                provenance="simulated",
                where=change.candidate.where,
            )
        )
    return savings


def _why(change: WhatIf, now: Communication | None) -> str:
    if now is None or change.communication is None:
        return change.candidate.why
    exposed = f"exposed communication {change.communication.exposed_us:,.1f} µs in place of {now.exposed_us:,.1f}"
    return f"{change.candidate.why}; {exposed}"


def surroundings_savings(run: SimulatedRun, now: FunctionAnalysis) -> list[Saving]:
    """List the times of XLA's operations around the kernels, such as a transposition before one."""
    core, kernel = run.later_core, main_op(run)
    if kernel is None or not now.calls:
        return []
    outside = core.cycles - sum(op.cycles for op in core.ops if _is_kernel(op.scope))
    if not any(_is_kernel(op.scope) for op in core.ops) or outside <= _WORTH_SAYING * 4 * core.cycles:
        return []
    reasons = [finding for finding in now.findings if finding.rule.endswith("-operand")]
    others = ", ".join(op.name for op in sorted(core.ops, key=lambda op: -op.cycles) if not _is_kernel(op.scope))
    time_us = (core.cycles - outside) / run.clock_hz * 1e6
    return [
        Saving(
            title="leaving out XLA's operations around the kernel",
            why="; ".join(finding.value for finding in reasons)
            or f"XLA's own operations around it: {others or 'copies'}",
            change=reasons[0].fix if reasons else "pass the kernel its operands as they are stored",
            time_us=time_us,
            saving=outside / core.cycles,
            provenance="simulated",
            where=reasons[0].where if reasons else "",
        )
    ]


def _is_kernel(scope: str) -> bool:
    return "pallas_call" in scope


def replacement_savings(
    alternatives: Sequence[Program], time_us: float, product: EquivalentMatmul | None
) -> list[Saving]:
    """List other functions that are faster; `product` is what this one seems to compute."""
    words: dict[str, str] = {}
    if product is not None:
        by_xla = product.written_by_xla
        words = {
            "XLA": by_xla,
            f"XLA with {MORE_VMEM_WORDS}": f"jax.jit(lambda lhs, rhs: {by_xla}, compiler_options={MORE_VMEM_FLAGS})",
            "systolic.matmul": product.written_by_systolic,
        }
    savings = []
    for program in sorted(
        alternatives, key=lambda program: float("inf") if program.time_us is None else program.time_us
    ):
        if program.time_us is None or program.time_us > time_us * (1 - _WORTH_SAYING):
            continue
        savings.append(
            Saving(
                title=f"{program.label} in its place",
                why=f"it computes {product.words}, which this function seems to compute"
                if product is not None and program.label in words
                else "it was given to compare with",
                change=words.get(program.label, program.label),
                time_us=program.time_us,
                saving=1 - program.time_us / time_us,
                provenance="simulated",
            )
        )
    return savings


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The three parts of a verdict: the time, its cause, and the first thing to change."""

    time: str
    cause: str
    advice: str

    @property
    def line(self) -> str:
        return f"{self.time}: {self.cause}; {self.advice}"


def verdict(
    run: SimulatedRun,
    now: FunctionAnalysis,
    savings: Sequence[Saving],
    *,
    tried: int,
    slice_run: SliceRun | None = None,
) -> Verdict:
    """Say the time, what limits it, and the first thing to change.

    Args:
      run: the run of the unchanged function; on a slice, of the slowest device.
      now: the analysis of its traced program.
      savings: changes first; see `Explanation`.
      tried: number of simulated changes and other programs.
      slice_run: the run of all devices of a slice.
    """
    best = savings[0] if savings else None
    largest = max(savings, key=lambda saving: saving.saving or 0.0, default=None)
    addition = f", {largest.title} {_much(largest)}" if largest is not None and largest is not best else ""
    advice = (
        f"{best.title} would save {_much(best)}{addition}"
        if best is not None and best.saving is not None
        else "nothing that was tried saves more than 0.5 %"
        if tried
        else "no change was tried"
    )
    unit = run.matrix_busy_share
    share = f"{unit:.0%} of the matrix unit" if unit else f"{run.copy_busy_share:.0%} of HBM's bandwidth"
    limit = _bottleneck(run, now).words
    if slice_run is None:
        time = f"simulated {run.time_us:,.1f} µs {run.error.words} on {run.chip}"
        return Verdict(time=time, cause=f"{share}; {limit}", advice=advice)
    talk = communication_words(slice_run)
    limits = "; ".join(filter(None, [talk] if is_limit(slice_run) else [talk, limit]))
    place = f"{slice_run.devices} devices of a {slice_run.topology} slice of {slice_run.chip}"
    time = f"simulated {slice_run.time_us:,.1f} µs {slice_run.error.words} on {place}"
    return Verdict(time=time, cause=f"{share}; {limits}", advice=advice)


def limiter(run: SimulatedRun, now: FunctionAnalysis, slice_run: SliceRun | None) -> str:
    """Name the limit that the verdict gives."""
    if slice_run is not None and is_limit(slice_run):
        return "communication"
    cause = _bottleneck(run, now).cause
    return "" if cause == "nothing" else cause


def _bottleneck(run: SimulatedRun, now: FunctionAnalysis) -> Bottleneck:
    return bottleneck(run, now.lines, now.traffic, steps=steps_of(now))


def steps_of(now: FunctionAnalysis) -> int:
    """Count the steps of all kernels' grids; grids of unknown size count as 0."""
    return sum(math.prod(size or 0 for size in call.grid) * (call.executions or 0) for call in now.calls if call.grid)


def _much(saving: Saving) -> str:
    """Format a saving; one that was not simulated is an upper bound."""
    return f"{'at most ' * (saving.provenance == 'modelled')}{saving.saving or 0.0:.0%}"


def notes(
    run: SimulatedRun, now: FunctionAnalysis, product: EquivalentMatmul | None, *, compared: bool
) -> tuple[str, ...]:
    """List what could not be determined, what was assumed, and what `check` would report."""
    sentences = [
        f"{finding.grade}: {finding.rule}: {finding.value} ({finding.fix})"
        for finding in now.findings
        if finding.grade != "note"
    ]
    if product is not None:
        sentences.append(f"XLA's program computes {product.words}, as the shapes and the number of operations suggest")
    elif not compared and now.calls:
        sentences.append("it is not known how XLA computes the same: pass a function with --against FILE.py:OTHER")
    if now.calls and not now.parameters:
        sentences.append(
            "no tile sizes to try: no keyword argument of the function, no argument of a function that it calls, and "
            "no constant is the size of a block"
        )
    sentences += [
        f"{call.name} runs {'several' if call.executions is None else f'{call.executions:,}'} times: "
        "its traffic and lines belong to one call"
        for call in now.calls
        if call.executions != 1
    ]
    if run.prefetch_cycles:
        sentences.append(
            f"a first call takes {run.prefetch_us:,.1f} µs longer: an argument is copied to VMEM before it"
        )
    if now.flops is None and product is None:
        sentences.append(
            "operations are not known: the number of a product's runs depends on values, or it is a convolution"
        )
    return tuple(sentences)
