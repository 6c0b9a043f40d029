"""`systolic.explain`: why does this function take so long, and what would change it?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from systolic.analysis import argument_texts
from systolic.chips import Chip, FlagValue, with_flags
from systolic.chips import chip as chip_named
from systolic.compiler import (
    WorkerPool,
    check_available,
    function_name,
    with_jit_options,
)
from systolic.explaining.assembly import explanation_of, program_of
from systolic.explaining.baseline import EquivalentMatmul, equivalent_matmul
from systolic.explaining.explanation import Explanation, Program, ProgramRole
from systolic.explaining.function_analysis import FunctionAnalysis, analyse_function
from systolic.explaining.meshes import mesh_candidates
from systolic.explaining.request import ExplainRequest, Function
from systolic.explaining.what_if import WhatIfSearch, tried_time
from systolic.support.bugs import reports_bugs
from systolic.timing import Call
from systolic.timing.experiment import Experiment
from systolic.timing.opponent import MORE_VMEM_WORDS, faster_xla, opponent_flags, xla_experiments
from systolic.timing.runner import QUIET, Progress, Runner, Running

_SPANS = 400  # of each kind, from the beginning and from the end: what the pictures show


def explain_with_pool(pool: WorkerPool, request: ExplainRequest, *, progress: Progress = QUIET) -> Explanation:
    """Explain a function with the workers of a pool; see `explain`."""
    jobs = _Jobs(pool, request, progress)
    mine = jobs.simulated(request.fn, jobs.name, spans=_SPANS, lines=True)
    analysed = jobs.analysed(request.fn, look_inside=True)
    other = jobs.other(request.against) if request.against is not None else None
    outcome = mine.outcome()
    run = outcome.required()
    progress.note(f"{jobs.name}: {(outcome.slice_run or run).summary().heading}; now trying changes")
    now = analysed.result()
    product = equivalent_matmul(request.args, now) if request.topology is None else None
    alternatives = _alternatives(jobs, product, request.against, other)
    shape = request.shape
    search = WhatIfSearch(pool=pool, request=request, progress=progress)
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
    xla_default_flags: bool = False,
    time_limit_s: float = 300,
    memory_limit_bytes: int | None = None,
) -> Explanation:
    """Explain why `fn(*args)` takes the time it takes on a chip that is not there, and what would change it.

    Compiles and simulates the function, and then the function with other tile sizes (where it takes them as keyword
    arguments), another order of its grid, more VMEM, two buffers, both cores: each saving is the simulated time of the
    changed program. They are compared with XLA's program for the same result, if the function is a product of two
    matrices, or with `against`.

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
      xla_default_flags: compare with XLA's default flags only, and not with the faster of these and 64 MiB of scoped
        VMEM.
      time_limit_s: seconds of CPU time for one compilation.
      memory_limit_bytes: for a compiler process and its children; None: chosen by the machine's memory.

    Returns:
      The explanation; `systolic.report.explanation_page` draws it.

    Raises:
      UnknownChipError: no such chip, or it has no such clock state.
      SliceError: no such slice, or the function is not sharded over it.
      FlagError, CompilerFlagError: such a flag cannot be given, or the compiler does not know it.
      CompilerRefusal: the compiler refused the function; `systolic.check` says what to mend.
      SimulationError: the program does something that is not understood.
      SystolicBug: this package is at fault, and not the function.
    """
    check_available()
    target_chip = with_flags(chip_named(chip), flags)
    request = ExplainRequest(
        fn=fn,
        args=args,
        arguments=argument_texts(args),
        chip=target_chip,
        topology=topology,
        against=against,
        tries=tries,
        try_mesh=try_mesh,
        xla_default_flags=xla_default_flags,
    )
    with WorkerPool(max_workers=2, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes) as pool:
        return explain_with_pool(pool, request)


class _Jobs:
    """Submits the jobs of a request."""

    def __init__(self, pool: WorkerPool, request: ExplainRequest, progress: Progress) -> None:
        self._pool, self._request, self._progress = pool, request, progress
        self._runner = Runner(pool, progress)
        self.name, self.chip = function_name(request.fn), request.chip

    def simulated(self, fn: Function, label: str, *, spans: int = 0, lines: bool = False) -> Running:
        """Compile and simulate a function of the same arguments."""
        return self._started(self._experiment(fn, label, spans=spans, lines=lines))

    def simulated_xla(self, fn: Function, label: str, *, under_way: Running | None = None) -> list[Running]:
        """Start XLA's program with each of the flags whose faster program is the opponent.

        Args:
          fn: a function of the same arguments that calls no Pallas kernel.
          label: its name.
          under_way: its program with the flags of the request, if that was started before.
        """
        xla = self._experiment(fn, label, spans=_SPANS)
        first, *others = xla_experiments(xla, default_flags_only=self._request.xla_default_flags)
        return [under_way or self._started(first), *map(self._started, others)]

    def _experiment(self, fn: Function, label: str, *, spans: int, lines: bool = False) -> Experiment:
        args, chip, topology = self._request.args, self._request.chip, self._request.topology
        label = f"{label} for {chip.name}"
        return Experiment(
            fn=fn, args=args, chip=chip, topology=topology, label=label, spans=spans, lines=lines and topology is None
        )

    def _started(self, experiment: Experiment) -> Running:
        self._progress.planned(1)
        return self._runner.start(experiment)

    def other(self, fn: Function) -> tuple[Running, Future[FunctionAnalysis]]:
        """Simulate and analyze another function of the same arguments."""
        return self.simulated(fn, function_name(fn), spans=_SPANS), self.analysed(fn)

    def analysed(self, fn: Function, *, look_inside: bool = False) -> Future[FunctionAnalysis]:
        """Analyze the traced program of a function; `look_inside` for all tile sizes that it has."""
        self._progress.planned(1)
        request = self._request
        call = Call.described(with_jit_options(fn), request.args, request.chip, request.shape)
        label = f"reading {function_name(fn)}"
        job = self._pool.submit(functools.partial(analyse_function, look_inside=look_inside), call, label=label)
        job.add_done_callback(lambda _: self._progress.done(label))
        return job


def _alternatives(
    jobs: _Jobs,
    product: EquivalentMatmul | None,
    against: Function | None,
    other: tuple[Running, Future[FunctionAnalysis]] | None,
) -> list[Callable[[], Program]]:
    """Submit programs of the same result; calling an entry waits for its program."""
    submitted: list[tuple[str, ProgramRole, list[Running]]] = []
    if product is not None:
        submitted.append(("XLA", "xla", jobs.simulated_xla(product.by_xla, "XLA")))
        submitted.append(("systolic.matmul", "other", [jobs.simulated(product.by_systolic, "systolic.matmul")]))
    if other is not None and against is not None:
        time, analysed = other
        name = function_name(against)
        if product is not None or _has_kernels(analysed):
            submitted.append((name, "other", [time]))
        else:  # it has no kernel: its program is XLA's
            submitted.append((f"XLA: {name}", "xla", jobs.simulated_xla(against, name, under_way=time)))
    flops = product.flops if product is not None else 0.0
    return [
        functools.partial(_finished, label, role, running, flops=flops, chip=jobs.chip)
        for label, role, running in submitted
    ]


def _finished(label: str, role: ProgramRole, running: Sequence[Running], *, flops: float, chip: Chip) -> Program:
    """Wait for a program; of XLA's programs with several flags the faster counts, and the label says which."""
    outcome = faster_xla([form.outcome() for form in running], least_hbm_us=0.0)
    label += f" with {MORE_VMEM_WORDS}" if opponent_flags(outcome, chip) else ""
    return program_of(label, role, outcome, flops=flops)


def _has_kernels(analysed: Future[FunctionAnalysis]) -> bool:
    try:
        return bool(analysed.result().calls)
    except Exception:  # noqa: BLE001 -- the user's other function does not trace: its program will say why
        return True
