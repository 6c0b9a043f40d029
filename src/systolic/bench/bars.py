"""The bars of the suites: the speed that each asks for, and which of them a run clears."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from systolic.bench.chip_bars import chip_bars
from systolic.bench.rows import BenchRow, over
from systolic.chips import known_chip

_MAX_BUNDLES = 16_000
_LONGEST_COMPILE_S = 20.0
# Our time at most this much above the time that HBM alone takes.
_DECODE_SHARE = 1 / 1.03
# Of quantized products, by group: the format of rows, and the least share of the model's limit. Chips whose units take
# no rows of the format have no bar.
_QUANTIZED_SHARES = {
    "int4/128 decode": ("bfloat16", 0.80),
    "int8/128 decode": ("bfloat16", 0.80),
    "int4 decode": ("bfloat16", 0.80),
    "e4m3 decode": ("bfloat16", 0.88),
    "w8a8 decode": ("int8", 1 / 1.12),
    "w8a8 prefill": ("int8", 0.85),
    "fp8 decode": ("float8_e4m3fn", 1 / 1.12),
    "fp8 prefill": ("float8_e4m3fn", 0.92),
}
# Of block-sparse products, by group: the least share of our time that the blocks' products take at the published peak,
# and the docs' kernel's time over ours.
_SPARSE_SHARES = {"512²": 0.85, "256²": 0.75, "128²": 0.5}
_SPARSE_RATIO = 1.5
# XLA's time over ours, of layers of experts: by HBM with few tokens, where XLA's gathers count, and of training.
_MOE_LAYER_RATIOS = {"layer of few tokens": 1.15, "layer of many tokens": 1.8, "layer and gradients": 1.6}
# A pass over an operand outside the kernel, as a share of the time, above which it counts as a copy of a large one.
_OTHER_OPS_SHARE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """The outcome of one bar for the rows of one chip and group."""

    chip: str
    suite: str
    group: str
    bar: str  # in words
    limit: float
    value: float  # the geometric mean, or the worst row's value
    case: str  # the worst row; "" of a mean
    rows: int  # compared with it
    missed: int  # rows that do not clear it
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The rows of one chip and group together."""

    chip: str
    suite: str
    group: str
    rows: int
    timed: int  # rows with a time of ours
    compared: int  # rows with both times
    geometric_mean: float | None  # of XLA's time in repeated calls over ours
    geometric_mean_alone: float | None  # the same without the copy that XLA starts before the call
    geometric_mean_with_prefetch: float | None
    worst: float | None
    worst_case: str
    share_of_model: float | None  # geometric mean: the limit of the simulator's model over our time
    geometric_mean_peer: float | None  # of the best public kernel's time over ours


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSummary:
    """Totals of a run."""

    rows: int
    timed: int
    geometric_mean: float | None
    worst: float | None
    worst_row: str
    standings: tuple[Standing, ...]
    bars: tuple[Cleared, ...]

    @property
    def missed(self) -> tuple[Cleared, ...]:
        return tuple(bar for bar in self.bars if not bar.holds)


def summary(rows: Sequence[BenchRow]) -> BenchSummary:
    """Return means, worst rows and bars, of each chip and group and of everything."""
    groups: dict[tuple[str, str, str], list[BenchRow]] = {}
    for row in rows:
        groups.setdefault((row.case.chip, row.case.suite, row.case.group), []).append(row)
    ratios = {f"{row.case.chip} {row.case.name}": row.ratio for row in rows if row.ratio is not None}
    worst = min(ratios, key=ratios.__getitem__, default="")
    experts: dict[str, list[BenchRow]] = {}
    for row in (row for row in rows if row.case.suite == "moe"):
        experts.setdefault(row.case.chip, []).append(row)
    bars = [bar for members in groups.values() for bar in _bars(members)]
    bars += [bar for members in experts.values() for bar in _moe_suite_bars(members)]
    return BenchSummary(
        rows=len(rows),
        timed=sum(row.ours_us is not None for row in rows),
        geometric_mean=_mean(list(ratios.values())),
        worst=ratios.get(worst),
        worst_row=worst,
        standings=tuple(_standing(members) for members in groups.values()),
        bars=tuple(bars),
    )


def _mean(values: Sequence[float]) -> float | None:
    return geometric_mean(values) if values else None


def _standing(rows: Sequence[BenchRow]) -> Standing:
    compared = [row for row in rows if row.ratio is not None]
    worst = min(compared, key=lambda row: row.ratio or 0, default=None)
    return Standing(
        chip=rows[0].case.chip,
        suite=rows[0].case.suite,
        group=rows[0].case.group,
        rows=len(rows),
        timed=sum(row.ours_us is not None for row in rows),
        compared=len(compared),
        geometric_mean=_mean([row.ratio for row in compared if row.ratio is not None]),
        geometric_mean_alone=_mean([row.ratio_alone for row in compared if row.ratio_alone is not None]),
        geometric_mean_with_prefetch=_mean(
            [row.ratio_with_prefetch for row in compared if row.ratio_with_prefetch is not None]
        ),
        worst=worst.ratio if worst else None,
        worst_case=worst.case.name if worst else "",
        share_of_model=_mean([row.share_of_model for row in rows if row.share_of_model is not None]),
        geometric_mean_peer=_mean([row.ratio_best_peer for row in rows if row.ratio_best_peer is not None]),
    )


def _bars(rows: Sequence[BenchRow]) -> Iterator[Cleared]:
    """Yield the bars of a group. bfloat16 has all of them; other dtypes the mean, and the bars of any kernel."""
    group, chip = rows[0].case.group, rows[0].case.chip
    bfloat16 = [row for row in rows if row.case.dtype == "bfloat16"]

    def ratio(row: BenchRow) -> float | None:
        return row.ratio

    if group == "square":
        yield from _mean_bar(rows, 1.00)
        from_2048, below = _split(bfloat16, 2048)
        yield from _worst_bar(from_2048, "× XLA from 2048³", ratio, at_least=0.95)
        yield from _worst_bar(below, "× XLA below 2048³", ratio, at_least=0.80)
        large, _ = _split(bfloat16, 4096)
        if (share := chip_bars(chip).least_share_of_limit) is not None:
            yield from _worst_bar(
                large, "of the model's limit from 4096³", lambda row: row.share_of_model, at_least=share
            )
    elif group == "prefill":
        yield from _mean_bar(rows, 1.00)
        yield from _worst_bar(bfloat16, "× XLA", ratio, at_least=0.96)
    elif group == "decode":
        yield from _mean_bar([row for row in rows if row.case.dtype != "bfloat16"], 1.00)
        yield from _worst_bar(bfloat16, "× XLA", ratio, at_least=0.98)
        by_hbm = [row for row in bfloat16 if (row.limits.model_hbm_us or 0) >= (row.limits.model_mxu_us or 0)]
        yield from _worst_bar(
            by_hbm, "of the model's HBM limit", lambda row: row.share_of_model, at_least=_DECODE_SHARE
        )
    elif rows[0].case.suite == "quantized":
        yield from _quantized_bars(rows)
    elif rows[0].case.suite == "sparse" and group in _SPARSE_SHARES:
        least = chip_bars(chip).least_sparse_share.get(group, _SPARSE_SHARES[group])
        what = "of the time for the blocks' own products"
        yield from _worst_bar(rows, what, lambda row: over(row.limits.mxu_us, row.ours_us), at_least=least)
        yield from _worst_bar(rows, "× the docs' kernel", _docs_ratio, at_least=_SPARSE_RATIO)
    elif group == "fused":
        yield from _mean_bar(rows, 1.03 if bfloat16 else 1.00)
        yield from _worst_bar(bfloat16, "× XLA", ratio, at_least=0.96)
    elif group in ("few tokens", "many tokens", "gated") and bfloat16:
        if least := chip_bars(chip).least_layers_ratio.get(group):
            yield from _mean_bar(rows, least)
    elif rows[0].case.suite == "moe" and bfloat16:
        yield from _moe_bars(rows)
    elif group in _MOE_LAYER_RATIOS and bfloat16:
        yield from _mean_bar(rows, _MOE_LAYER_RATIOS[group])
    elif group == "edges":
        yield from _mean_bar([row for row in rows if row.case.dtype != "bfloat16"], 1.00)
        yield from _worst_bar(bfloat16, "× the next even size", lambda row: row.over_even, at_most=1.15)
        yield from _worst_bar(rows, "of the time outside the kernel", _other_share, at_most=_OTHER_OPS_SHARE)
    one_kernel = [row for row in rows if row.case.op != "layers"]
    yield from _worst_bar(one_kernel, "bundles of code", lambda row: row.ours.bundles, at_most=_MAX_BUNDLES)
    yield from _worst_bar(one_kernel, "s to compile", lambda row: row.ours.compile_s, at_most=_LONGEST_COMPILE_S)


def _split(rows: Sequence[BenchRow], m: int) -> tuple[list[BenchRow], list[BenchRow]]:
    """Return products of m rows and more, and products of fewer."""
    return [row for row in rows if (row.case.m or 0) >= m], [row for row in rows if (row.case.m or 0) < m]


def _quantized_bars(rows: Sequence[BenchRow]) -> Iterator[Cleared]:
    group, bars = rows[0].case.group, chip_bars(rows[0].case.chip)
    if (chip := known_chip(rows[0].case.chip)) is None:
        return
    row_format, share = _QUANTIZED_SHARES.get(group, ("", 0.0))
    if row_format in chip.peak_ops_per_s_per_chip:
        yield from _mean_of(rows, "of the model's limit", share, [row.share_of_model for row in rows])
    if group in bars.least_quantized_ratio:
        yield from _mean_bar(rows, bars.least_quantized_ratio[group])
    if group in bars.least_quantized_peer_ratio:
        least, ratios = bars.least_quantized_peer_ratio[group], [row.ratio_best_peer for row in rows]
        yield from _mean_of(rows, "× the best public kernel", least, ratios)


def _moe_bars(rows: Sequence[BenchRow]) -> Iterator[Cleared]:
    """Yield bars on means of one kind of product in layers of experts; few rows of the suite say little about them."""
    group, bars = rows[0].case.group, chip_bars(rows[0].case.chip)
    for what, least, values in (
        ("of the model's limit", bars.least_moe_share, [row.share_of_model for row in rows]),
        ("× the best public kernel", bars.least_moe_ratio, [row.ratio_best_peer for row in rows]),
    ):
        if group in least:
            yield from _mean_of(rows, what, least[group], values)


def _moe_suite_bars(rows: Sequence[BenchRow]) -> Iterator[Cleared]:
    """Yield the bar of all kinds together against XLA."""
    if (least := chip_bars(rows[0].case.chip).least_moe_xla_ratio) is not None:
        moe_rows = [replace(row, case=replace(row.case, group="moe")) for row in rows if row.case.dtype == "bfloat16"]
        yield from _mean_bar(moe_rows, least)


def _docs_ratio(row: BenchRow) -> float | None:
    return next((over(peer.time_us, row.ours_us) for peer in row.peers if peer.name == "jax docs"), None)


def _other_share(row: BenchRow) -> float | None:
    return over(row.ours.other_ops_us, row.ours_us)


def _mean_bar(rows: Sequence[BenchRow], limit: float) -> Iterator[Cleared]:
    yield from _mean_of(rows, "× XLA", limit, [row.ratio for row in rows])


def _mean_of(rows: Sequence[BenchRow], what: str, limit: float, values: Sequence[float | None]) -> Iterator[Cleared]:
    numbers = [value for value in values if value is not None]
    if numbers:
        value = geometric_mean(numbers)
        yield _cleared(rows, f"{what}, geometric mean, at least", limit, value, "", len(numbers), int(value < limit))


def _worst_bar(
    rows: Sequence[BenchRow],
    what: str,
    value: Callable[[BenchRow], float | None],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Iterator[Cleared]:
    """Yield the bar of the worst row against the limit `at_least` or `at_most`."""
    values_by_case = {row.case.name: row_value for row in rows if (row_value := value(row)) is not None}
    if not values_by_case:
        return
    if at_least is not None:
        worst, bar, limit = min(values_by_case, key=values_by_case.__getitem__), f"{what}, at least", at_least
        missed = sum(case_value < limit for case_value in values_by_case.values())
    else:
        assert at_most is not None
        worst, bar, limit = max(values_by_case, key=values_by_case.__getitem__), f"{what}, at most", at_most
        missed = sum(case_value > limit for case_value in values_by_case.values())
    yield _cleared(rows, bar, limit, values_by_case[worst], worst, len(values_by_case), missed)


def _cleared(
    rows: Sequence[BenchRow], bar: str, limit: float, value: float, case: str, count: int, missed: int
) -> Cleared:
    return Cleared(
        chip=rows[0].case.chip,
        suite=rows[0].case.suite,
        group=rows[0].case.group,
        bar=bar,
        limit=limit,
        value=value,
        case=case,
        rows=count,
        missed=missed,
        holds=not missed,
    )
