"""Run a function in TPU interpret mode, under several conditions, and judge its results.

The conditions are the order of steps along parallel axes, early or late copies, and NaN, zeros or large numbers in
memory that was never written. Each gets the same inputs, and a correct result depends on none of them. The first result
is compared with a reference in float64, and so are the results of harder inputs than normally distributed ones.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from systolic.analysis import argument_texts, described
from systolic.checking.exception_findings import trace_failure
from systolic.checking.finding import Finding
from systolic.checking.inputs import Flat, without_keys
from systolic.checking.report import RunSummary
from systolic.checking.runs import Runs
from systolic.checking.scaling import scaled_arguments
from systolic.checking.virtual_devices import provide_devices, traced_as_on
from systolic.chips import Chip
from systolic.compiler import (
    NamedFunction,
    abstract_arguments,
    argument_values,
    at_stage,
    loaded_function,
    under_settings,
)
from systolic.support.bugs import raise_own, runs_user_code
from systolic.timing import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The results of all runs.

    Attributes:
      findings: the findings, in order.
      summary: sizes, seeds, the largest error.
      changes: sizes that were changed for the run: "4096 → 2048".
    """

    findings: tuple[Finding, ...]
    summary: RunSummary
    changes: tuple[str, ...] = ()


def run_in_worker(
    call: Call,
    *,
    reference: Callable[..., Any] | NamedFunction | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    mesh: Mapping[str, int] | None = None,
) -> RunOutcome:
    """Call `run_checks` in a worker, because user code may crash the process or wait forever.

    Args:
      call: the function with its arguments, and the chip, whose cores share parallel axes.
      reference: a function of the same arguments, or its name.
      seeds, mesh: see `run_checks`.

    Raises:
      NamedFunctionError: there is no function of that name.
    """
    provide_devices(mesh)
    with under_settings(call.settings):
        fn = loaded_function(call.fn)
        other = None if reference is None else loaded_function(reference)
        return run_checks(fn, call.args, values=call.values, reference=other, chip=call.chip, seeds=seeds, mesh=mesh)


def run_checks(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    chip: Chip,
    values: Sequence[np.ndarray | None] | None = None,
    reference: Callable[..., Any] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    mesh: Mapping[str, int] | None = None,
) -> RunOutcome:
    """Run `fn(*args)` in TPU interpret mode, on smaller arguments if these are large; see `scaled_arguments`.

    Args:
      fn: any function that `jax.jit` takes.
      args: arrays or shapes, or pytrees of them.
      chip: the chip for which it is traced. Where its device has two cores, they share the steps along parallel axes.
      values: the flat arguments' values, by default taken from `args`; None: unknown.
      reference: a function of the same arguments; it is run in float64.
      seeds: one run each. The first makes the inputs; each decides the order of steps and of copies, and the contents
        of memory that was never written.
      mesh: the axes of a mesh of virtual devices with their sizes; the function is traced in it. None: one device, and
        no mesh.
    """
    import jax

    started, seeds = time.perf_counter(), tuple(seeds) or (0,)
    leaves, tree = jax.tree.flatten(abstract_arguments(args))
    unscaled, (leaves, keys) = leaves, without_keys(leaves)
    flat = Flat(fn, tree, keys)
    try:
        known_values = argument_values(args) if values is None else list(values)
        scaled = scaled_arguments(functools.partial(_traced, flat, chip, mesh), leaves, known_values)
    except Exception as error:  # noqa: BLE001 -- any exception of the user's function is the result
        raise_own(error)
        summary = RunSummary(ran=False, seeds=seeds, seconds=time.perf_counter() - started)
        return RunOutcome(findings=(trace_failure(error),), summary=summary)
    runs = Runs(flat=flat, chip=chip, mesh=mesh, scaled=scaled, seeds=seeds)
    runs.all(Flat(reference, tree, keys) if reference is not None else None)
    worst = runs.judge.worst
    shown = [
        shape if at in keys else used for at, (shape, used) in enumerate(zip(unscaled, scaled.leaves, strict=True))
    ]
    pairs = zip(map(described, shown), argument_texts(args), strict=True)
    return RunOutcome(
        findings=tuple(dict.fromkeys(runs.findings)),
        summary=RunSummary(
            ran=runs.ran,
            sizes=tuple(used if used == full_size else f"{used} for {full_size}" for used, full_size in pairs),
            seeds=seeds,
            data=tuple(runs.data),
            compared=getattr(reference, "__name__", type(reference).__name__) if worst is not None else "",
            error=worst[0] if worst else None,
            tolerance=worst[1] if worst else None,
            lost=runs.judge.lost,
            seconds=time.perf_counter() - started,
        ),
        changes=scaled.changes,
    )


@runs_user_code
def _traced(flat: Flat, chip: Chip, mesh: Mapping[str, int] | None, leaves: Sequence[Any]) -> Any:
    import jax

    with at_stage("tracing"), traced_as_on(chip, mesh):
        return jax.jit(lambda *arguments: flat(*arguments), keep_unused=True).trace(*leaves).jaxpr
