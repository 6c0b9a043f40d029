"""`systolic.check`: check that a kernel is legal, right, free of races, and accepted by the compiler."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from systolic.analysis import argument_texts
from systolic.checking.exception_findings import NO_VERDICT, exception_finding, worker_failure
from systolic.checking.finding import Finding
from systolic.checking.report import CheckReport, RunSummary, in_order, without_consequences
from systolic.checking.running import RunOutcome, run_in_worker
from systolic.checking.static import StaticResult, read_kernels
from systolic.checking.verdict import Verdict, reconciled, refused
from systolic.checking.virtual_devices import checked_axes, slice_of_devices
from systolic.chips import Chip, FlagValue, with_flags
from systolic.chips import chip as chip_named
from systolic.compiler import (
    CompiledProgram,
    CompilerError,
    CompilerFlagError,
    CompilerMissing,
    CompilerRefusal,
    FunctionExit,
    NamedFunction,
    NamedFunctionError,
    ProgramCache,
    WorkerEnded,
    WorkerPool,
    compiler_is_there,
    function_name,
    slice_mesh,
    submit_compilation,
    versions,
    with_jit_options,
)
from systolic.simulator import VmemBuffer
from systolic.support.bugs import SystolicBug, reports_bugs
from systolic.support.extras import install_command
from systolic.timing import Call, target_of, vmem_buffers

Function = Callable[..., Any] | NamedFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheck:
    """A check with running jobs; `result` waits for them."""

    function: str
    arguments: tuple[str, ...]
    chips: tuple[Chip, ...]
    static: tuple[Future[StaticResult], ...]
    compiled: tuple[Future[CompiledProgram] | None, ...]
    unasked: tuple[str, ...]
    ran: Future[RunOutcome] | None

    @property
    def jobs(self) -> tuple[Future[Any], ...]:
        """All of them."""
        return (*self.static, *(call for call in (*self.compiled, self.ran) if call is not None))

    def result(self) -> CheckReport:
        """Wait for all jobs and return the report.

        Raises:
          NamedFunctionError: there is no such function.
        """
        findings: list[Finding] = []
        kernels, verdicts = [], []
        for chip, static, compiled, unasked in zip(self.chips, self.static, self.compiled, self.unasked, strict=True):
            read = _static(static, chip)
            verdict, refusal = _verdict(compiled, chip, [kernel.name for kernel in read.kernels], unasked)
            if (
                refusal is not None
                and refusal.rule == "trace"
                and any(finding.rule == "trace" for finding in read.findings)
            ):
                refusal = None  # reading the function has given the same finding
            findings += reconciled(read.findings, verdict, refusal)
            kernels += read.kernels
            verdicts.append(verdict)
        run, run_findings = _ran(self.ran)
        if any(finding.rule == "trace" for finding in findings):
            run_findings = tuple(finding for finding in run_findings if finding.rule != "trace")
        findings = without_consequences([*findings, *run_findings])
        return CheckReport(
            function=self.function,
            arguments=self.arguments,
            chips=tuple(chip.name for chip in self.chips),
            flags=self.chips[0].given_flags if self.chips else {},
            versions=versions(),
            findings=in_order(findings),
            kernels=tuple(kernels),
            verdicts=tuple(verdicts),
            run=run,
        )


def submit_check(
    pool: WorkerPool,
    fn: Function,
    args: Sequence[Any],
    chips: Sequence[Chip],
    *,
    reference: Function | None = None,
    run: bool = True,
    compiles: bool = True,
    seeds: Sequence[int] = (0, 1, 2),
    cached: bool = True,
    mesh: Mapping[str, int] | None = None,
) -> PendingCheck:
    """Have workers trace, compile and run `fn(*args)`; see `check`.

    Raises:
      MeshError: there is no such mesh.
    """
    mesh = checked_axes(mesh) if mesh is not None else None
    unasked = ["" if compiles else "it was not asked"] * len(chips)
    if not compiler_is_there():
        unasked = [f"it is not installed: {install_command('tpu')}"] * len(chips)
    call, name = Call.described(fn, args, chips[0]), function_name(fn)
    cache = ProgramCache() if cached else None
    static, compiled = [], []
    for at, chip in enumerate(chips):
        label = f"{name} for {chip.name}"
        static.append(pool.submit(read_kernels, replace(call, chip=chip), mesh, label=f"reading {label}"))
        shape = slice_of_devices(chip, math.prod(mesh.values())) if mesh else None
        if mesh and shape is None and not unasked[at]:
            unasked[at] = f"it was not asked: no slice of {chip.name} has {math.prod(mesh.values())} devices"
        request = None
        if not unasked[at]:
            called = with_jit_options(fn, slice_mesh(shape.chip, shape.name, **mesh)) if mesh and shape else fn
            target = target_of(shape.chip if shape else chip, shape)
            request = submit_compilation(pool, called, args, target, cache=cache, label=label)
        compiled.append(request)
    ran = None
    if run:
        job = functools.partial(run_in_worker, reference=reference, seeds=tuple(seeds), mesh=mesh)
        ran = pool.submit(job, call, label=f"running {name}")
    return PendingCheck(
        function=name,
        arguments=argument_texts(args),
        chips=tuple(chips),
        static=tuple(static),
        compiled=tuple(compiled),
        unasked=tuple(unasked),
        ran=ran,
    )


@reports_bugs
def check(
    fn: Callable[..., Any],
    *args: Any,
    chip: str | Chip | Sequence[str | Chip] = "v5e",
    flags: Mapping[str, FlagValue] | None = None,
    reference: Callable[..., Any] | None = None,
    run: bool = True,
    compiles: bool = True,
    seeds: Sequence[int] = (0, 1, 2),
    cached: bool = True,
    mesh: Mapping[str, int] | None = None,
    time_limit_s: float = 300,
    memory_limit_bytes: int | None = None,
) -> CheckReport:
    """Check whether the Pallas kernels of `fn(*args)` are legal, right, free of races and accepted by the compiler.

    Reads the Pallas calls out of the traced function and applies the rules of docs/check.md; asks the TPU compiler for
    each chip; and runs the function in TPU interpret mode, on smaller arguments where these are large, with race
    detection, NaN in uninitialised memory and several orders of copies.

        systolic.check(fn, lhs, rhs, chip="v5e").raise_on_error()

    Args:
      fn: any function that `jax.jit` takes. Bind static arguments with `functools.partial`.
      args: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them. Contents matter if a kernel prefetches scalars.
      chip: one or several chips: names such as "v6e" (`systolic chips` lists them), or your own records.
      flags: compiler flags by name, such as `{"xla_tpu_scoped_vmem_limit_kib": 65536}`.
      reference: a function of the same arguments without kernels, run in float64 for comparison.
      run: run it in interpret mode.
      compiles: ask the TPU compiler. If it is not installed, the report says so.
      seeds: seeds of the runs, for inputs and the order of copies.
      cached: reuse stored programs, and store new ones.
      mesh: axes with their sizes, such as `{"x": 2, "y": 4}`, of a mesh that is set while the function is traced, as by
        `jax.set_mesh`. The function runs on that many devices, played by the CPU, and is compiled for a slice of that
        size. None: one device, and no mesh.
      time_limit_s: seconds of CPU time for each of the jobs.
      memory_limit_bytes: for a compiler process and its children; None: chosen by the machine's memory.

    Returns:
      Findings, the kernels' operands with their traffic, and the compiler's verdicts.

    Raises:
      UnknownChipError: no such chip, or it has no such clock state.
      MeshError: there is no such mesh.
      FlagError, CompilerFlagError: such a flag cannot be given, or the compiler does not know it.
      SystolicBug: this package is at fault, and not the function.
    """
    several = [chip] if isinstance(chip, str | Chip) else list(chip)
    chips = [with_flags(chip_named(chip), flags) for chip in several]
    how = {"reference": reference, "run": run, "compiles": compiles, "seeds": seeds, "cached": cached, "mesh": mesh}
    with WorkerPool(max_workers=2, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes) as pool:
        return submit_check(pool, fn, args, chips, **how).result()


def _static(job: Future[StaticResult], chip: Chip) -> StaticResult:
    try:
        return job.result()
    except (NamedFunctionError, CompilerMissing, SystolicBug):
        raise
    except (FunctionExit, WorkerEnded) as error:
        return StaticResult(findings=(worker_failure(error, chip.name),), kernels=())
    except Exception as error:  # noqa: BLE001 -- the user's module may raise anything while it is imported
        finding = exception_finding(error, "trace", "", limit="the function could not be read", chip=chip.name)
        return StaticResult(findings=(finding,), kernels=())


def _verdict(
    job: Future[CompiledProgram] | None, chip: Chip, kernels: list[str], unasked: str
) -> tuple[Verdict, Finding | None]:
    if job is None:
        return Verdict(chip=chip.name, accepted=None, text=unasked), None
    try:
        program = job.result()
    except CompilerRefusal as refusal:
        finding = refused(refusal, chip, kernels)
        return Verdict(chip=chip.name, accepted=False, text=refusal.message, where=refusal.where or ""), finding
    except CompilerFlagError:
        raise
    except (FunctionExit, WorkerEnded) as error:
        return Verdict(chip=chip.name, accepted=None, text=str(error)), worker_failure(error, chip.name)
    except CompilerError as error:
        finding = Finding(
            rule="compiler-crash",
            grade="warning",
            value=str(error).splitlines()[0],
            limit=NO_VERDICT,
            fix="see the text below",
            chip=chip.name,
            detail=str(error),
        )
        return Verdict(chip=chip.name, accepted=None, text=str(error)), finding
    except (NamedFunctionError, SystolicBug):
        raise
    except Exception as error:  # noqa: BLE001 -- tracing raised; reading the function has found the same
        return Verdict(chip=chip.name, accepted=None, text=f"{type(error).__name__}: {error}"), None
    vmem, spills = _largest(vmem_buffers(program.vmem_report))
    return (
        Verdict(chip=chip.name, accepted=True, compile_s=program.compile_s, vmem_bytes=vmem, spill_bytes=spills),
        None,
    )


def _largest(buffers: Sequence[VmemBuffer]) -> tuple[int, int]:
    """Count the bytes of VMEM that the largest kernel takes, and how many of them are spilled registers.

    XLA's own operations are in the same report. A kernel is recognized by the windows of its operands and its scratch.
    """
    kernels = {buffer.op for buffer in buffers if "window allocation" in buffer.what or "scratch" in buffer.what}
    totals: dict[str, list[int]] = {}
    for buffer in buffers:
        if buffer.op in kernels or not kernels:
            total = totals.setdefault(buffer.op, [0, 0])
            total[0] += buffer.size_bytes
            total[1] += buffer.size_bytes * buffer.is_spill
    vmem, spills = max(totals.values(), default=[0, 0])
    return vmem, spills


def _ran(job: Future[RunOutcome] | None) -> tuple[RunSummary, tuple[Finding, ...]]:
    if job is None:
        return RunSummary(ran=False), ()
    try:
        outcome = job.result()
    except (NamedFunctionError, SystolicBug):
        raise
    except (FunctionExit, WorkerEnded) as error:
        return RunSummary(ran=False), (worker_failure(error, ""),)
    except Exception as error:  # noqa: BLE001 -- whatever the user's function does when it runs
        finding = exception_finding(error, "run", "running it ends in ", limit="its results are not known")
        return RunSummary(ran=False), (finding,)
    return outcome.summary, outcome.findings
