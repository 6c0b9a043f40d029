"""`systolic.explain`: why does this function take so long, and what would change it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from systolic.analysis import argument_texts
from systolic.chips import Chip, FlagValue, with_flags
from systolic.chips import chip as chip_named
from systolic.compiler import (
    WorkerPool,
    abstract_arguments,
    argument_values,
    check_available,
    function_name,
    tracing_settings,
    with_jit_options,
)
from systolic.explaining.assembly import explanation_of, program_of
from systolic.explaining.baseline import EquivalentMatmul, equivalent_matmul
from systolic.explaining.explanation import Explanation, Program, ProgramRole
from systolic.explaining.function_analysis import FunctionAnalysis, analyse_function
from systolic.explaining.meshes import mesh_candidates
from systolic.explaining.request import ExplainRequest
from systolic.explaining.what_if import Function, WhatIfSearch, tried_time
from systolic.support.bugs import reports_bugs
from systolic.timing.experiment import Experiment
from systolic.timing.runner import QUIET, Progress, Runner, Running

_SPANS = 400  # of each kind, from the beginning and from the end: what the pictures show


def explain_with_pool(pool: WorkerPool, request: ExplainRequest, *, progress: Progress = QUIET) -> Explanation:
    """Explains a function with the workers of a pool; see `explain`.

    Args:
      pool: workers that compile and simulate.
      request: what is asked.
      progress: is told of every job.
    """
    jobs = _Jobs(pool, request, progress)
    mine = jobs.simulated(request.fn, jobs.name, spans=_SPANS, lines=True)
    analysed = jobs.analysed(request.fn, look_inside=True)
    other = jobs.other(request.against) if request.against is not None else None
    outcome = mine.outcome()
    run = outcome.required()
    progress.found(f"{jobs.name}: {run.summary().heading}; now to what would change it")
    now = analysed.result()
    product = equivalent_matmul(request.args, now) if request.topology is None else None
    alternatives = _alternatives(jobs, product, other, function_name(request.against))
    shape = request.shape
    search = WhatIfSearch(
        pool=pool,
        fn=request.fn,
        args=request.args,
        chip=request.chip,
        tries=request.tries,
        shape=shape,
        progress=progress,
    )
    tried = search.run(now, run.time_us) if request.tries > 0 else []
    meshes = mesh_candidates(request.fn, request.args, shape) if shape is not None and request.try_mesh else []
    tried = sorted([*search.run_meshes(meshes), *tried], key=tried_time)
    return explanation_of(
        request, jobs.name, outcome, now, product, [alternative() for alternative in alternatives], tried
    )


@reports_bugs
def explain(
    fn: Callable[..., Any],
    *args: Any,
    chip: str | Chip = "v5e",
    topology: str | None = None,
    flags: Mapping[str, FlagValue] | None = None,
    against: Callable[..., Any] | None = None,
    tries: int = 12,
    try_mesh: bool = False,
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
      topology: of a slice of such chips, "2x4" on v5e and v6e, "2x2x1" on the others, over which the function is
        sharded; see `simulate`. None: it runs on one device.
      flags: compiler flags of all programs, by name, such as `{"xla_tpu_scoped_vmem_limit_kib": 65536}`.
      against: another function of the same arguments.
      tries: changes to simulate, at most; 0: none.
      try_mesh: simulate other meshes and shardings of the same function as well, at most as many: other sizes of the
        mesh's axes, other orders of its devices, other specs of an argument.
      time_limit_s: seconds of CPU time for one compilation.
      memory_limit_bytes: the limit of a compiler process and its children; None: what the machine can bear.

    Returns:
      The explanation; `systolic.report.explanation_page` draws it.

    Raises:
      UnknownChipError: no such chip, or it has no such clock state.
      SliceError: no such slice, or the function is not sharded over it.
      FlagError, CompilerFlagError: such a flag cannot be given, or the compiler does not know it.
      CompilerRefusal: the compiler said no to the function as it is; `systolic.check` says what to mend.
      SimulationError: the program does something that is not understood.
      SystolicBug: this package is at fault, and not the function.
    """
    check_available()
    target_chip = with_flags(chip_named(chip) if isinstance(chip, str) else chip, flags or {})
    request = ExplainRequest(
        fn=fn,
        args=args,
        arguments=argument_texts(args),
        chip=target_chip,
        topology=topology,
        against=against,
        tries=tries,
        try_mesh=try_mesh,
    )
    with WorkerPool(max_workers=2, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes) as pool:
        return explain_with_pool(pool, request)


class _Jobs:
    """Submits the jobs of a request."""

    def __init__(self, pool: WorkerPool, request: ExplainRequest, progress: Progress) -> None:
        self._pool, self._request, self._progress = pool, request, progress
        self._runner = Runner(pool, progress)
        self.name = function_name(request.fn)

    def simulated(self, fn: Function, label: str, *, spans: int = 0, lines: bool = False) -> Running:
        """Compiles and simulates a function of the same arguments."""
        self._progress.planned(1)
        args, chip, topology = self._request.args, self._request.chip, self._request.topology
        label = f"{label} for {chip.name}"
        experiment = Experiment(
            fn=fn, args=args, chip=chip, topology=topology, label=label, spans=spans, lines=lines and topology is None
        )
        return self._runner.start(experiment)

    def other(self, fn: Function) -> tuple[Running, Future[FunctionAnalysis]]:
        """Simulates and analyses another function of the same arguments."""
        return self.simulated(fn, function_name(fn), spans=_SPANS), self.analysed(fn)

    def analysed(self, fn: Function, *, look_inside: bool = False) -> Future[FunctionAnalysis]:
        """Analyses the traced program of a function; `look_inside` for all tile sizes that it has."""
        self._progress.planned(1)
        args, shape = self._request.args, self._request.shape
        shapes, values = abstract_arguments(args, shardings=shape is not None), argument_values(args)
        label = f"reading {function_name(fn)}"
        job = self._pool.submit(
            analyse_function,
            with_jit_options(fn),
            shapes,
            values,
            self._request.chip,
            tracing_settings(),
            shape,
            look_inside,
            label=label,
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
    return [
        lambda label=label, role=role, running=running: program_of(label, role, running.outcome(), flops=flops)
        for label, role, running in submitted
    ]


def _has_kernels(analysed: Future[FunctionAnalysis]) -> bool:
    try:
        return bool(analysed.result().calls)
    except Exception:  # noqa: BLE001 -- the user's other function does not trace: its program will say why
        return True
