"""Races `systolic.matmul` against XLA: both programs of every case compiled by the same compiler and simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from systolic.bench.cases import Case
from systolic.bench.programs import arguments, ours, spec_of, xla
from systolic.chips import Chip, UnsupportedDtypeError
from systolic.compiler import CompilerRefusal, WorkerPool
from systolic.ops import plan
from systolic.schedule import TilesError
from systolic.spec import MatmulSpec, SpecError
from systolic.timing import Measurement, submit_simulation

Who = Literal["ours", "xla"]
Status = Literal["ok", "unsupported", "illegal", "refused", "failed"]

# What the listings, and so the machine models, call operand types.
_LISTING_TYPES = {"float32": "f32", "bfloat16": "bf16", "int8": "s8", "float8_e4m3fn": "f8", "float8_e5m2": "f8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One case on one chip. Times are simulated unless their name says otherwise; None is not known.

    XLA may copy an operand into VMEM ahead of the call. In repeated calls that copy runs during the call before, and
    published device times are those of the rest alone: `xla_us`. Of a thin product the rest may take less than the
    weight takes to cross HBM at all, and then repeated calls wait for the copy: `xla_repeated_us` is the rest, but no
    less than the least HBM traffic takes on the model, and no more than rest and copy together.

    Limits are those of the matrix units and of the least HBM traffic, once at the published peak and bandwidth, once at
    the clock and bandwidth that the simulator's model of the chip has.
    """

    suite: str
    group: str
    case: str
    chip: str
    m: int
    k: int
    n: int
    dtype: str
    precision: str
    status: Status  # of our program
    reason: str = ""
    provenance: Literal["simulated"] = "simulated"
    ours_us: float | None = None
    xla_us: float | None = None
    xla_prefetch_us: float | None = None  # of the copy that XLA starts ahead of the call
    xla_repeated_us: float | None = None
    xla_reason: str = ""  # why XLA has no time
    ratio: float | None = None  # xla_repeated_us over ours
    ratio_alone: float | None = None  # xla_us over ours
    ratio_with_prefetch: float | None = None  # XLA with its copy over ours
    even_us: float | None = None  # our time at the next larger sizes that tiles divide
    over_even: float | None = None  # our time over that
    even_reason: str = ""
    mxu_us: float | None = None  # published
    hbm_us: float | None = None
    limit_us: float | None = None  # the larger of the two
    share: float | None = None  # of our time that the limit is
    model_mxu_us: float | None = None  # the simulator's
    model_hbm_us: float | None = None
    share_of_model: float | None = None
    kernel: str = ""
    config: str = ""
    modelled_us: float | None = None  # by the planner's arithmetic
    bundles: int | None = None
    compile_s: float | None = None
    hbm_bytes: int | None = None  # simulated, read and written
    least_hbm_bytes: int | None = None
    other_ops_us: float | None = None  # of our program, outside its longest operation: a copy to pad or to transpose
    stall_share: float | None = None


def race(
    cases: Sequence[Case],
    chips: Sequence[Chip],
    pool: WorkerPool,
    *,
    against_xla: bool = True,
    planned: Callable[[int], None] = lambda jobs: None,
    done: Callable[[str], None] = lambda label: None,
) -> list[BenchRow]:
    """A row for every chip and case, in that order. What cannot be done is a row with its reason.

    Args:
      cases: what to multiply.
      chips: for which.
      pool: where to compile and simulate.
      against_xla: compile XLA's programs too.
      planned: told how many jobs there are.
      done: told of each job that ended.
    """
    wanted: dict[tuple[str, Who, Case], tuple[Chip, Case]] = {}
    for chip in chips:
        for case in cases:
            if case.dtype not in chip.dtypes:
                continue
            asked: list[tuple[Who, Case]] = [("ours", case)]
            if against_xla:
                asked.append(("xla", case))
            if case.beside_even:
                asked.append(("ours", case.even()))
            for who, one in asked:
                wanted.setdefault((chip.name, who, one.program()), (chip, one))
    planned(len(wanted))
    jobs: dict[tuple[str, Who, Case], Future[Measurement]] = {}
    for key, (chip, case) in wanted.items():
        function = ours(case, chip) if key[1] == "ours" else xla(case)
        label = f"{chip.name} {case.name} {key[1]}"
        jobs[key] = submit_simulation(pool, function, (arguments(case),), chip, label=label)
        jobs[key].add_done_callback(lambda _, label=label: done(label))

    def measured(case: Case, chip: Chip, who: Who) -> Measurement | tuple[Status, str] | None:
        future = jobs.get((chip.name, who, case.program()))
        return None if future is None else _outcome(future)

    rows = []
    for chip in chips:
        for case in cases:
            row = _planned(case, chip)
            row = _with_ours(row, measured(case, chip, "ours"))
            row = _with_xla(row, measured(case, chip, "xla"))
            if case.beside_even:
                row = _with_even(row, measured(case.even(), chip, "ours"))
            rows.append(row)
    return rows


def _outcome(future: Future[Measurement]) -> Measurement | tuple[Status, str]:
    try:
        return future.result()
    except UnsupportedDtypeError as error:
        return "unsupported", str(error)
    except (SpecError, TilesError) as error:
        return "illegal", str(error)
    except CompilerRefusal as error:
        return "refused", str(error)
    except Exception as error:  # noqa: BLE001 -- whatever a kernel raises while it is traced is this row's fault alone
        return "failed", f"{type(error).__name__}: {error}"


def _planned(case: Case, chip: Chip) -> BenchRow:
    """What is known without compiling."""
    row = BenchRow(
        suite=case.suite,
        group=case.group,
        case=case.name,
        chip=chip.name,
        m=case.m,
        k=case.k,
        n=case.n,
        dtype=case.dtype,
        precision=case.precision,
        status="ok",
    )
    spec = spec_of(case)
    try:
        made = plan(spec, chip)
    except UnsupportedDtypeError as error:
        return dataclasses.replace(row, status="unsupported", reason=str(error))
    except (SpecError, TilesError) as error:
        return dataclasses.replace(row, status="illegal", reason=str(error))
    model_mxu_us, model_hbm_us = _model_limits_us(spec, chip)
    return dataclasses.replace(
        row,
        mxu_us=made.mxu_us,
        hbm_us=made.hbm_us,
        limit_us=max(made.mxu_us, made.hbm_us),
        model_mxu_us=model_mxu_us,
        model_hbm_us=model_hbm_us,
        kernel=made.config.kernel,
        config=str(made.config),
        modelled_us=made.time_us,
        least_hbm_bytes=spec.least_hbm_bytes,
    )


def _model_limits_us(spec: MatmulSpec, chip: Chip) -> tuple[float, float]:
    """Of the matrix units and of HBM, at the clock and the bandwidth of the simulator's model."""
    machine = chip.machine
    dtype = chip.emulated_dtypes.get(spec.dtype_multiplied, spec.dtype_multiplied)
    rows_per_cycle = machine.mxu_rows_per_cycle[_LISTING_TYPES[dtype]]
    per_cycle = 2 * machine.mxu_count * machine.mxu_rows * machine.mxu_columns * rows_per_cycle
    flops_per_s = per_cycle * machine.clock_hz * chip.cores_per_device
    return (
        spec.flops * spec.passes / flops_per_s * 1e6,
        spec.least_hbm_bytes / machine.hbm_bytes_per_s * 1e6,
    )


def _with_ours(row: BenchRow, outcome: Measurement | tuple[Status, str] | None) -> BenchRow:
    if outcome is None:
        return row
    if isinstance(outcome, tuple):
        return dataclasses.replace(row, status=outcome[0], reason=outcome[1])
    run, time_us = outcome.run, outcome.time_us
    assert run is not None
    operations = [operation.cycles for operation in run.later_core.ops]
    model_limit_us = max(row.model_mxu_us or 0, row.model_hbm_us or 0)
    return dataclasses.replace(
        row,
        ours_us=time_us,
        share=row.limit_us / time_us if row.limit_us is not None else None,
        share_of_model=model_limit_us / time_us if model_limit_us else None,
        bundles=run.bundles,
        compile_s=outcome.compile_s,
        hbm_bytes=run.hbm_read_bytes + run.hbm_written_bytes,
        other_ops_us=(sum(operations) - max(operations, default=0)) / run.clock_hz * 1e6,
        stall_share=run.stall_share,
    )


def _with_xla(row: BenchRow, outcome: Measurement | tuple[Status, str] | None) -> BenchRow:
    if outcome is None:
        return row
    if isinstance(outcome, tuple):
        return dataclasses.replace(row, xla_reason=f"{outcome[0]}: {outcome[1]}")
    assert outcome.run is not None
    alone_us = outcome.time_us
    with_prefetch_us = alone_us + outcome.run.prefetch_us
    repeated_us = max(alone_us, min(with_prefetch_us, row.model_hbm_us or 0))
    row = dataclasses.replace(
        row, xla_us=alone_us, xla_prefetch_us=outcome.run.prefetch_us, xla_repeated_us=repeated_us
    )
    if row.ours_us is None:
        return row
    return dataclasses.replace(
        row,
        ratio=repeated_us / row.ours_us,
        ratio_alone=alone_us / row.ours_us,
        ratio_with_prefetch=with_prefetch_us / row.ours_us,
    )


def _with_even(row: BenchRow, outcome: Measurement | tuple[Status, str] | None) -> BenchRow:
    if outcome is None:
        return row
    if isinstance(outcome, tuple):
        return dataclasses.replace(row, even_reason=f"{outcome[0]}: {outcome[1]}")
    over = row.ours_us / outcome.time_us if row.ours_us is not None else None
    return dataclasses.replace(row, even_us=outcome.time_us, over_even=over)
