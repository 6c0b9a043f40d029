"""What if the function were changed: looks at many changes in the traced program, simulates the most promising."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from systolic.chips import Chip, SliceShape
from systolic.compiler import (
    CompilerError,
    NamedFunction,
    WorkerPool,
    abstract_arguments,
    argument_values,
    tracing_settings,
)
from systolic.explaining.candidates import Candidate, Sizes, call_candidates, tile_candidate, tile_sizes
from systolic.explaining.explanation import Communication
from systolic.explaining.function_analysis import FunctionAnalysis, analyse_function
from systolic.explaining.meshes import MeshCandidate
from systolic.explaining.resizing import WithKeywords
from systolic.timing.experiment import Experiment
from systolic.timing.runner import QUIET, Progress, Runner

Function = Callable[..., Any] | NamedFunction

_CHUNK = 8  # candidates that a worker looks at in one go
_MOST_LOOKED_AT = 160
_WORTH_COMBINING = 0.005  # share of the time that a change must save to be tried together with others


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A change that was simulated, or refused."""

    candidate: Candidate
    time_us: float | None
    hbm_bytes: int = 0
    reason: str = ""
    communication: Communication | None = None  # on a slice


@dataclass(slots=True, kw_only=True)
class WhatIfSearch:
    """Simulates changes of `fn(*args)` on one chip, or on a slice.

    Attributes:
      pool: workers.
      tries: the most changes to simulate.
      shape: of the slice; None: it runs on one device.
      progress: is told of every simulation.
    """

    pool: WorkerPool
    fn: Function
    args: Sequence[Any]
    chip: Chip
    tries: int
    shape: SliceShape | None = None
    progress: Progress = QUIET
    tried: list[WhatIf] = field(default_factory=list)

    def run(self, now: FunctionAnalysis, time_us: float) -> list[WhatIf]:
        """Tries changes and returns all of them, the fastest first.

        Args:
          now: the function as it is.
          time_us: the time that it takes.
        """
        promising = self._promising(now)
        calls = call_candidates(now, self.chip)[: self.tries - bool(promising)]
        first = _first(promising, (2 * (self.tries - len(calls)) + 2) // 3)
        self._simulate([*calls, *first])
        self._neighbours(promising, self.tries - len(self.tried) - bool(calls))  # one is for the best of both together
        if self.tries > len(self.tried):
            self._combine(calls, time_us)
        self._neighbours(promising, self.tries - len(self.tried))
        return sorted(self.tried, key=tried_time)

    def _neighbours(self, promising: Sequence[Candidate], most: int) -> None:
        """Simulates choices of tiles that differ in one parameter from the fastest so far."""
        best, known = min(self.tried, key=tried_time, default=None), [each.candidate for each in self.tried]
        if best is None or best.time_us is None or not best.candidate.sizes or most < 1:
            return
        near = [each for each in promising if _distance(each.sizes, best.candidate.sizes) == 1]
        self._simulate([each for each in near if each not in known][:most])

    def _promising(self, now: FunctionAnalysis) -> list[Candidate]:
        """Lists candidates of other tile sizes that no rule forbids, the one with the least modelled time first."""
        alone = self._looked_at(tile_sizes(now.parameters, [1]))
        # A number that changes nothing by itself only looks like a tile size: BlockSizes has those of the gradient too.
        # One that may not be changed by itself may be together with others.
        idle = {sizes[0][0] for sizes, known in alone if known is not None and known.program == now.program}
        live = [each for each in now.parameters if each not in idle]
        rest = tile_sizes(live, [2, 3])[: max(0, _MOST_LOOKED_AT - len(alone))]
        found: list[tuple[Candidate, float]] = []
        for each, known in (*alone, *self._looked_at(rest)):
            if known is not None and known.program != now.program:
                candidate = tile_candidate(each, known, now, self.chip)
                if candidate is not None:
                    found.append((candidate, known.modelled_us))
        return [candidate for candidate, _ in sorted(found, key=lambda each: each[1])]

    def _looked_at(self, sizes: Sequence[Sizes]) -> list[tuple[Sizes, FunctionAnalysis | None]]:
        """Traces the function with each of these sizes; None where that cannot be, or a rule forbids it."""
        shapes, values = abstract_arguments(self.args, shardings=self.shape is not None), argument_values(self.args)
        settings = tracing_settings()
        chunks = [sizes[at : at + _CHUNK] for at in range(0, len(sizes), _CHUNK)]
        jobs = [
            self.pool.submit(
                analyse_sizes, self.fn, chunk, shapes, values, self.chip, settings, self.shape, label="looking at tiles"
            )
            for chunk in chunks
        ]
        found: list[tuple[Sizes, FunctionAnalysis | None]] = []
        for chunk, job in zip(chunks, jobs, strict=True):
            try:
                found += zip(chunk, job.result(), strict=True)
            except CompilerError:  # a worker that died over one of them: the others are not worth dying for
                continue
        return found

    def _simulate(self, candidates: Sequence[Candidate]) -> None:
        self.tried += self._simulated([(each, each.applied(self.fn), self.args) for each in candidates])

    def run_meshes(self, meshes: Sequence[MeshCandidate]) -> list[WhatIf]:
        """Tries other meshes and shardings, as many as may be tried of other changes, and returns them."""
        return self._simulated([(each.candidate, each.fn, each.args) for each in meshes[: self.tries]])

    def _simulated(self, calls: Sequence[tuple[Candidate, Function, Sequence[Any]]]) -> list[WhatIf]:
        """Simulates functions with their arguments, each for the change that it is."""
        topology = self.shape.name if self.shape is not None else None
        outcomes = Runner(self.pool, self.progress).run(
            Experiment(fn=fn, args=args, chip=self.chip, topology=topology, label=candidate.title)
            for candidate, fn, args in calls
        )
        return [
            WhatIf(
                candidate=candidate,
                time_us=outcome.time_us,
                hbm_bytes=outcome.hbm_bytes or 0,
                reason=outcome.located_reason,
                communication=Communication.of(outcome.slice_run) if outcome.slice_run is not None else None,
            )
            for (candidate, _, _), outcome in zip(calls, outcomes, strict=True)
        ]

    def _combine(self, calls: Sequence[Candidate], time_us: float) -> None:
        """Simulates the best tiles together with the changes of calls that help by themselves."""
        helpful = [
            each.candidate
            for each in self.tried
            if each.candidate in calls and each.time_us is not None and each.time_us < time_us * (1 - _WORTH_COMBINING)
        ]
        best = min((each for each in self.tried if each.candidate.sizes), key=tried_time, default=None)
        if best is None or best.time_us is None or best.time_us >= time_us or not helpful:
            return
        sites = {change.site for change in best.candidate.changes}
        added = [each for each in helpful if not sites & {change.site for change in each.changes}][:1]
        for each in added:
            both = Candidate(
                title=f"{best.candidate.title}, {each.title}",
                change=f"{best.candidate.change}, {each.change}",
                why="both together",
                sizes=best.candidate.sizes,
                changes=(*best.candidate.changes, *each.changes),
                where=each.where,
            )
            self._simulate([both])


def tried_time(tried: WhatIf) -> float:
    """The time of a change, to sort by: what has none comes last."""
    return float("inf") if tried.time_us is None else tried.time_us


def _first(promising: Sequence[Candidate], count: int) -> list[Candidate]:
    """Picks what to simulate first: the most promising, some of which need no more VMEM than the default."""
    modest = [each for each in promising if not each.changes][: count // 3]
    return [each for each in promising if each not in modest][: count - len(modest)] + modest


def analyse_sizes(
    fn: Function,
    sizes: Sequence[Sizes],
    args: Sequence[Any],
    values: Sequence[np.ndarray | None],
    chip: Chip,
    settings: Mapping[str, Any],
    shape: SliceShape | None,
) -> list[FunctionAnalysis | None]:
    """Analyses the function with each of these tile sizes; None where it does not even trace. For a worker."""
    found: list[FunctionAnalysis | None] = []
    for each in sizes:
        try:
            known = analyse_function(WithKeywords(fn, dict(each)), args, values, chip, settings, shape)
        except Exception:  # noqa: BLE001 -- sizes that the function refuses, each in its own way: no candidate
            found.append(None)
            continue
        forbidden = [error for error in known.errors if error.rule != "vmem"]
        found.append(None if forbidden else known)
    return found


def _distance(sizes: Sizes, others: Sizes) -> int:
    """Counts the parameters in which two choices differ."""
    mine, theirs = dict(sizes), dict(others)
    return sum(mine.get(name) != theirs.get(name) for name in {**mine, **theirs})
