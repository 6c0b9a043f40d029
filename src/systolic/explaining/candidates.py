"""List changes of a function to try: tile sizes, the order of the grid, parallel axes, buffers, the VMEM limit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.chips import Chip
from systolic.compiler import NamedFunction
from systolic.compiler.jit_options import with_options_of, without_jit_options
from systolic.explaining.call_analysis import CallAnalysis
from systolic.explaining.function_analysis import FunctionAnalysis
from systolic.explaining.parameters import TileParameter
from systolic.explaining.resizing import WithKeywords
from systolic.explaining.rewriting import CallChange, ChangedFunction
from systolic.schedule import MIB

# Multiples of each tile size that are tried, in addition to the whole dimension.
_FACTORS = (0.25, 0.5, 2, 4)
_MAX_COMBINATIONS = 3  # parameters that are tried in all combinations; more are tried one and two at a time
_MIN_TILE_SIZE = 8

# The share of a core's VMEM that a kernel is offered when it needs more than the default. The rest is for XLA.
_OFFERED = 0.9

# A kernel whose estimate exceeds this share of its limit is offered more: what the compiler adds is uncertain.
_NEARLY_ALL = 0.85


Sizes = tuple[tuple[TileParameter, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One change, or several that belong together."""

    title: str  # one line
    change: str  # source text, as the user would write it
    why: str  # the expected effect
    sizes: Sizes = ()  # tile sizes by parameter
    changes: tuple[CallChange, ...] = ()  # changes of Pallas calls
    where: str = ""  # the line of the call that it is about

    def applied(self, fn: Callable[..., Any] | NamedFunction) -> Callable[..., Any] | NamedFunction:
        """Make the change to a function."""
        inner, _ = without_jit_options(fn)
        made: Callable[..., Any] = WithKeywords(inner, dict(self.sizes)) if self.sizes else inner
        return with_options_of(fn, ChangedFunction(made, self.changes) if self.changes else made)


def tile_sizes(parameters: Sequence[TileParameter], counts: Sequence[int] = (1, 2, 3)) -> list[Sizes]:
    """List combinations of tile sizes to try: multiples of the current ones, no larger than the arrays.

    `counts` has the numbers of parameters that are changed together; of many parameters, only one or two.
    """
    options = {parameter: _sizes(parameter) for parameter in parameters}
    combinations: dict[Sizes, None] = {}
    together = min(len(parameters), _MAX_COMBINATIONS if len(parameters) <= _MAX_COMBINATIONS else 2)
    for count in counts:
        for chosen in itertools.combinations(parameters, count) if count <= together else ():
            for values in itertools.product(*(options[parameter] for parameter in chosen)):
                combinations[tuple(zip(chosen, values, strict=True))] = None
    return list(combinations)


def _sizes(parameter: TileParameter) -> list[int]:
    sizes = {int(parameter.value * factor) for factor in _FACTORS}
    if parameter.largest and parameter.largest <= parameter.value * _FACTORS[-1]:
        sizes.add(parameter.largest)
    largest = parameter.largest or parameter.value * _FACTORS[-1]
    return sorted(size for size in sizes if _MIN_TILE_SIZE <= size <= largest and size != parameter.value)


def tile_candidate(sizes: Sizes, changed: FunctionAnalysis, now: FunctionAnalysis, chip: Chip) -> Candidate | None:
    """Make a candidate of these tile sizes, with the VMEM limit that they need.

    None if a core has less VMEM, or if the result has another shape: then the parameter is not only a tile size.
    """
    if changed.out != now.out:
        return None
    changes = []
    for call in changed.calls:
        if call.vmem_bytes <= _NEARLY_ALL * call.vmem_limit_bytes:
            continue
        if call.vmem_bytes > _OFFERED * chip.vmem_bytes_per_core:
            return None
        changes.append(CallChange(site=call.site, vmem_limit_bytes=_offer(chip)))
    words = [f"{parameter}={size}" for parameter, size in sizes]
    homes = [parameter.home for parameter, _ in sizes if parameter.home is not None]
    limit = [f"vmem_limit_bytes={_offer(chip)}"] if changes else []
    return Candidate(
        title=" ".join(words + (["with more VMEM"] if limit else [])),
        change=", ".join(
            [f"{word}{_of(parameter)}" for word, (parameter, _) in zip(words, sizes, strict=True)] + limit
        ),
        why=f"{_steps_and_traffic(changed)}, in place of {_steps_and_traffic(now)}",
        sizes=sizes,
        changes=tuple(changes),
        where=homes[0].where if homes else "",
    )


def _of(parameter: TileParameter) -> str:
    """Describe where a tile size is set that is not a keyword argument."""
    home = parameter.home
    if home is None:
        return ""
    return f" (argument of {home.function.rpartition('.')[2]})" if home.function else f" (constant of {home.module})"


def _steps_and_traffic(analysis: FunctionAnalysis) -> str:
    """Count the steps and the traffic of all kernels of a function."""
    steps = sum(math.prod(call.grid) for call in analysis.calls if call.grid is not None)
    moved = sum(call.moved_bytes for call in analysis.calls if call.moved_bytes is not None)
    return f"{steps:,} steps and {moved / 1e6:,.1f} MB"


def call_candidates(analysis: FunctionAnalysis, chip: Chip) -> list[Candidate]:
    """List changes of the calls' own parameters."""
    return [candidate for call in analysis.calls for candidate in _call_candidates(call, chip)]


def _call_candidates(call: CallAnalysis, chip: Chip) -> list[Candidate]:
    candidates: list[Candidate] = []

    def add(title: str, change: str, why: str, **changed: Any) -> None:
        changes = (CallChange(site=call.site, **changed),)
        candidates.append(Candidate(title=title, change=change, why=why, changes=changes, where=call.where))

    for order in call.orders[:2]:
        if call.moved_bytes is not None and order.moved_bytes < call.moved_bytes:
            axes = f"({', '.join(map(str, order.order))})"
            add(
                f"grid axes of {call.name} in the order {axes}",
                f"grid order {axes}, in grid, index maps and program_id",
                f"blocks move {order.moved_bytes / 1e6:,.1f} MB in place of {call.moved_bytes / 1e6:,.1f}",
                order=order.order,
            )
    semantics = _parallel_semantics(call)
    if chip.cores_per_device > 1 and semantics is not None:
        add(
            f"both cores for {call.name}",
            f"dimension_semantics=({', '.join(repr(axis_semantics) for axis_semantics in semantics)})",
            f"no axis is parallel, so one of {chip.cores_per_device} cores idles",
            semantics=semantics,
        )
    if call.single:
        add(
            f"two buffers in {call.name}",
            "without pipeline_mode=pl.Buffered(1)",
            "with one buffer nothing runs while a block is copied",
            buffers=tuple((at, 2) for at in call.single),
        )
    if call.sum_axes:
        add(
            f"the sum of {call.name} in scratch memory",
            "scratch_shapes=[pltpu.VMEM(block, dtype)]: sum there, copy it to the output at the last step",
            "the output block exists twice and is written at each step; scratch memory exists once",
            sum_axes=call.sum_axes,
        )
    if not call.sets_limit:
        add(
            f"more VMEM for {call.name}",
            f"vmem_limit_bytes={_offer(chip)}",
            f"the default is {call.vmem_limit_bytes / MIB:.0f} MiB of {chip.vmem_bytes_per_core / MIB:.0f}",
            vmem_limit_bytes=_offer(chip),
        )
    return candidates


def _parallel_semantics(call: CallAnalysis) -> tuple[str, ...] | None:
    """Make the first independent axes parallel; None if there is none, or if one is parallel already."""
    if (
        any(axis_semantics != "arbitrary" for axis_semantics in call.semantics)
        or not call.independent
        or call.grid is None
    ):
        return None
    ahead = list(itertools.takewhile(lambda at: call.independent[at], range(len(call.independent))))
    if not any(call.grid[at] > 1 for at in ahead):
        return None
    return tuple("parallel" if at in ahead else "arbitrary" for at in range(len(call.independent)))


def _offer(chip: Chip) -> int:
    """Round the VMEM to offer a kernel down to whole MiB."""
    return int(chip.vmem_bytes_per_core * _OFFERED) // MIB * MIB
