"""Race ops against XLA: both programs of a case are compiled by the same compiler and simulated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from systolic.accuracy.time_error import TimeError
from systolic.bench.cases import Case
from systolic.bench.rows import BenchRow, Limits, OurTime, PeerTime, PlannedKernel, RacedCase, XlaTime
from systolic.chips import Chip, UnsupportedDtypeError
from systolic.cost import dtype_on, machine_roofline, roofline
from systolic.ops.collective import plan_across_chips
from systolic.ops.op import op_of
from systolic.ops.op_programs import Peer, RacedPrograms
from systolic.ops.planner import plan
from systolic.schedule import TilesError
from systolic.spec import Spec, SpecError
from systolic.timing.experiment import Experiment
from systolic.timing.on_mesh import on_mesh
from systolic.timing.opponent import MORE_VMEM_FLAGS, with_more_vmem, xla_repeated_us
from systolic.timing.outcome import Outcome
from systolic.timing.runner import Runner, Stopped

Who = str  # "ours", "xla" or "xla: " and one of its forms, these also after "flagged ", or a public kernel's name
Key = tuple[str, Who, Any]  # the chip's name, whose program, and the spec
Against = Literal["all", "xla", "nothing"]

_NOT_RUN = Outcome(label="")
_UNPLANNED = (UnsupportedDtypeError, SpecError, TilesError)


def race(
    cases: Sequence[Case],
    chips: Sequence[Chip],
    runner: Runner,
    *,
    against: Against = "all",
    xla_default_flags: bool = False,
) -> list[BenchRow]:
    """Return a row for every chip and case, in that order. A case that cannot be run is a row with its reason.

    Args:
      runner: runs both programs; programs that several cases share run once.
      against: nothing; XLA's programs, also with 64 MiB of scoped VMEM, the fastest counts; or all, public
        kernels too, where a case has some.
      xla_default_flags: race XLA with the chip's flags only.

    Raises:
      Stopped: by Ctrl-C, with the rows whose programs had all ended.
    """
    fields = [_Field.of(case, chip, against, xla_default_flags) for chip in chips for case in cases]
    experiments: dict[Key, Experiment] = {}
    for field in fields:
        for who, spec, experiment in field.experiments():
            experiments.setdefault((field.chip.name, who, spec), experiment)
    try:
        ended: Sequence[Outcome | None] = runner.run(experiments.values())
    except Stopped as stop:
        ended = stop.finished
    outcomes = {key: outcome for key, outcome in zip(experiments, ended, strict=True) if outcome is not None}
    unfinished = experiments.keys() - outcomes.keys()

    def is_finished(field: _Field) -> bool:
        specs = (field.case.spec, field.case.even)
        return not any(chip == field.chip.name and spec in specs for chip, _, spec in unfinished)

    rows = [field.row(outcomes) for field in fields if is_finished(field)]
    if unfinished:
        raise Stopped(rows) if rows else KeyboardInterrupt
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """The programs of one case on one chip."""

    case: Case
    chip: Chip
    against: Against
    programs: RacedPrograms | None  # None: `error` says why there are none
    error: Exception | None
    peers: Sequence[Peer]  # public kernels
    flagged: Chip | None  # the chip with the further flags that XLA's usual program is raced with

    @classmethod
    def of(cls, case: Case, chip: Chip, against: Against, xla_default_flags: bool) -> _Field:
        programs, error = None, None
        try:
            programs = case.contest.raced(case.spec, chip)
        except _UNPLANNED as reason:
            error = reason
        peers = tuple(case.contest.peers(case.spec, chip)) if against == "all" else ()
        flagged = None if xla_default_flags else with_more_vmem(chip)
        return cls(case=case, chip=chip, against=against, programs=programs, error=error, peers=peers, flagged=flagged)

    @property
    def forms(self) -> Sequence[str]:
        """Ways to write the product in plain JAX; "" is the usual one."""
        return ("", *(() if self.programs is None or self.against == "nothing" else self.programs.xla_forms))

    def experiments(self) -> Iterator[tuple[Who, Any, Experiment]]:
        """Yield the name of the racer, the spec, and the program."""
        spec = self.case.spec
        if self.programs is not None and dtype_on(spec, self.chip) in self.chip.dtypes:
            ours = self._experiment("ours", self.programs, self.programs.ours)
            yield "ours", spec, ours
            if self.flagged is not None and self.case.contest.mesh(spec) is not None:
                # On a mesh XLA computes a part of our program too: collectives, and products that it is left.
                yield "flagged ours", spec, dataclasses.replace(ours, chip=self.flagged, label=f"{ours.label}, flagged")
            if self.against != "nothing":
                yield from ((who, spec, experiment) for who, experiment in self._opponents(self.programs))
        if (even := self.case.even) is not None:
            try:
                programs = self.case.contest.raced(even, self.chip)
            except _UNPLANNED:
                return
            if dtype_on(even, self.chip) in self.chip.dtypes:
                yield "ours", even, self._experiment("ours", programs, programs.ours)

    def _opponents(self, programs: RacedPrograms) -> Iterator[tuple[Who, Experiment]]:
        for form, fn in {"": programs.xla, **programs.xla_forms}.items():
            yield _xla(form), self._experiment(_xla(form), programs, fn)
            # On one device only the usual form is raced with both: suite quantized has three others.
            if self.flagged is not None and (not form or self.case.contest.mesh(self.case.spec) is not None):
                who = _xla(form, flagged=True)
                yield who, dataclasses.replace(self._experiment(who, programs, fn), chip=self.flagged)
        for peer in self.peers:
            if peer.program is not None:
                experiment = self._experiment(peer.name, programs, peer.program)
                if peer.arguments:  # on a slice with shardings of its own, which decide how the result is sharded
                    experiment = dataclasses.replace(experiment, fn=peer.program, args=peer.arguments)
                yield peer.name, experiment

    def _experiment(self, who: Who, programs: RacedPrograms, fn: Any) -> Experiment:
        label = f"{self.chip.name} {self.case.name} {who}"
        experiment = Experiment(fn=fn, args=programs.arguments, chip=self.chip, label=label)
        mesh = self.case.contest.mesh(self.case.spec)
        explicit = who == "ours" or self.case.contest.xla_is_explicit
        return on_mesh(experiment, mesh, programs.shardings, explicit=explicit)

    def row(self, outcomes: Mapping[Key, Outcome]) -> BenchRow:
        def outcome(who: Who, spec: Any) -> Outcome:
            return outcomes.get((self.chip.name, who, spec), _NOT_RUN)

        spec = self.case.spec
        ours, flagged_ours, error = outcome("ours", spec), outcome("flagged ours", spec), self.error
        limits, kernel = Limits(), PlannedKernel()
        try:
            if self.programs is not None:
                limits = _limits(self.case.contest.counted(self.programs.spec), self.chip)
                kernel = self._planned_kernel(self.programs)
        except _UNPLANNED as reason:
            error, limits = reason, Limits()
        ended = ours if error is None or ours is not _NOT_RUN else Outcome.failed(self.case.name, error)
        xla_times: list[XlaTime] = []
        for form in self.forms:
            default = _xla_time(outcome(_xla(form), spec), form=form)
            flagged = _xla_time(outcome(_xla(form, flagged=True), spec), form=form, flags=MORE_VMEM_FLAGS)
            xla_times += default, replace(flagged, without_flags_us=default.repeated_us(limits))
        our_time = _our_time(ours, ended, outcome("ours", self.case.even), limits)
        if (our_time.time_us or 0.0) > (_repeated_us(flagged_ours, limits) or math.inf):
            our_time = _our_time(flagged_ours, flagged_ours, outcome("ours", self.case.even), limits)
            our_time = replace(our_time, flags=MORE_VMEM_FLAGS)
        return BenchRow(
            case=self._raced_case(),
            limits=limits,
            plan=kernel,
            ours=our_time,
            xla=_fastest(xla_times, limits),
            peers=tuple(_peer_time(peer, outcome(peer.name, spec)) for peer in self.peers),
        )

    def _planned_kernel(self, programs: RacedPrograms) -> PlannedKernel:
        kernel = _kernel(self.case.contest.planned(programs.spec), self.chip)
        if self.case.contest.mesh(self.case.spec) is None:
            return kernel
        experiment = self._experiment("ours", programs, programs.ours)
        ours: Any = experiment.fn
        choices = plan_across_chips(ours, *experiment.args)
        if not any(choice.by_kernel for choice in choices):
            return replace(kernel, config="; ".join(dict.fromkeys((kernel.config, *map(str, choices)))))
        return PlannedKernel(kernel="across chips", config="; ".join(dict.fromkeys(map(str, choices))))

    def _raced_case(self) -> RacedCase:
        case, spec, contest = self.case, self.case.spec, self.case.contest
        planned, mesh = contest.planned(spec), contest.mesh(spec)
        return RacedCase(
            suite=case.suite,
            group=case.group,
            name=case.name,
            chip=self.chip.name,
            dtype=spec.dtype_multiplied,
            op="layers" if planned is None else op_of(planned).name,
            **{name: getattr(spec, name, None) for name in ("m", "k", "n", "groups", "density", "precision")},
            series=case.series,
            flags=self.chip.given_flags,
            topology="" if mesh is None else mesh.topology,
            mesh="" if mesh is None else str(mesh),
        )


def _xla(form: str, *, flagged: bool = False) -> Who:
    return "flagged " * flagged + (f"xla: {form}" if form else "xla")


def _limits(specs: Sequence[Spec], chip: Chip) -> Limits:
    published, of_model = ([limits(spec, chip) for spec in specs] for limits in (roofline, machine_roofline))
    return Limits(
        mxu_us=sum(part.mxu_us for part in published),
        hbm_us=sum(part.hbm_us for part in published),
        model_mxu_us=sum(part.mxu_us for part in of_model),
        model_hbm_us=sum(part.hbm_us for part in of_model),
        least_hbm_bytes=sum(spec.least_hbm_bytes for spec in specs),
    )


def _kernel(planned: Spec | None, chip: Chip) -> PlannedKernel:
    if planned is None:
        return PlannedKernel()
    made = plan(planned, chip)
    return PlannedKernel(kernel=made.config.kernel, config=str(made.config), modelled_us=made.time_us)


def _our_time(ours: Outcome, ended: Outcome, even: Outcome, limits: Limits) -> OurTime:
    run = ours.run
    prefetch_us = run.prefetch_us if run is not None else None
    operations = [operation.cycles for operation in run.later_core.ops] if run is not None else []
    return OurTime(
        status=ended.status,
        reason=ended.reason,
        time_us=_repeated_us(ours, limits),
        alone_us=ours.time_us if prefetch_us else None,
        prefetch_us=prefetch_us or None,
        error=_error(ours),
        even_us=even.time_us,
        even_reason=_why(even),
        bundles=run.bundles if run is not None else None,
        compile_s=ours.compile_s,
        hbm_bytes=ours.hbm_bytes,
        other_ops_us=(sum(operations) - max(operations, default=0)) / run.clock_hz * 1e6 if run is not None else None,
        stall_share=run.stall_share if run is not None else None,
        exposed_us=_exposed_us(ours),
    )


def _repeated_us(outcome: Outcome, limits: Limits) -> float | None:
    """Return our time in repeated calls; XLA copies operands before the call only for products that it is left."""
    copies = outcome.run is not None and outcome.run.prefetch_us
    return xla_repeated_us(outcome, limits.model_hbm_us or 0.0) if copies else outcome.time_us


def _xla_time(outcome: Outcome, *, flags: Mapping[str, str] | None = None, form: str = "") -> XlaTime:
    return XlaTime(
        time_us=outcome.time_us,
        prefetch_us=outcome.run.prefetch_us if outcome.run is not None else None,
        reason=_why(outcome),
        assumption=_assumption(outcome),
        error=_error(outcome),
        flags=flags or {},
        form=form,
        exposed_us=_exposed_us(outcome),
    )


def _fastest(times: Sequence[XlaTime], limits: Limits) -> XlaTime:
    """Return the shortest time in repeated calls; of equal times, or if none is known, the first."""
    return min(times, key=lambda time: math.inf if (us := time.repeated_us(limits)) is None else us)


def _peer_time(peer: Peer, outcome: Outcome) -> PeerTime:
    return PeerTime(
        name=peer.name,
        config=peer.config,
        time_us=outcome.time_us,
        reason=peer.reason or _why(outcome),
        error=_error(outcome),
        assumption=_assumption(outcome),
    )


def _assumption(outcome: Outcome) -> str:
    return outcome.run.assumptions[0] if outcome.run is not None and outcome.run.assumptions else ""


def _exposed_us(outcome: Outcome) -> float | None:
    return outcome.slice_run.exposed_us if outcome.slice_run is not None else None


def _error(outcome: Outcome) -> TimeError | None:
    run = outcome.slice_run or outcome.run
    return run.error if run is not None else None


def _why(outcome: Outcome) -> str:
    return f"{outcome.status}: {outcome.reason}" if outcome.reason else ""
