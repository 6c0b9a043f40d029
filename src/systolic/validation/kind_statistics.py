"""Errors of compared rows by chip, kind of program, and half: in view of whoever fits constants, or held out."""

from __future__ import annotations

from collections.abc import Sequence

from systolic.accuracy.kind_errors import KindErrors
from systolic.validation.errors import ComparedRow, error_statistics

# The groups that requirements are stated for, and the kinds in each; other kinds are programs of XLA.
PALLAS, SPARSE_CORES, XLA = "all Pallas kernels", "all gathers and top-k", "all programs of XLA"
GROUPS = PALLAS, XLA, SPARSE_CORES
_ON_SPARSE_CORES = ("ragged_gather", "ragged_gather_reduce", "csa_gather", "router_top_k")


def kind_statistics(rows: Sequence[ComparedRow]) -> tuple[KindErrors, ...]:
    """Return the errors of each chip's kinds and groups of kinds, the held-out half first."""
    result = []
    for chip in dict.fromkeys(row.chip for row in rows):
        of_chip = [row for row in rows if row.chip == chip]
        kinds = sorted({row.kind for row in of_chip})
        parts = [(kind, [row for row in of_chip if row.kind == kind]) for kind in kinds]
        groups = [(name, [row for row in of_chip if group_of(row.kind) == name]) for name in GROUPS]
        for name, part in (*groups, *parts):
            for in_view in (False, True):
                if half := [row for row in part if row.in_view == in_view]:
                    result.append(_errors(chip, name, in_view, half))
    return tuple(result)


def group_of(kind: str) -> str:
    if kind.removeprefix("pallas_tpu_") in _ON_SPARSE_CORES:
        return SPARSE_CORES
    return PALLAS if kind.startswith("pallas_") else XLA


def is_covered(row: ComparedRow) -> bool | None:
    """True if the published time lies in the interval of the simulated one; None: there is no interval."""
    if row.error is None or row.time_error is None or row.time_error.percent is None:
        return None
    return abs(1 / (1 + row.error) - 1) <= row.time_error.percent / 100


def _errors(chip: str, kind: str, in_view: bool, rows: Sequence[ComparedRow]) -> KindErrors:
    counted = [row for row in rows if row.counted and row.error is not None]
    others = [row for row in rows if row.other_program]
    statistics = error_statistics(counted)
    covered = [inside for row in counted if (inside := is_covered(row)) is not None]
    worst = max(counted, key=lambda row: abs(row.error or 0.0), default=None)
    return KindErrors(
        chip=chip,
        kind=kind,
        in_view=in_view,
        rows=len(counted),
        refused=len(rows) - len(counted) - len(others),
        other_programs=len(others),
        median_percent=_percent(statistics.median_error),
        p90_percent=_percent(statistics.p90_error),
        bias_percent=_percent(statistics.bias),
        with_interval=len(covered),
        covered=sum(covered),
        worst="" if worst is None else worst.program,
        worst_percent=_percent(worst.error if worst is not None else None),
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)
