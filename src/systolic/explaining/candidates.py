"""What could be changed of a function: tile sizes, the order of the grid, parallel axes, buffers, the VMEM limit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.chips import Chip
from systolic.compiler import NamedFunction
from systolic.explaining.parameters import TileParameter, WithKeywords
from systolic.explaining.rewriting import CallChange, ChangedFunction
from systolic.explaining.study import CallFacts, Study
from systolic.schedule import MIB

# Of each tile size these multiples are tried, and the whole dimension.
_FACTORS = (0.25, 0.5, 2, 4)
_MOST_COMBINED = 3  # parameters of which all combinations are tried; of more, one and two at a time
_LEAST_TILE = 8

# Of a core's VMEM, what a kernel is offered when it needs more than the default. Something is left for XLA.
_OFFERED = 0.9

# A kernel that is estimated to take more of its limit than this is offered more: the compiler's own need is uncertain.
_NEARLY_ALL = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One change, or several that belong together.

    Attributes:
      title: one line.
      change: what to write, as the user would.
      why: what is expected of it.
      sizes: tile sizes by parameter.
      changes: of Pallas calls.
      where: the line of the call that it is about.
    """

    title: str
    change: str
    why: str
    sizes: tuple[tuple[TileParameter, int], ...] = ()
    changes: tuple[CallChange, ...] = ()
    where: str = ""

    def applied(self, fn: Callable[..., Any] | NamedFunction) -> Callable[..., Any] | NamedFunction:
        """The function with the change made."""
        made: Callable[..., Any] | NamedFunction = WithKeywords(fn, dict(self.sizes)) if self.sizes else fn
        return ChangedFunction(made, self.changes) if self.changes else made


def tile_sizes(parameters: Sequence[TileParameter]) -> list[tuple[tuple[TileParameter, int], ...]]:
    """Combinations of tile sizes to look at: multiples of what they are now, inside of the arrays."""
    options = {parameter: _sizes(parameter) for parameter in parameters}
    found: dict[tuple[tuple[TileParameter, int], ...], None] = {}
    together = min(len(parameters), _MOST_COMBINED if len(parameters) <= _MOST_COMBINED else 2)
    for count in range(1, together + 1):
        for chosen in itertools.combinations(parameters, count):
            for values in itertools.product(*(options[parameter] for parameter in chosen)):
                found[tuple(zip(chosen, values, strict=True))] = None
    return list(found)


def _sizes(parameter: TileParameter) -> list[int]:
    sizes = {int(parameter.value * factor) for factor in _FACTORS}
    if parameter.most and parameter.most <= parameter.value * _FACTORS[-1]:
        sizes.add(parameter.most)
    most = parameter.most or parameter.value * _FACTORS[-1]
    return sorted(size for size in sizes if _LEAST_TILE <= size <= most and size != parameter.value)


def tile_candidate(
    sizes: tuple[tuple[TileParameter, int], ...], study: Study, now: Study, chip: Chip
) -> Candidate | None:
    """Tiles of these sizes, with the VMEM limit that they need; None if a core has not as much, or if the result is
    of another shape: then the parameter is no size of tiles alone.

    Args:
      sizes: by parameter.
      study: of the function with these tiles.
      now: of the function as it is.
      chip: where it is to run.
    """
    if study.out != now.out:
        return None
    changes = []
    for call in study.calls:
        if call.vmem_bytes <= _NEARLY_ALL * call.vmem_limit_bytes:
            continue
        if call.vmem_bytes > _OFFERED * chip.vmem_bytes_per_core:
            return None
        changes.append(CallChange(site=call.site, vmem_limit_bytes=_offer(chip)))
    words = [f"{parameter}={size}" for parameter, size in sizes]
    limit = [f"vmem_limit_bytes={_offer(chip)}"] if changes else []
    return Candidate(
        title=" ".join(words + (["with more VMEM"] if limit else [])),
        change=", ".join(words + limit),
        why=f"{_work(study)}, in place of {_work(now)}",
        sizes=sizes,
        changes=tuple(changes),
    )


def _work(study: Study) -> str:
    """Steps and traffic of all kernels of a function."""
    steps = sum(math.prod(call.grid) for call in study.calls if call.grid is not None)
    moved = sum(call.moved_bytes for call in study.calls if call.moved_bytes is not None)
    return f"{steps:,} steps and {moved / 1e6:,.1f} MB"


def call_candidates(study: Study, chip: Chip) -> list[Candidate]:
    """Changes of the calls' own parameters."""
    return [candidate for call in study.calls for candidate in _of_call(call, chip)]


def _of_call(call: CallFacts, chip: Chip) -> list[Candidate]:
    found = []
    for order in call.orders[:2]:
        if call.moved_bytes is not None and order.moved_bytes < call.moved_bytes:
            found.append(
                Candidate(
                    title=f"grid axes of {call.name} in the order {_axes(order.order)}",
                    change=f"grid order {_axes(order.order)}, in grid, index maps and program_id",
                    why=f"blocks move {order.moved_bytes / 1e6:,.1f} MB in place of {call.moved_bytes / 1e6:,.1f}",
                    changes=(CallChange(site=call.site, order=order.order),),
                    where=call.where,
                )
            )
    semantics = _shared_out(call)
    if chip.cores_per_device > 1 and semantics is not None:
        found.append(
            Candidate(
                title=f"both cores for {call.name}",
                change=f"dimension_semantics=({', '.join(repr(each) for each in semantics)})",
                why=f"no axis is parallel, so one of {chip.cores_per_device} cores idles",
                changes=(CallChange(site=call.site, semantics=semantics),),
                where=call.where,
            )
        )
    if call.single:
        found.append(
            Candidate(
                title=f"two buffers in {call.name}",
                change="without pipeline_mode=pl.Buffered(1)",
                why="with one buffer a block is copied while nothing else happens",
                changes=(CallChange(site=call.site, buffers=tuple((at, 2) for at in call.single)),),
                where=call.where,
            )
        )
    if call.sum_axes:
        found.append(
            Candidate(
                title=f"the sum of {call.name} in scratch memory",
                change="scratch_shapes=[pltpu.VMEM(block, dtype)]: sum there, copy it to the output at the last step",
                why="the output block exists twice and is written at each step; scratch memory exists once",
                changes=(CallChange(site=call.site, sum_axes=call.sum_axes),),
                where=call.where,
            )
        )
    if not call.sets_limit:
        found.append(
            Candidate(
                title=f"more VMEM for {call.name}",
                change=f"vmem_limit_bytes={_offer(chip)}",
                why=f"the default is {call.vmem_limit_bytes / MIB:.0f} MiB of {chip.vmem_bytes_per_core / MIB:.0f}",
                changes=(CallChange(site=call.site, vmem_limit_bytes=_offer(chip)),),
                where=call.where,
            )
        )
    return found


def _shared_out(call: CallFacts) -> tuple[str, ...] | None:
    """Semantics with the first axes parallel, as far as they are independent; None where none is, or one is already."""
    if any(each != "arbitrary" for each in call.semantics) or not call.independent or call.grid is None:
        return None
    ahead = list(itertools.takewhile(lambda at: call.independent[at], range(len(call.independent))))
    if not any(call.grid[at] > 1 for at in ahead):
        return None
    return tuple("parallel" if at in ahead else "arbitrary" for at in range(len(call.independent)))


def _axes(order: Sequence[int]) -> str:
    return "(" + ", ".join(map(str, order)) + ")"


def _offer(chip: Chip) -> int:
    """Bytes of VMEM to offer a kernel: whole MiB."""
    return int(chip.vmem_bytes_per_core * _OFFERED) // MIB * MIB
