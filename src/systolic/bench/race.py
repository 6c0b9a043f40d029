"""Races what ops give to users against XLA: both programs of every case compiled by the same compiler and simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from systolic.accuracy.time_error import TimeError
from systolic.bench import layer_programs, moe_programs, quantized_peers, sharded_programs, sparse_programs
from systolic.bench.cases import Case
from systolic.bench.layers import LayersSpec
from systolic.bench.moe import MoeSpec
from systolic.bench.moe_peers import Peer, peers
from systolic.bench.rows import BenchRow, PeerTime
from systolic.bench.sharded import ShardedSpec
from systolic.bench.sparse import PatternSpec
from systolic.bench.xla_flags import COMMON_FLAGS, with_common_flags
from systolic.chips import Chip, UnsupportedDtypeError
from systolic.compiler import row_major
from systolic.cost import dtype_on, machine_roofline, roofline
from systolic.ops.op import RacedPrograms, op_of
from systolic.ops.planner import plan
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import TilesError
from systolic.spec import Spec, SpecError
from systolic.timing.experiment import Experiment
from systolic.timing.outcome import Outcome
from systolic.timing.runner import Runner, Stopped

Who = str  # "ours", "xla", "flagged xla", "xla: " and one of its forms, or the name of a public kernel
Against = Literal["all", "xla", "nothing"]

_NOT_RUN = Outcome(label="")
_UNPLANNED = (UnsupportedDtypeError, SpecError, TilesError)


def race(cases: Sequence[Case], chips: Sequence[Chip], runner: Runner, *, against: Against = "all") -> list[BenchRow]:
    """A row for every chip and case, in that order. What cannot be done is a row with its reason.

    Args:
      cases: what to compute.
      chips: for which.
      runner: of both programs; programs that several cases share run once.
      against: nothing; XLA's programs, each also with flags that it is commonly given, of which the faster counts; or
        all, public kernels too, where a case has some.

    Raises:
      Stopped: by Ctrl-C, with the rows of which every program had ended.
    """
    wanted: dict[tuple[str, Who, Any], Experiment] = {}
    for chip in chips:
        for case in cases:
            asked: list[tuple[Who, Any]] = [("ours", case.spec)]
            if against != "nothing":
                asked.append(("xla", case.spec))
                asked.append(("flagged xla", case.spec))
                asked += [(_form(name), case.spec) for name in _forms(case.spec, chip)]
            if against == "all":
                asked += [(peer.name, case.spec) for peer in _peers(case.spec, chip)]
            if case.even is not None:
                asked.append(("ours", case.even))
            for who, spec in asked:
                key = chip.name, who, spec
                if key not in wanted and (experiment := _experiment(case.name, chip, who, spec)) is not None:
                    wanted[key] = experiment
    try:
        found: Sequence[Outcome | None] = runner.run(wanted.values())
    except Stopped as stop:
        found = stop.finished
    outcomes = {key: outcome for key, outcome in zip(wanted, found, strict=True) if outcome is not None}
    unfinished = {key for key in wanted if key not in outcomes}

    def raced(chip: Chip, case: Case) -> BenchRow:
        row = _with_better_xla(
            _row(
                case,
                chip,
                mine=outcomes.get((chip.name, "ours", case.spec), _NOT_RUN),
                others=_certain(outcomes.get((chip.name, "xla", case.spec), _NOT_RUN)),
                even=outcomes.get((chip.name, "ours", case.even), _NOT_RUN),
                peers=tuple(
                    _peer_time(peer, outcomes.get((chip.name, peer.name, case.spec), _NOT_RUN))
                    for peer in (_peers(case.spec, chip) if against == "all" else ())
                ),
            ),
            _certain(outcomes.get((chip.name, "flagged xla", case.spec), _NOT_RUN)),
            flags=COMMON_FLAGS,
        )
        for name in _forms(case.spec, chip) if against != "nothing" else ():
            outcome = _certain(outcomes.get((chip.name, _form(name), case.spec), _NOT_RUN))
            row = _with_better_xla(row, outcome, form=name)
        return row

    def is_finished(chip: Chip, case: Case) -> bool:
        return not any(key[0] == chip.name and key[2] in (case.spec, case.even) for key in unfinished)

    rows = [raced(chip, case) for chip in chips for case in cases if is_finished(chip, case)]
    if unfinished:
        raise Stopped(rows) if rows else KeyboardInterrupt
    return rows


def _experiment(name: str, chip: Chip, who: Who, spec: Spec) -> Experiment | None:
    """None: there is no program, and the plan in the case's row says why; or no flags that XLA is commonly given."""
    compiled_for = with_common_flags(chip) if who == "flagged xla" else chip
    if compiled_for is None or dtype_on(spec, chip) not in chip.dtypes:
        return None
    try:
        raced = _raced(spec, chip)
    except _UNPLANNED:
        return None
    args = raced.arguments if who == "ours" or raced.xla_arguments is None else raced.xla_arguments
    forms = {_form(name): fn for name, fn in raced.xla_forms.items()}
    programs = {"ours": raced.ours, "xla": raced.xla, "flagged xla": raced.xla, **forms}
    if who in programs:
        fn = programs[who]
    else:
        peer = next(one for one in _peers(spec, chip) if one.name == who)
        fn, args = peer.program, peer.arguments or args
    if fn is None:
        return None
    if isinstance(spec, MoeSpec):
        fn = row_major(fn)
    topology = spec.topology if isinstance(spec, ShardedSpec) else None
    return Experiment(fn=fn, args=args, chip=compiled_for, topology=topology, label=f"{chip.name} {name} {who}")


def _form(name: str) -> Who:
    return f"xla: {name}"


def _forms(spec: Any, chip: Chip) -> Sequence[str]:
    """Other ways to write the product in plain JAX."""
    try:
        return tuple(_raced(spec, chip).xla_forms)
    except _UNPLANNED:
        return ()


def _peers(spec: Any, chip: Chip) -> Sequence[Peer]:
    if isinstance(spec, QuantizedSpec):
        return tuple(quantized_peers.peers(spec, chip))
    if isinstance(spec, PatternSpec):
        return tuple(sparse_programs.peers(spec))
    return tuple(peers(spec)) if isinstance(spec, MoeSpec) else ()


def _peer_time(peer: Peer, outcome: Outcome) -> PeerTime:
    run = outcome.run
    return PeerTime(
        name=peer.name,
        config=peer.config,
        time_us=outcome.time_us,
        reason=peer.reason or _why(outcome),
        error=run.error if run is not None else None,
        assumption=run.assumptions[0] if run is not None and run.assumptions else "",
    )


def _raced(spec: Any, chip: Chip) -> RacedPrograms:
    if isinstance(spec, LayersSpec):
        return layer_programs.raced(spec, chip)
    if isinstance(spec, PatternSpec):
        return sparse_programs.raced(spec, chip)
    if isinstance(spec, ShardedSpec):
        return sharded_programs.raced(spec, chip)
    return moe_programs.raced(spec, chip) if isinstance(spec, MoeSpec) else op_of(spec).raced(spec, chip)


def _planned(spec: Any) -> Any:
    """What the planner chooses tiles for, which knows less."""
    if isinstance(spec, ShardedSpec):
        return spec.part
    return spec.planned if isinstance(spec, (MoeSpec, PatternSpec)) else spec


def _op_name(spec: Any) -> str:
    planned = _planned(spec)
    return "layers" if isinstance(planned, LayersSpec) else op_of(planned).name


def _row(
    case: Case, chip: Chip, *, mine: Outcome, others: Outcome, even: Outcome, peers: tuple[PeerTime, ...]
) -> BenchRow:
    ended, expected = mine, {}
    try:
        expected = _expected(_raced(case.spec, chip).spec, chip)
    except _UNPLANNED as error:
        ended = Outcome.failed(case.name, error) if mine is _NOT_RUN else mine
    run = mine.run
    operations = [operation.cycles for operation in run.later_core.ops] if run is not None else []
    return BenchRow(
        suite=case.suite,
        group=case.group,
        case=case.name,
        chip=chip.name,
        flags=chip.given_flags,
        op=_op_name(case.spec),
        **{name: getattr(case.spec, name, None) for name in ("m", "k", "n", "groups", "density", "precision")},
        series=case.series,
        dtype=case.spec.dtype_multiplied,
        status=ended.status,
        reason=ended.reason,
        ours_us=mine.time_us,
        bundles=run.bundles if run is not None else None,
        compile_s=mine.compile_s,
        hbm_bytes=mine.hbm_bytes,
        other_ops_us=(sum(operations) - max(operations, default=0)) / run.clock_hz * 1e6 if run is not None else None,
        stall_share=run.stall_share if run is not None else None,
        xla_us=others.time_us,
        xla_prefetch_us=others.run.prefetch_us if others.run is not None else None,
        xla_reason=_why(others),
        ours_error=_error(mine),
        xla_error=_error(others),
        **_on_slice(case.spec, mine, others),
        even_us=even.time_us,
        even_reason=_why(even),
        peers=peers,
        **expected,
    )


def _with_better_xla(
    row: BenchRow, another: Outcome, *, flags: Mapping[str, str] | None = None, form: str = ""
) -> BenchRow:
    """The row with XLA's time under common flags, or written in another form, where that is the better one."""
    if another.time_us is None or another.run is None:
        return row
    other = dataclasses.replace(
        row,
        xla_us=another.time_us,
        xla_prefetch_us=another.run.prefetch_us,
        xla_reason="",
        xla_error=_error(another),
        xla_exposed_us=_exposed_us(another),
        xla_flags=flags or {},
        xla_without_flags_us=row.xla_repeated_us if flags else None,
        xla_form=form,
    )
    before, after = row.xla_repeated_us, other.xla_repeated_us
    return other if after is not None and (before is None or after < before) else row


def _on_slice(spec: Any, mine: Outcome, others: Outcome) -> dict[str, Any]:
    if not isinstance(spec, ShardedSpec):
        return {}
    return {
        "topology": spec.topology,
        "mesh": ",".join(f"{name}={size}" for name, size in spec.mesh),
        "ours_exposed_us": _exposed_us(mine),
        "xla_exposed_us": _exposed_us(others),
    }


def _exposed_us(outcome: Outcome) -> float | None:
    return outcome.slice_run.exposed_us if outcome.slice_run is not None else None


def _error(outcome: Outcome) -> TimeError | None:
    run = outcome.slice_run or outcome.run
    return run.error if run is not None else None


def _certain(outcome: Outcome) -> Outcome:
    """XLA's outcome, without a time that depends on values that the simulator had to assume."""
    if outcome.run is None or not outcome.run.assumptions:
        return outcome
    reason = f"its time depends on values that were assumed: {outcome.run.assumptions[0]}"
    return Outcome(label=outcome.label, status="not simulated", reason=reason)


def _why(outcome: Outcome) -> str:
    return f"{outcome.status}: {outcome.reason}" if outcome.reason else ""


def _expected(spec: Spec, chip: Chip) -> dict[str, Any]:
    """What is known without compiling.

    Raises:
      UnsupportedDtypeError, SpecError, TilesError: there is no plan for it.
    """
    published, of_model = roofline(spec, chip), machine_roofline(spec, chip)
    limits = {
        "mxu_us": published.mxu_us,
        "hbm_us": published.hbm_us,
        "model_mxu_us": of_model.mxu_us,
        "model_hbm_us": of_model.hbm_us,
        "least_hbm_bytes": spec.least_hbm_bytes,
    }
    planned = _planned(spec)
    if isinstance(planned, LayersSpec):
        return limits  # many kernels, each with a plan of its own
    made = plan(planned, chip)
    return {
        **limits,
        "kernel": made.config.kernel,
        "config": str(made.config),
        "modelled_us": made.time_us,
    }
