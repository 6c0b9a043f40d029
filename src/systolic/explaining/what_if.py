"""Try changes of a function: look at many in the traced program, and simulate the most promising."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from systolic.compiler import (
    CompilerError,
    WorkerPool,
)
from systolic.explaining.candidates import Candidate, Sizes, call_candidates, tile_candidate, tile_sizes
from systolic.explaining.explanation import Communication
from systolic.explaining.function_analysis import FunctionAnalysis, analyse_function
from systolic.explaining.meshes import MeshCandidate
from systolic.explaining.request import ExplainRequest, Function
from systolic.explaining.resizing import WithKeywords
from systolic.timing import Call
from systolic.timing.experiment import Experiment
from systolic.timing.runner import QUIET, Progress, Runner

_CHUNK = 8  # candidates that a worker looks at in one go
_MAX_ANALYSES = 160
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
    """Simulates changes of the function of a request."""

    pool: WorkerPool
    request: ExplainRequest
    progress: Progress = QUIET  # notified of every simulation
    tried: list[WhatIf] = field(default_factory=list)

    def run(self, now: FunctionAnalysis, time_us: float) -> list[WhatIf]:
        """Try changes, and return all of them, the fastest first."""
        promising, tries = self._promising(now), self.request.tries
        calls = call_candidates(now, self.request.chip)[: tries - bool(promising)]
        first = _first(promising, (2 * (tries - len(calls)) + 2) // 3)
        self._simulate([*calls, *first])
        self._neighbours(promising, tries - len(self.tried) - bool(calls))  # one is for the best of both together
        if tries > len(self.tried):
            self._combine(calls, time_us)
        self._neighbours(promising, tries - len(self.tried))
        return sorted(self.tried, key=tried_time)

    def _neighbours(self, promising: Sequence[Candidate], limit: int) -> None:
        """Simulate choices of tiles that differ in one parameter from the fastest so far."""
        best, tried_candidates = (
            min(self.tried, key=tried_time, default=None),
            [result.candidate for result in self.tried],
        )
        if best is None or best.time_us is None or not best.candidate.sizes or limit < 1:
            return
        near = [candidate for candidate in promising if _distance(candidate.sizes, best.candidate.sizes) == 1]
        self._simulate([candidate for candidate in near if candidate not in tried_candidates][:limit])

    def _promising(self, now: FunctionAnalysis) -> list[Candidate]:
        """List candidates of other tile sizes that no rule forbids, the one with the least modelled time first."""
        alone = self._looked_at(tile_sizes(now.parameters, [1]))
        # A number that changes nothing alone only looks like a tile size: BlockSizes has sizes of the gradient too. A
        # number that cannot be changed alone may change together with others.
        idle = {sizes[0][0] for sizes, analysis in alone if analysis is not None and analysis.program == now.program}
        live = [parameter for parameter in now.parameters if parameter not in idle]
        rest = tile_sizes(live, [2, 3])[: max(0, _MAX_ANALYSES - len(alone))]
        candidates: list[tuple[Candidate, float]] = []
        for sizes_of_candidate, analysis in (*alone, *self._looked_at(rest)):
            if analysis is not None and analysis.program != now.program:
                candidate = tile_candidate(sizes_of_candidate, analysis, now, self.request.chip)
                if candidate is not None:
                    candidates.append((candidate, analysis.modelled_us))
        return [candidate for candidate, _ in sorted(candidates, key=lambda pair: pair[1])]

    def _looked_at(self, sizes: Sequence[Sizes]) -> list[tuple[Sizes, FunctionAnalysis | None]]:
        """Trace the function with each of these sizes; None where that cannot be, or a rule forbids it."""
        request = self.request
        call = Call.described(request.fn, request.args, request.chip, request.shape)
        chunks = [sizes[at : at + _CHUNK] for at in range(0, len(sizes), _CHUNK)]
        jobs = [self.pool.submit(analyse_sizes, call, chunk, label="looking at tiles") for chunk in chunks]
        analyses: list[tuple[Sizes, FunctionAnalysis | None]] = []
        for chunk, job in zip(chunks, jobs, strict=True):
            try:
                analyses += zip(chunk, job.result(), strict=True)
            except CompilerError:  # a worker that died over one of them: the others are not worth dying for
                continue
        return analyses

    def _simulate(self, candidates: Sequence[Candidate]) -> None:
        self.tried += self._simulated(
            [(candidate, candidate.applied(self.request.fn), self.request.args) for candidate in candidates]
        )

    def run_meshes(self, meshes: Sequence[MeshCandidate]) -> list[WhatIf]:
        """Try up to `tries` other meshes and shardings, and return them."""
        return self._simulated(
            [(mesh_change.candidate, mesh_change.fn, mesh_change.args) for mesh_change in meshes[: self.request.tries]]
        )

    def _simulated(self, calls: Sequence[tuple[Candidate, Function, Sequence[Any]]]) -> list[WhatIf]:
        """Simulate functions with their arguments, each for the change that it is."""
        chip, topology = self.request.chip, self.request.topology
        outcomes = Runner(self.pool, self.progress).run(
            Experiment(fn=fn, args=args, chip=chip, topology=topology, label=candidate.title)
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
        """Simulate the best tiles together with the changes of calls that help alone."""
        helpful = [
            result.candidate
            for result in self.tried
            if result.candidate in calls
            and result.time_us is not None
            and result.time_us < time_us * (1 - _WORTH_COMBINING)
        ]
        best = min((result for result in self.tried if result.candidate.sizes), key=tried_time, default=None)
        if best is None or best.time_us is None or best.time_us >= time_us or not helpful:
            return
        sites = {change.site for change in best.candidate.changes}
        added = [candidate for candidate in helpful if not sites & {change.site for change in candidate.changes}][:1]
        for candidate in added:
            both = Candidate(
                title=f"{best.candidate.title}, {candidate.title}",
                change=f"{best.candidate.change}, {candidate.change}",
                why="both together",
                sizes=best.candidate.sizes,
                changes=(*best.candidate.changes, *candidate.changes),
                where=candidate.where,
            )
            self._simulate([both])


def tried_time(tried: WhatIf) -> float:
    """Return the time of a change as a sort key: changes without a time come last."""
    return float("inf") if tried.time_us is None else tried.time_us


def _first(promising: Sequence[Candidate], count: int) -> list[Candidate]:
    """Pick what to simulate first: the most promising, some of them with no more VMEM than the default."""
    modest = [candidate for candidate in promising if not candidate.changes][: count // 3]
    return [candidate for candidate in promising if candidate not in modest][: count - len(modest)] + modest


def analyse_sizes(call: Call, sizes: Sequence[Sizes]) -> list[FunctionAnalysis | None]:
    """Analyze the function with each of these tile sizes; None if it cannot be traced. For a worker."""
    analyses: list[FunctionAnalysis | None] = []
    for changed_sizes in sizes:
        try:
            analysis = analyse_function(replace(call, fn=WithKeywords(call.fn, dict(changed_sizes))))
        except Exception:  # noqa: BLE001 -- sizes that the function refuses, each in its own way: no candidate
            analyses.append(None)
            continue
        forbidden = [error for error in analysis.errors if error.rule != "vmem"]
        analyses.append(None if forbidden else analysis)
    return analyses


def _distance(sizes: Sizes, others: Sizes) -> int:
    """Count the parameters in which two choices differ."""
    mine, theirs = dict(sizes), dict(others)
    return sum(mine.get(name) != theirs.get(name) for name in {**mine, **theirs})
