"""`systolic.explain`: why does this function take so long, and what would change it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from systolic.analysis import argument_texts
from systolic.bugs import reports_bugs
from systolic.chips import Chip, FlagValue, with_flags
from systolic.chips import chip as chip_named
from systolic.compiler import (
    WorkerPool,
    abstract_arguments,
    argument_values,
    check_available,
    function_name,
    tracing_settings,
    versions,
)
from systolic.experiments import QUIET, Experiment, Progress, Runner, Running
from systolic.explaining.baseline import EquivalentMatmul, equivalent_matmul
from systolic.explaining.explanation import Explanation, Program, ProgramRole
from systolic.explaining.function_analysis import FunctionAnalysis, analyse_function
from systolic.explaining.sections import chip_limits, regions, vmem_map
from systolic.explaining.summary import change_savings, notes, replacement_savings, surroundings_savings, verdict
from systolic.explaining.timeline_windows import timeline_windows
from systolic.explaining.what_if import Function, WhatIf, WhatIfSearch
from systolic.simulator import SimulatedRun

_SPANS = 400  # of each kind, from the beginning and from the end: what the pictures show


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest:
    """What is to be explained.

    Attributes:
      fn: the function.
      args: arrays or shapes.
      arguments: the same, as text.
      chip: the chip on which it is to run.
      against: another function of the same arguments, to compare with.
      tries: the most changes to simulate.
    """

    fn: Function
    args: Sequence[Any]
    arguments: tuple[str, ...]
    chip: Chip
    against: Function | None = None
    tries: int = 12


def explain_with_pool(pool: WorkerPool, request: ExplainRequest, *, progress: Progress = QUIET) -> Explanation:
    """Explains a function with the workers of a pool; see `explain`.

    Args:
      pool: workers that compile and simulate.
      request: what is asked.
      progress: is told of every job.
    """
    jobs = _Jobs(pool, request, progress)
    mine = jobs.simulated(request.fn, jobs.name, spans=_SPANS)
    analysed = jobs.analysed(request.fn)
    other = jobs.other(request.against) if request.against is not None else None
    run = mine.outcome().required()
    now = analysed.result()
    product = equivalent_matmul(request.args, now)
    alternatives = _alternatives(jobs, product, other, function_name(request.against))
    search = WhatIfSearch(
        pool=pool, fn=request.fn, args=request.args, chip=request.chip, tries=request.tries, progress=progress
    )
    tried = search.run(now, run.time_us) if request.tries > 0 else []
    return _explanation(request, jobs.name, run, now, product, [each() for each in alternatives], tried)


@reports_bugs
def explain(
    fn: Callable[..., Any],
    *args: Any,
    chip: str | Chip = "v5e",
    flags: Mapping[str, FlagValue] | None = None,
    against: Callable[..., Any] | None = None,
    tries: int = 12,
    time_limit_s: float = 300,
    memory_limit_bytes: int | None = None,
) -> Explanation:
    """Explains why `fn(*args)` takes the time it takes on a chip that is not there, and what would change it.

    Compiles and simulates the function, and then the function with other tile sizes (where it takes them as keyword
    arguments), another order of its grid, more VMEM, two buffers, both cores: each saving is the simulated time of the
    changed program. Beside it stands XLA's program of the same result, where the function is a product of two matrices,
    or `against`.

    Args:
      fn: any function that `jax.jit` takes. Bind what is static with `functools.partial`; numbers that are bound or
        have defaults and are sizes of blocks are tried with other values.
      args: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them.
      chip: a name such as "v6e" or, with a clock state, "v7x@p7" (`systolic chips` lists them), or a record of your
        own.
      flags: compiler flags of all programs, by name, such as `{"xla_tpu_scoped_vmem_limit_kib": 65536}`.
      against: another function of the same arguments.
      tries: changes to simulate, at most; 0: none.
      time_limit_s: seconds of CPU time for one compilation.
      memory_limit_bytes: the limit of a compiler process and its children; None: what the machine can bear.

    Returns:
      The explanation; `systolic.report.explanation_page` draws it.

    Raises:
      UnknownChipError: no such chip, or it has no such clock state.
      FlagError, CompilerFlagError: such a flag cannot be given, or the compiler does not know it.
      CompilerRefusal: the compiler said no to the function as it is; `systolic.check` says what to mend.
      SimulationError: the program does something that is not understood.
      SystolicBug: this package is at fault, and not the function.
    """
    check_available()
    known = with_flags(chip_named(chip) if isinstance(chip, str) else chip, flags or {})
    request = ExplainRequest(fn=fn, args=args, arguments=argument_texts(args), chip=known, against=against, tries=tries)
    with WorkerPool(max_workers=2, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes) as pool:
        return explain_with_pool(pool, request)


class _Jobs:
    """Submits the jobs of a request."""

    def __init__(self, pool: WorkerPool, request: ExplainRequest, progress: Progress) -> None:
        self._pool, self._request, self._progress = pool, request, progress
        self._runner = Runner(pool, progress)
        self.name = function_name(request.fn)

    def simulated(self, fn: Function, label: str, *, spans: int = 0) -> Running:
        """Compiles and simulates a function of the same arguments."""
        self._progress.planned(1)
        args, chip = self._request.args, self._request.chip
        experiment = Experiment(fn=fn, args=args, chip=chip, label=f"{label} for {chip.name}", spans=spans)
        return self._runner.start(experiment)

    def other(self, fn: Function) -> tuple[Running, Future[FunctionAnalysis]]:
        """Simulates and analyses another function of the same arguments."""
        return self.simulated(fn, function_name(fn), spans=_SPANS), self.analysed(fn)

    def analysed(self, fn: Function) -> Future[FunctionAnalysis]:
        """Analyses the traced program of a function."""
        self._progress.planned(1)
        args = self._request.args
        shapes, values = abstract_arguments(args), argument_values(args)
        label = f"reading {function_name(fn)}"
        job = self._pool.submit(
            analyse_function, fn, shapes, values, self._request.chip, tracing_settings(), label=label
        )
        job.add_done_callback(lambda _: self._progress.done(label))
        return job


def _alternatives(
    jobs: _Jobs,
    product: EquivalentMatmul | None,
    other: tuple[Running, Future[FunctionAnalysis]] | None,
    name: str,
) -> list[Callable[[], Program]]:
    """Submits programs of the same result; each is waited for when it is called."""
    submitted: list[tuple[str, ProgramRole, Running]] = []
    if product is not None:
        submitted.append(("XLA", "xla", jobs.simulated(product.by_xla, "XLA", spans=_SPANS)))
        submitted.append(("systolic.matmul", "other", jobs.simulated(product.by_systolic, "systolic.matmul")))
    if other is not None:
        time, analysed = other
        # Without a kernel of its own it is XLA's program that runs.
        role: ProgramRole = "other" if product is not None or _has_kernels(analysed) else "xla"
        submitted.append((f"XLA: {name}" if role == "xla" else name, role, time))
    flops = product.flops if product is not None else 0.0
    return [lambda each=each: _program(*each, flops=flops) for each in submitted]


def _has_kernels(analysed: Future[FunctionAnalysis]) -> bool:
    try:
        return bool(analysed.result().calls)
    except Exception:  # noqa: BLE001 -- the user's other function does not trace: its program will say why
        return True


def _program(label: str, role: ProgramRole, running: Running, *, flops: float) -> Program:
    its = running.outcome()
    return Program(
        label=label,
        role=role,
        time_us=its.time_us,
        reason=its.located_reason,
        flops=flops,
        hbm_bytes=its.hbm_bytes or 0,
        run=its.run,
    )


def _explanation(
    request: ExplainRequest,
    name: str,
    run: SimulatedRun,
    now: FunctionAnalysis,
    product: EquivalentMatmul | None,
    alternatives: list[Program],
    tried: list[WhatIf],
) -> Explanation:
    flops = product.flops if product is not None else now.flops or 0.0
    this = Program(label="this kernel", role="this", time_us=run.time_us, flops=flops, hbm_bytes=run.hbm_bytes, run=run)
    changes = [
        Program(
            label=each.candidate.title,
            role="change",
            time_us=each.time_us,
            reason=each.reason,
            flops=flops,
            hbm_bytes=each.hbm_bytes,
        )
        for each in tried
    ]
    # Whoever asks wants to know what to change; what could stand in the function's place comes after that.
    own = [*change_savings(tried, run.time_us), *surroundings_savings(run, now)]
    savings = (
        *sorted(own, key=lambda each: -(each.saving or 0.0)),
        *replacement_savings(alternatives, run.time_us, product),
    )
    return Explanation(
        function=name,
        arguments=request.arguments,
        chip=request.chip.name,
        chip_title=request.chip.title,
        flags=request.chip.given_flags,
        versions=versions(),
        verdict=verdict(run, now, savings, tried=len(tried) + len(alternatives)),
        programs=(this, *alternatives, *changes),
        roofline=chip_limits(request.chip, now.dtype),
        windows=timeline_windows(run),
        traffic=now.traffic,
        vmem=vmem_map(run, now, request.chip),
        regions=regions(run),
        lines=now.lines,
        savings=savings,
        notes=notes(run, now, product, compared=request.against is not None),
    )
