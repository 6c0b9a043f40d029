"""Pictures of a race: for each suite that has one, times over the suite's size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from systolic.bench.rows import BenchRow
from systolic.report.times_plot import TimePoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A plot by `times_plot`, and a line of text about it."""

    title: str
    x_title: str
    points: tuple[TimePoint, ...]


def picture(rows: Iterable[BenchRow]) -> Picture | None:
    """Make the picture of the first suite that has one and rows with times; None: no suite has."""
    timed = [row for row in rows if row.ours_us is not None]
    for suite, draw in PICTURES.items():
        shown = [row for row in timed if row.case.suite == suite]
        if shown and (chart := draw(shown)).points:
            return chart
    return None


def _grouped(rows: Sequence[BenchRow]) -> Picture:
    """Draw the product with most rows, on one chip: all times over the rows of a group."""
    chip, series = _most(rows, lambda row: (row.case.chip, row.case.series))
    shown = [row for row in rows if (row.case.chip, row.case.series) == (chip, series)]
    first = shown[0]
    points: list[TimePoint] = []
    for row in shown:
        size = (row.case.m or 0) / (row.case.groups or 1)
        points.append(TimePoint(x=size, time_us=row.limits.model_us or 0.0, series="limit", dashed=True))
        points += _times(size, {"systolic": row.ours_us, "XLA": row.xla_repeated_us})
        points += _times(size, {peer.name: peer.time_us for peer in row.peers})
    title = f"{series} on {chip}, {first.case.groups} groups, {first.case.k} × {first.case.n}"
    return Picture(title=title, x_title="rows of a group, on average", points=tuple(points))


def _quantized(rows: Sequence[BenchRow]) -> Picture:
    """Draw the weight with most rows: our times over the rows of activations, a line for each format."""
    size = _most(rows, lambda row: (row.case.k, row.case.n))
    shown = [row for row in rows if (row.case.k, row.case.n) == size]
    points = [
        point
        for row in shown
        for point in _times(
            row.case.m or 0, {row.case.group.split()[0]: row.ours_us}, panel=row.case.chip
        )  # int4/128 decode
    ]
    title = f"rows × a weight of {size[0]} × {size[1]}, by format"
    return Picture(title=title, x_title="rows", points=tuple(points))


def _sparse(rows: Sequence[BenchRow]) -> Picture:
    """Draw the product with most densities: a line for each size of blocks, and one for a dense matrix by XLA."""
    forward = [row for row in rows if row.case.series]
    if not forward:
        return Picture(title="", x_title="", points=())
    size = _most(forward, lambda row: (row.case.m, row.case.k, row.case.n))
    shown = [row for row in forward if (row.case.m, row.case.k, row.case.n) == size]
    points: list[TimePoint] = []
    for row in shown:
        points += _times(row.case.density or 0.0, {row.case.series: row.ours_us}, panel=row.case.chip)
    for row in shown:
        points += _times(row.case.density or 0.0, {"XLA, dense": row.xla_repeated_us}, panel=row.case.chip, dashed=True)
    m, k, n = size
    title = f"blocks in random places of a matrix of {m} × {k}, times {k} × {n}"
    return Picture(title=title, x_title="density", points=tuple(points))


def _losses(rows: Sequence[BenchRow]) -> Picture:
    """Draw the layer with most rows: times of the loss, alone and with gradients, over tokens."""
    size = _most(rows, lambda row: (row.case.k, row.case.n))
    shown = [row for row in rows if (row.case.k, row.case.n) == size]
    points: list[TimePoint] = []
    for row in shown:
        times = {f"systolic, {row.case.group}": row.ours_us}
        points += _times(row.case.m or 0, times, panel=row.case.chip)
    # XLA's programs are the same whether ours keeps logits or not.
    for row in shown:
        if row.case.group != "keeping logits":
            times = {f"XLA, {row.case.group}": row.xla_repeated_us}
            points += _times(row.case.m or 0, times, panel=row.case.chip, dashed=True)
    title = f"the loss of {size[0]} features and {size[1]} words"
    return Picture(title=title, x_title="tokens", points=tuple(points))


def _layers_of_experts(rows: Sequence[BenchRow]) -> Picture:
    """Draw the layer with most rows: all times over tokens, and the limit."""
    layer = _most(rows, _without_tokens)
    shown = [row for row in rows if _without_tokens(row) == layer]
    points: list[TimePoint] = []
    for row in shown:
        tokens, peers = row.case.m or 0, {peer.name: peer.time_us for peer in row.peers}
        points += _times(tokens, {"systolic": row.ours_us, "XLA": row.xla_repeated_us} | peers, panel=row.case.chip)
        points += _times(tokens, {"limit": row.limits.model_us}, panel=row.case.chip, dashed=True)
    return Picture(title=f"{layer[0]} of experts", x_title="tokens", points=tuple(points))


def _without_tokens(row: BenchRow) -> tuple[str]:
    return (row.case.name.rpartition(" ")[0],)


PICTURES: dict[str, Callable[[Sequence[BenchRow]], Picture]] = {
    "moe": _grouped,
    "quantized": _quantized,
    "sparse": _sparse,
    "loss": _losses,
    "moe-layer": _layers_of_experts,
}


def _most(rows: Sequence[BenchRow], key: Callable[[BenchRow], tuple]) -> tuple:
    return Counter(map(key, rows)).most_common(1)[0][0]


def _times(x: float, times_us: Mapping[str, float | None], *, panel: str = "", dashed: bool = False) -> list[TimePoint]:
    """Make points of the times that are known, all at one x."""
    return [
        TimePoint(x=x, time_us=time_us, series=series, panel=panel, dashed=dashed)
        for series, time_us in times_us.items()
        if time_us is not None
    ]
