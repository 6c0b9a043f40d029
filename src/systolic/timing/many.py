"""Simulate many functions, or one with many arguments, in several processes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from systolic.chips import Chip, SliceShape
from systolic.chips import chip as chip_named
from systolic.compiler import WorkerPool, function_name
from systolic.support.bugs import reports_bugs
from systolic.timing.experiment import Experiment
from systolic.timing.outcome import Outcome
from systolic.timing.runner import Progress, Runner


class CallError(ValueError):
    """A call to simulate is not a function with a tuple of its arguments."""


class _Told(Progress):
    """Calls a function for each experiment that ends."""

    def __init__(self, done: Callable[[str], object]) -> None:
        self._done = done

    def done(self, label: str) -> None:
        self._done(label)


@reports_bugs
def simulate_many(
    calls: Iterable[tuple[Callable[..., Any], Sequence[Any]]],
    *,
    chip: str | Chip = "v5e",
    topology: str | None = None,
    workers: int = 2,
    spans: int = 0,
    cached: bool = True,
    time_limit_s: float = 300,
    memory_limit_bytes: int | None = None,
    done: Callable[[str], object] = lambda _: None,
) -> list[Outcome]:
    """Simulate many calls as `simulate` does one, several at a time.

    Args:
      calls: functions, each with its arguments: `[(fn, (x, y)) for x, y in sizes]`, or
        `[(functools.partial(fn, tile_m=tile), (x, y)) for tile in tiles]`.
      chip: a name such as "v6e", or your own record.
      topology: a slice of such chips, such as "2x4", over which the functions are sharded; None: one device.
      workers: number of processes that compile and simulate; each keeps about one core busy.
      spans: number of timeline spans of each kind to keep, from the beginning and from the end.
      cached: reuse stored programs, and store new ones.
      time_limit_s: seconds of CPU time after which the compiler is stopped, for each call.
      memory_limit_bytes: for a compiler process and its children; None: an equal share of the machine's memory.
      done: called for each call that has ended, with text such as "matmul for v6e (3 of 20)", from any thread.

    Returns:
      The outcome of each call, in the order of the calls: `outcome.run` and `outcome.time_us`, of a slice
      `outcome.slice_run` too, or, where there is no time, `outcome.status` and `outcome.reason`. `outcome.required()`
      gives the run or raises what `simulate` would.

    Raises:
      CallError: a call is not a pair of a function and its arguments.
      UnknownChipError: no such chip.
      SliceError: no such slice of it.
      CompilerMissing: there is no TPU compiler on the machine.
      SystolicBug: this package is at fault, and not a function.
    """
    target_chip = chip_named(chip)
    if topology is not None:
        SliceShape.parse(target_chip, topology)
    all_calls = list(calls)
    for number, call in enumerate(all_calls, 1):
        # An array in place of the tuple would count as one argument per row.
        if not (isinstance(call, tuple) and len(call) == 2 and callable(call[0]) and isinstance(call[1], tuple | list)):
            raise CallError(f"call {number} is not a function with a tuple of its arguments, as in (fn, (x, y))")
    experiments = [
        Experiment(
            fn=fn,
            args=args,
            chip=target_chip,
            topology=topology,
            label=f"{function_name(fn)} for {target_chip.name} ({number} of {len(all_calls)})",
            spans=spans,
            cached=cached,
        )
        for number, (fn, args) in enumerate(all_calls, 1)
    ]
    with WorkerPool(workers, time_limit_s, memory_limit_bytes) as pool:
        return Runner(pool, _Told(done)).run(experiments)
