"""`systolic.tune`: search the fastest configuration of a product, or the fastest static arguments of any function."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from systolic.chips import Chip
from systolic.compiler import NamedFunction
from systolic.spec import Spec
from systolic.store import FunctionConfigError, TrialStore
from systolic.support.bugs import reports_bugs
from systolic.support.call_errors import WrongCallError
from systolic.timing.runner import Submit
from systolic.tuning.function import tune_function
from systolic.tuning.function_result import FunctionTuning
from systolic.tuning.product import tune_product
from systolic.tuning.result import TuningResult
from systolic.tuning.search import COMPILE_LIMIT_S, MAX_TRIALS, Effort, Watcher

_EFFORT = {field.name for field in dataclasses.fields(Effort)}


class TuneCallError(WrongCallError, TypeError):
    """`tune` was called with an argument that it does not accept."""


@overload
def tune(
    what: Spec,
    /,
    chip: str | Chip = "v5e",
    *,
    trials: int = MAX_TRIALS,
    time_budget_s: float = 120.0,
    exhaustive: bool = False,
    against_xla: bool = True,
    xla_default_flags: bool = False,
    workers: int = 2,
    time_limit_s: float = COMPILE_LIMIT_S,
    memory_limit_bytes: int | None = None,
    store: TrialStore | None = None,
    submit: Submit | None = None,
    measured: int = 0,
    watcher: Watcher | None = None,
) -> TuningResult: ...


@overload
def tune(
    what: Callable[..., Any] | NamedFunction,
    /,
    *args: Any,
    over: Mapping[str, Sequence[Any]],
    chip: str | Chip = "v5e",
    trials: int = MAX_TRIALS,
    time_budget_s: float = 120.0,
    exhaustive: bool = False,
    workers: int = 2,
    time_limit_s: float = COMPILE_LIMIT_S,
    memory_limit_bytes: int | None = None,
    store: TrialStore | None = None,
    submit: Submit | None = None,
    watcher: Watcher | None = None,
) -> FunctionTuning: ...


@reports_bugs
def tune(what: Any, /, *args: Any, over: Mapping[str, Sequence[Any]] | None = None, **options: Any) -> Any:
    """Return the fastest way to compute something on an absent chip, by simulated time.

    For a product, it is a configuration of this package's kernels; for any JAX function with static arguments, such as
    block sizes, it is a choice of these:

        systolic.tune(systolic.MatmulSpec.of(2048, 2048, 2048, "bfloat16"), "v6e").config
        systolic.tune(attention, q, k, v, over={"block_q": (128, 256, 512)}, chip="v6e").partial

    Combinations of static arguments that break a rule of `check` with grade error, or change the shape of the result,
    are left out before anything is compiled, and listed in the result.

    Args:
      what: a spec of any op, with an activation that systolic has a name for; or a function that
        `jax.jit` takes, whose keyword arguments named in `over` are static.
      args: for a function, arrays or `jax.ShapeDtypeStruct`s; for a spec, the chip.
      over: for a function, the values to choose from, by keyword argument: numbers, text, booleans, None, or tuples.
      chip: a name such as "v6e" (`systolic chips` lists them), or your own record.
      trials: maximal number of trials, with stored ones and the unchanged function.
      time_budget_s: seconds after which no trial is started.
      exhaustive: try everything legal, however long it takes; `trials` and `time_budget_s` are ignored.
      against_xla: for a product, compile XLA's program too, with its default flags and with 64 MiB of scoped VMEM; the
        faster counts; it is not a trial.
      xla_default_flags: compile XLA's program with its default flags only; the store does not keep its time then.
      workers: number of processes that compile.
      time_limit_s: seconds of CPU time for one trial.
      memory_limit_bytes: for each process; None: an equal share of the machine's free memory.
      store: stores every trial; None: the store of the planner in use, or else the user's.
      submit: compiles and simulates elsewhere; None: in worker processes here.
      measured: for a product, the number of best trials to run, with XLA's program, on the attached TPU at the end;
        the winner is then the best of these by the device's clock.
      watcher: called for every trial.

    Returns:
      A `TuningResult` for a product, and a `FunctionTuning` for a function.

    Raises:
      TuneCallError: there is no such argument.
      SpecError: a fused function cannot be built from its description.
      FunctionConfigError: `over` is missing, or names no values, too many, or values that cannot be stored.
      UnknownChipError, UnsupportedDtypeError: no such chip, or a record that is not registered (`chips.register`); the
        chip does not multiply these dtypes.
      FlagError: the chip has the user's own compiler flags.
      IllegalTilesError: no configuration of a product is legal.
      StoreError: the store cannot be read or written; raised before anything is compiled.
      NoDeviceError: `measured` was passed, and no such chip is attached.
      StalledError: no trial has ended for far longer than one may take, because all workers of a cluster are lost.
      Stopped: Ctrl-C was pressed; it is a `KeyboardInterrupt`, whose `finished` is the result so far.
      SystolicBug: this package is at fault, not the caller.
    """
    effort = Effort(**{name: options.pop(name) for name in _EFFORT & set(options)})
    if over is not None:
        return _called(tune_function, what, args, over=over, effort=effort, **options)
    if callable(what) or isinstance(what, NamedFunction):
        raise FunctionConfigError("a function is tuned over static arguments: give over={'block_q': (128, 256)}")
    return _called(tune_product, what, *args, effort=effort, **options)


def _called(function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        argument_names = sorted({*signature.parameters, *_EFFORT} - {"spec", "fn", "args", "effort"})
        raise TuneCallError(f"tune: {error}; its arguments are {', '.join(argument_names)}") from None
    return function(*args, **keywords)
