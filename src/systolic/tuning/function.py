"""Search the fastest static arguments of any function: variants that no rule forbids are compiled and simulated."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from systolic.chips import Chip
from systolic.compiler import (
    CompilerMissing,
    NamedFunction,
    NamedFunctionError,
    WorkerPool,
    abstract_arguments,
    argument_values,
    function_name,
)
from systolic.compiler.jit_options import with_options_of, without_jit_options
from systolic.explaining import FunctionAnalysis, analyse_function, with_fields
from systolic.ops.planner import planner_in_use
from systolic.store import (
    FunctionConfig,
    FunctionConfigError,
    FunctionSpec,
    Keyword,
    Subject,
    TrialStore,
    arguments_of,
    best_first,
)
from systolic.support.bugs import SystolicBug
from systolic.timing import Call
from systolic.timing.experiment import Experiment
from systolic.timing.outcome import Outcome
from systolic.timing.runner import Stopped
from systolic.tuning.function_result import FunctionTuning, LeftOut
from systolic.tuning.product import known_chip
from systolic.tuning.ranking import Ranking
from systolic.tuning.saved import End
from systolic.tuning.search import Effort, Search, Watcher

Function = Callable[..., Any] | NamedFunction
Keywords = tuple[Keyword, ...]
MAX_COMBINATIONS = 2000  # a second or so each, to be traced


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The function with some static arguments, and what tracing it has shown.

    Attributes:
      modelled_us: by the model of Pallas kernels; None: it calls none, and nothing here models XLA's programs.
    """

    config: FunctionConfig
    modelled_us: float | None
    least_us: float


def tune_function(
    fn: Function,
    args: Sequence[Any],
    *,
    over: Mapping[str, Sequence[Any]],
    chip: str | Chip = "v5e",
    effort: Effort,
    store: TrialStore | None = None,
    watcher: Watcher | None = None,
) -> FunctionTuning:
    begun = time.monotonic()
    chip_model = known_chip(chip)
    store = store or planner_in_use().store or TrialStore.at()
    store.check_writable()  # before the work, not after it
    choices = list(combinations(over))
    spec = FunctionSpec(name=_name(fn), arguments=_arguments(args))
    subject = Subject.here(spec, chip_model.name)
    with effort.pool() as pool:
        read = _traced(pool, fn, args, choices, chip_model)
    variants, left_out, default = _sorted_out(choices, read)
    programs = {variant.config: variant for variant in variants}
    first = [variant for variant in variants if variant.config == default]
    search = Search[FunctionConfig](
        subject=subject,
        experiment=_Experiments(fn=fn, args=args, chip=chip_model),
        # The unchanged function has to have a time, to be compared with.
        least_time_us=lambda config: 0.0 if config == default else programs[config].least_us,
        first=list(first),
        ranking=Ranking(variants, partial(_features, over=over)),
        considered=len(variants),
        store=store,
        watcher=watcher or Watcher(),
        effort=effort,
    )
    kept_trials = [trial for trial in store.trials(subject) if trial.function in programs]

    def result(end: End) -> FunctionTuning:
        return FunctionTuning(
            fn=fn,
            args=abstract_arguments(args),
            spec=spec,
            chip=chip_model.name,
            trials=tuple(best_first(search.trials.values())),
            default=default,
            left_out=left_out,
            considered=len(variants),
            compiled=search.compiled,
            seconds=time.monotonic() - begun,
            end=end,
        )

    try:
        return result(search.run(kept_trials))
    except KeyboardInterrupt:
        raise Stopped(result("stopped")) from None


def combinations(over: Mapping[str, Sequence[Any]]) -> Iterator[Keywords]:
    """Yield no static argument at all, which is the function as it is, and then every combination of them.

    Raises:
      FunctionConfigError: there is nothing to choose from, there are too many, or a value cannot be kept.
    """
    if not over:
        raise FunctionConfigError("give static arguments and their values: over={'block_q': (128, 256)}")
    for name, values in over.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise FunctionConfigError(f"{name}={values!r} are not values to choose from; give several: (128, 256)")
    count = int(np.prod([len(values) for values in over.values()]))
    if count > MAX_COMBINATIONS:
        raise FunctionConfigError(f"{count:,} combinations; at most {MAX_COMBINATIONS:,} are looked at: give fewer")
    options = [[Keyword(name=name, value=repr(value)) for value in values] for name, values in over.items()]
    yield ()
    yield from dict.fromkeys(itertools.product(*options))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Experiments:
    fn: Function
    args: Sequence[Any]
    chip: Chip

    def __call__(self, config: FunctionConfig | None) -> Experiment:
        assert config is not None
        label = f"{function_name(self.fn)} {config} for {self.chip.name}"
        return Experiment(fn=_bound(self.fn, config.keywords), args=self.args, chip=self.chip, label=label)


def _bound(fn: Function, keywords: Keywords) -> Function:
    """Return the function with these static arguments over its own. It may be sent to a worker."""
    if not keywords:
        return fn
    values = arguments_of(keywords)
    fields = {name: value for name, value in values.items() if "." in name}
    plain_values = {name: value for name, value in values.items() if name not in fields}
    inner, _ = without_jit_options(fn)
    if isinstance(fn, NamedFunction):
        inner = NamedFunction(fn.text, {**fn.parameters, **plain_values})
    elif plain_values:
        inner = partial(inner, **plain_values)
    made = with_fields(inner, fields) if fields else inner
    return made if isinstance(made, NamedFunction) else with_options_of(fn, made)


def _traced(
    pool: WorkerPool, fn: Function, args: Sequence[Any], choices: Sequence[Keywords], chip: Chip
) -> list[FunctionAnalysis | str]:
    """Return the analysis of each variant by tracing; a text says why it cannot be traced.

    Raises:
      NamedFunctionError: there is no such function.
      CompilerMissing: there is no TPU compiler on the machine.
      SystolicBug: this package is at fault.
    """
    name = function_name(fn)
    call = Call.described(fn, args, chip)
    jobs = [
        pool.submit(analyse_function, replace(call, fn=_bound(fn, keywords)), label=f"reading {name}")
        for keywords in choices
    ]
    result: list[FunctionAnalysis | str] = []
    for job in jobs:
        try:
            result.append(job.result())
        except (NamedFunctionError, CompilerMissing, SystolicBug):
            raise
        except Exception as error:  # noqa: BLE001 -- an error for sizes that it does not take is its result
            result.append(Outcome.failed(name, error).located_reason)
    return result


def _sorted_out(
    choices: Sequence[Keywords], read: Sequence[FunctionAnalysis | str]
) -> tuple[list[Variant], tuple[LeftOut, ...], FunctionConfig | None]:
    """Return the variants to compile, those left out with reasons, and the configuration of the function as it is."""
    reference = next((outcome for outcome in read if isinstance(outcome, FunctionAnalysis)), None)
    variants: dict[str, Variant] = {}
    left_out = []
    # Variants with arguments first: one with the same program as the unchanged function is named by its arguments.
    for keywords, analysis in [*zip(choices[1:], read[1:], strict=True), (choices[0], read[0])]:
        reason = _reason(analysis, reference)
        if isinstance(analysis, str) or reason:
            left_out.append(LeftOut(keywords=keywords, reason=reason))
        elif analysis.program not in variants:
            config = FunctionConfig(keywords=keywords, program=analysis.program)
            modelled_us = analysis.modelled_us or None  # the sum is empty without a kernel, or if it has no step
            variants[analysis.program] = Variant(config=config, modelled_us=modelled_us, least_us=analysis.least_us)
        elif keywords:
            left_out.append(
                LeftOut(keywords=keywords, reason=f"the same program as {variants[analysis.program].config}")
            )
    first = read[0]
    default = variants.get(first.program) if isinstance(first, FunctionAnalysis) else None
    return list(variants.values()), tuple(left_out), None if default is None else default.config


def _reason(analysis: FunctionAnalysis | str, reference: FunctionAnalysis | None) -> str:
    """Return the reason against compiling a variant; "" where there is none."""
    if isinstance(analysis, str):
        return analysis
    if reference is not None and analysis.out != reference.out:
        return f"its results are {analysis.out} in place of {reference.out}: what changes the result is not a tile size"
    return str(analysis.errors[0]) if analysis.errors else ""


def _name(fn: Function) -> str:
    if isinstance(fn, NamedFunction):
        place, _, name = fn.text.rpartition(":")
        return f"{place.removesuffix('.py').replace('/', '.').rpartition('.')[2]}.{name}"
    inner, _ = without_jit_options(fn)
    inner = inner.func if isinstance(inner, partial) else inner
    return f"{getattr(inner, '__module__', '') or ''}.{function_name(fn)}".strip(".")


def _arguments(args: Sequence[Any]) -> tuple[str, ...]:
    import jax

    result = []
    for leaf, value in zip(jax.tree.leaves(abstract_arguments(args)), argument_values(args), strict=True):
        words = [str(leaf.dtype), ",".join(map(str, leaf.shape))]
        if value is not None:
            words.append(hashlib.sha256(value.tobytes()).hexdigest()[:16])
        result.append(" ".join(words).strip())
    return tuple(result)


def _features(config: FunctionConfig, over: Mapping[str, Sequence[Any]]) -> tuple[float, ...]:
    """Return a variant's coordinates: octaves of its sizes; for other values their index.

    The unchanged function is placed in the middle, because its sizes are not known.
    """
    chosen = config.arguments
    return tuple(
        _octave(chosen[name], values)
        if name in chosen
        else float(np.mean([_octave(value, values) for value in values]))
        for name, values in over.items()
    )


def _octave(value: Any, values: Sequence[Any]) -> float:
    sizes = value if isinstance(value, tuple) else (value,)
    if all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        return float(np.sum(np.log2(sizes)))
    return float(list(values).index(value))
