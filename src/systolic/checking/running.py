"""Runs anybody's function in TPU interpret mode, under several conditions, and says what is wrong with its results.

The same inputs go through every condition: the order of steps along parallel axes, copies done early or late, NaN or
zeros in memory that nobody wrote. A result that depends on any of them is wrong on some day. The first result is
compared with a reference in float64.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from systolic.analysis import argument_texts, described
from systolic.bugs import raise_own, runs_user_code
from systolic.checking.comparing import Reference, evaluated
from systolic.checking.exception_findings import exception_finding, trace_failure
from systolic.checking.finding import Finding
from systolic.checking.inputs import Flat, NoInputError, is_index, made_up
from systolic.checking.interpreting import Conditions, Interpreted, Interpreter, TooSlowError, traced_as_on
from systolic.checking.judging import Judge
from systolic.checking.report import RunSummary
from systolic.checking.scaling import ScaledArguments, scaled_arguments
from systolic.chips import Chip
from systolic.compiler import NamedFunction, abstract_arguments, argument_values, at_stage

_MOST_SECONDS = 20.0  # that one run may be expected to take
_TIME_LIMIT_S = 45.0  # for one run; once so long has gone by, no further one begins


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """What came of the runs.

    Attributes:
      findings: in the order in which they were made.
      summary: sizes, seeds, the largest error.
      changes: sizes that were changed for the run: "4096 → 2048".
    """

    findings: tuple[Finding, ...]
    summary: RunSummary
    changes: tuple[str, ...] = ()


def run_in_worker(
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    values: Sequence[np.ndarray | None],
    chip: Chip,
    *,
    reference: Callable[..., Any] | NamedFunction | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    settings: Mapping[str, Any] | None = None,
) -> RunOutcome:
    """`run_checks` for a worker: user code may crash the process, and wait for ever.

    Args:
      fn: the function, or its name.
      args: abstract arguments.
      values: what the flat arguments hold; None where it is not known.
      chip: for which it is traced, and whose cores share parallel axes.
      reference: of the same arguments, or its name.
      seeds: see `run_checks`.
      settings: of JAX, to trace under; see `compiler.tracing_settings`.

    Raises:
      NamedFunctionError: there is no function of that name.
    """
    import jax

    before = {name: getattr(jax.config, name) for name in settings or {}}
    try:
        for name, value in (settings or {}).items():
            jax.config.update(name, value)
        loaded = fn.load() if isinstance(fn, NamedFunction) else fn
        other = reference.load() if isinstance(reference, NamedFunction) else reference
        return run_checks(loaded, args, values=values, reference=other, chip=chip, seeds=seeds)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def run_checks(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    chip: Chip,
    values: Sequence[np.ndarray | None] | None = None,
    reference: Callable[..., Any] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
) -> RunOutcome:
    """Runs `fn(*args)` in TPU interpret mode, on smaller arguments where these are large; see `scaled_arguments`.

    Args:
      fn: any function that `jax.jit` takes.
      args: arrays or shapes, or pytrees of them.
      chip: for which it is traced. Where its device has two cores, they share the steps along parallel axes.
      values: what the flat arguments hold; None where it is not known. Left out: what `args` hold.
      reference: a function of the same arguments; it is run in float64.
      seeds: one run each. The first makes the inputs; each decides on an order of steps and of copies, and on what is
        in memory that nobody wrote.
    """
    started = time.perf_counter()
    run = _Run(fn, tuple(args), chip, values, reference, tuple(seeds) or (0,))
    run.all()
    return RunOutcome(
        findings=tuple(dict.fromkeys(run.findings)),
        summary=RunSummary(
            ran=run.ran,
            sizes=run.sizes(),
            seeds=run.seeds,
            compared=_name(reference) if run.judge.worst is not None else "",
            error=run.judge.worst[0] if run.judge.worst else None,
            tolerance=run.judge.worst[1] if run.judge.worst else None,
            seconds=time.perf_counter() - started,
        ),
        changes=run.scaled.changes if run.scaled else (),
    )


@dataclass(slots=True)
class _Run:
    """The runs of one function, as far as they have come."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    chip: Chip
    given: Sequence[np.ndarray | None] | None
    reference: Callable[..., Any] | None
    seeds: tuple[int, ...]
    findings: list[Finding] = field(default_factory=list)
    scaled: ScaledArguments | None = None
    judge: Judge = field(default_factory=lambda: Judge(()))
    ran: bool = False
    started: float = field(default_factory=time.perf_counter)
    slowest_s: float = 0.0

    def all(self) -> None:
        """Traces, scales, runs and compares."""
        import jax

        leaves, tree = jax.tree.flatten(abstract_arguments(self.args))
        values = argument_values(self.args) if self.given is None else list(self.given)
        flat = Flat(self.fn, tree)
        try:
            self.scaled = scaled_arguments(functools.partial(self._traced, flat), leaves, values)
        except Exception as error:  # noqa: BLE001 -- whatever the user's function raises is the answer
            raise_own(error)
            self.findings.append(trace_failure(error))
            return
        self.judge = Judge(self.scaled.calls)
        if self.scaled.seconds > _MOST_SECONDS:
            self._note(
                f"it was not run: at the smallest sizes that it takes, one run would last about "
                f"{self.scaled.seconds:,.0f} s",
                "nothing could be said of its results",
                "check it with smaller arguments, or smaller tiles",
            )
            return
        try:
            only = self.scaled.calls[0].where if len(self.scaled.calls) == 1 else ""
            with at_stage("interpreting", only):
                self._run(flat)
        except NoInputError as error:
            self._note(f"it was not run: {error}", "a run needs values", "give a value for it")

    def _run(self, flat: Flat) -> None:
        assert self.scaled is not None
        scaled = self.scaled
        prefetches = any(call.of("prefetch") for call in scaled.calls)
        inputs = made_up(scaled.leaves, scaled.values, self.seeds[0], indices=prefetches)
        if prefetches and any(
            value is None and is_index(leaf) for leaf, value in zip(scaled.leaves, scaled.values, strict=True)
        ):
            self.judge.assumed = True
            self._note(
                "integers that a kernel prefetches were taken to be zeros",
                "only their shape was given, and they may choose its blocks",
                "give the values: --arg s32[4]=0,3,3,9, or an array in place of a shape",
            )
        interpreter = Interpreter(flat, self.chip)
        conditions = list(self._conditions())
        results: list[tuple[Conditions, Interpreted]] = []
        for each in conditions:
            if results and not self._has_time():
                self._note(
                    f"{len(results)} of {len(conditions)} orders of copies and steps were run: each takes "
                    f"{self.slowest_s:.0f} s",
                    "a result that depends on their order may not show",
                    "check it with smaller arguments, or smaller tiles",
                )
                break
            result = self._interpreted(interpreter, inputs, each)
            if result is None:
                return
            results.append((each, result))
        self.ran = True
        self.findings += self.judge.of_runs(results)
        other = Flat(self.reference, flat.tree) if self.reference is not None else None
        wanted = self._wanted(other, inputs, self.seeds[0]) if other is not None else None
        self.findings += self.judge.of_values(inputs, results[0][1].outputs, wanted)
        self.findings += self.judge.of_precision()

    def _conditions(self) -> Iterator[Conditions]:
        assert self.scaled is not None
        parallel = any("parallel" in call.semantics for call in self.scaled.calls)
        cores = self.chip.cores_per_device if parallel else 1
        for at, seed in enumerate(self.seeds):
            yield Conditions(
                order=seed,
                copies="on_wait" if at % 2 == 0 else "eager",
                memory="zero" if at % 3 == 2 else "nan",
                cores=cores,
            )

    def _interpreted(
        self, interpreter: Interpreter, inputs: Sequence[np.ndarray], conditions: Conditions
    ) -> Interpreted | None:
        started = time.perf_counter()
        try:
            result = interpreter.run(inputs, conditions, time_limit_s=_TIME_LIMIT_S)
            self.slowest_s = max(self.slowest_s, time.perf_counter() - started)
            return result
        except TooSlowError as error:
            self._note(
                f"a run {error}".replace("it was", "was"),
                "nothing could be said of its results",
                "check it with smaller arguments, or smaller tiles",
            )
            return None
        except Exception as error:  # noqa: BLE001 -- whatever the kernel raises is the answer
            found = self.judge.of_error(error, conditions)
            if (found.rule, found.grade) == ("run", "error"):  # the interpreter says nothing of the kernel
                raise_own(error)
            self.findings.append(found)
            return None

    def _has_time(self) -> bool:
        """Whether one more run fits."""
        return time.perf_counter() - self.started + self.slowest_s < _TIME_LIMIT_S

    def _wanted(self, reference: Flat, inputs: Sequence[np.ndarray], seed: int) -> Reference | None:
        try:
            return evaluated(reference, inputs, seed)
        except Exception as error:  # noqa: BLE001 -- the user's function
            raise_own(error)
            found = exception_finding(
                error,
                "reference",
                "the reference raises ",
                limit="results are compared with nothing; it is called with float64 in place of floats",
                fix="write it for any dtype: without .astype(bfloat16) and the like",
            )
            self.findings.append(found)
            return None

    @runs_user_code
    def _traced(self, flat: Flat, leaves: Sequence[Any]) -> Any:
        import jax

        with at_stage("tracing"), traced_as_on(self.chip):
            return jax.jit(lambda *given: flat(*given), keep_unused=True).trace(*leaves).jaxpr

    def _note(self, value: str, limit: str, fix: str) -> None:
        self.findings.append(Finding(rule="run", grade="note", value=value, limit=limit, fix=fix))

    def sizes(self) -> tuple[str, ...]:
        """Lists what it ran with: "bfloat16[1024,1024] for bfloat16[4096,4096]"."""
        if self.scaled is None:
            return ()
        pairs = zip(map(described, self.scaled.leaves), argument_texts(self.args), strict=True)
        return tuple(used if used == whole else f"{used} for {whole}" for used, whole in pairs)


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
