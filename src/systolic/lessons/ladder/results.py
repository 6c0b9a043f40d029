"""The row of a rung at one size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from systolic.bench.accuracy import Accuracy, ResultError
from systolic.compiler import CompilerRefusal, versions
from systolic.lessons.ladder.candidates import hbm_bytes, modelled_us
from systolic.lessons.ladder.cell import Cell
from systolic.lessons.ladder.row import NOT_CHECKED, LadderRow, SweptTiles
from systolic.schedule import Tiles, total_bytes
from systolic.support.status import Status
from systolic.timing.opponent import opponent_flags
from systolic.timing.outcome import Outcome

NOT_RUN = Outcome(label="")


def fastest(cell: Cell, outcomes: Mapping[Tiles, Outcome]) -> tuple[Tiles, Outcome]:
    """Return the tiles with the least time; if none has one, the usual tiles and the first attempt's outcome."""
    return next(iter(_ranking(outcomes)), (cell.tiles, next(iter(outcomes.values()), NOT_RUN)))


def row_of(
    cell: Cell, outcomes: Mapping[Tiles, Outcome], xla: Outcome, checked: Accuracy | ResultError | None
) -> LadderRow:
    """Return the row of a cell.

    Args:
      outcomes: by the tried tiles; empty without a compiler.
      xla: the opponent: XLA's product of the same size, with the faster of its flags.
      checked: the result of the comparison with float64; None: there was none.
    """
    spec, chip, its_versions = cell.spec, cell.request.chip, versions()
    tiles, outcome = fastest(cell, outcomes)
    status, reason = _verdict(cell, outcomes, xla, checked)
    requested, available = _vmem_bytes(cell, outcome)
    accuracy = checked if isinstance(checked, Accuracy) else None
    run, timed = outcome.run, outcome.measurement
    return LadderRow(
        rung=cell.rung.name,
        chip=chip.name,
        flags=chip.given_flags,
        m=spec.m,
        k=spec.k,
        n=spec.n,
        dtype=spec.dtype_lhs,
        dtype_out=spec.dtype_out,
        **asdict(tiles),
        status=status,
        reason=reason,
        time_us=outcome.time_us,
        provenance=timed.provenance if timed is not None else None,
        peak_tflops=chip.peak_ops_per_s(spec.dtype_lhs) / 1e12 if spec.dtype_lhs in chip.dtypes else None,
        time_error=run.error if run is not None else None,
        xla_time_us=xla.time_us,
        xla_flags=opponent_flags(xla, chip),
        xla_time_error=xla.run.error if xla.run is not None else None,
        xla_prefetch_us=xla.run.prefetch_us if xla.run is not None else None,
        stall_share=run.stall_share if run is not None else None,
        hbm_bytes=outcome.hbm_bytes,
        least_hbm_bytes=spec.least_hbm_bytes,
        check=NOT_CHECKED if checked is None else "right" if accuracy is not None and accuracy.ok else "wrong",
        max_abs_error=accuracy.max_abs_error if accuracy is not None else None,
        tolerance=accuracy.tolerance if accuracy is not None else None,
        vmem_requested_bytes=requested,
        vmem_available_bytes=available,
        bundles=run.bundles if run is not None else None,
        compile_s=outcome.compile_s,
        jax=its_versions["jax"],
        libtpu=its_versions["libtpu"],
        trials=tuple(_swept(cell, tiles, outcome) for tiles, outcome in outcomes.items()) if cell.swept else (),
    )


def _verdict(
    cell: Cell, outcomes: Mapping[Tiles, Outcome], xla: Outcome, checked: Accuracy | ResultError | None
) -> tuple[Status, str]:
    """Return the row's status and its reason."""
    if cell.violations:
        return "illegal", "; ".join(map(str, cell.violations))
    if cell.foregone:
        return "refused", cell.foregone
    outcome = fastest(cell, outcomes)[1]
    reason = _sweep_verdict(cell, outcomes) if cell.swept and outcomes else outcome.reason
    if wrong := _wrong(checked):  # worse than having no time
        return "wrong", wrong if outcome.status == "ok" else f"{wrong}; {outcome.status} as well: {reason}"
    return outcome.status, reason or (f"no XLA time: {xla.reason}" if xla.reason else "")


def _wrong(checked: Accuracy | ResultError | None) -> str:
    """Return the error of the result in words; "" if it is right."""
    if isinstance(checked, ResultError):
        return str(checked)
    if checked is None or checked.ok:
        return ""
    return f"largest error {checked.max_abs_error:.3g}, rounding explains {checked.tolerance:.3g}"


def _vmem_bytes(cell: Cell, outcome: Outcome) -> tuple[int | None, int | None]:
    """Return requested and available VMEM if there is no time because of them."""
    if cell.foregone:
        return total_bytes(cell.rung.buffers(cell.spec, cell.tiles)), cell.vmem_limit_bytes
    if isinstance(outcome.error, CompilerRefusal) and not cell.swept:
        return outcome.error.requested_bytes, outcome.error.available_bytes
    return None, None


# ---- sweeps ----


def _ranking(outcomes: Mapping[Tiles, Outcome]) -> list[tuple[Tiles, Outcome]]:
    """Return the tiles that have a time, fastest first."""
    timed = [(outcome.time_us, tiles) for tiles, outcome in outcomes.items() if outcome.time_us is not None]
    return [(tiles, outcomes[tiles]) for _, tiles in sorted(timed)]


def _swept(cell: Cell, tiles: Tiles, outcome: Outcome) -> SweptTiles:
    return SweptTiles(
        **asdict(tiles),
        modelled_us=modelled_us(cell.spec, tiles, cell.request.chip),
        simulated_us=outcome.time_us,
        reason=outcome.reason,
    )


def _sweep_verdict(cell: Cell, outcomes: Mapping[Tiles, Outcome]) -> str:
    """Name the tiles that won, the second best, and what differs between them."""
    ranking = _ranking(outcomes)
    if not ranking:
        tiles, first = next(iter(outcomes.items()))
        return f"all {len(outcomes)} candidates were {first.status}, {tiles}: {first.reason}"
    text = f"{ranking[0][0]} won of {len(outcomes)} simulated"
    if refused := len(outcomes) - len(ranking):
        text += f" ({refused} refused)"
    if len(ranking) == 1:
        return text
    (tiles, best), (second_tiles, second) = ranking[:2]
    percent = 100 * ((second.time_us or 0.0) / (best.time_us or 1.0) - 1)
    text += f", {percent:.1f} % before {second_tiles}: {_difference(cell, tiles, best)}"
    return text + f" against {_difference(cell, second_tiles, second)}"


def _difference(cell: Cell, tiles: Tiles, outcome: Outcome) -> str:
    stalls = 100 * outcome.run.stall_share if outcome.run is not None else 0.0
    megabytes = hbm_bytes(cell.spec, tiles) / 1e6
    return f"{tiles.steps(cell.spec)} steps, {megabytes:.0f} MB of HBM traffic, {stalls:.0f} % stalls"
