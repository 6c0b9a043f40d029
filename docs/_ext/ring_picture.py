"""Draw the times of a gathered product against its tokens: XLA's programs, our kernel, and the limit.

python benchmarks/ring_products.py --only "gather 8B" --tokens 256 … --json docs/numbers/ring_products.json
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from bench_numbers import NUMBERS
from pictures import COLOURS, INK, svg, text

_ROWS = NUMBERS / "ring_products.json"
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 480, 360, 52, 20, 84, 44  # pixels
_SERIES = (
    ("xla_us", "XLA, multiplies what has arrived", COLOURS["lhs"], ""),
    ("xla_serial_us", "XLA, gathers, then multiplies", COLOURS["rhs"], ""),
    ("ours_us", "systolic.all_gather_matmul", COLOURS["out"], ""),
    ("limit_us", "the limit", INK, "5 4"),
)


def ring_picture() -> str:
    """Draw all rows of docs/numbers/ring_products.json, both axes logarithmic."""
    rows = sorted(json.loads(_ROWS.read_text("utf-8")), key=lambda row: row["tokens"])
    keys = [key for key, *_ in _SERIES]
    tokens = [row["tokens"] for row in rows]
    times = [row[key] for row in rows for key in keys]
    low, high = min(times) / 1.2, max(times) * 1.2

    def x(count: int) -> float:
        return _LEFT + _share(count, tokens[0], tokens[-1]) * (_WIDTH - _LEFT - _RIGHT)

    def y(time_us: float) -> float:
        return _HEIGHT - _BOTTOM - _share(time_us, low, high) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [text(10, 18, f"{rows[0]['product']} on 8 chips of {rows[0]['chip']}, µs", bold=True)]
    for number, (_, name, color, dashes) in enumerate(_SERIES):
        left, top = 10 + number % 2 * 236, 40 + number // 2 * 20
        parts += [_line([(left, top - 4), (left + 22, top - 4)], color, dashes), text(left + 28, top, name, size=12)]
    for time_us in (digit * 10**power for power in range(5) for digit in (1, 2, 5)):
        if low <= time_us <= high:
            parts.append(_grid(_LEFT, y(time_us), _WIDTH - _RIGHT, y(time_us)))
            parts.append(text(10, y(time_us) + 4, f"{time_us:,}", size=12))
    for count in tokens:
        parts.append(_grid(x(count), _TOP, x(count), _HEIGHT - _BOTTOM))
        parts.append(text(x(count) - 14, _HEIGHT - _BOTTOM + 18, str(count), size=12))
    parts.append(text(_WIDTH / 2 - 20, _HEIGHT - 8, "tokens", size=12))
    for key, _, color, dashes in _SERIES:
        points = [(x(row["tokens"]), y(row[key])) for row in rows]
        parts.append(_line(points, color, dashes))
    return svg(_WIDTH, _HEIGHT, parts, "Times of a product whose rows are gathered, against tokens")


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)


def _line(points: Sequence[tuple[float, float]], color: str, dashes: str) -> str:
    path = "L".join(f"{left:.1f} {top:.1f}" for left, top in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="M{path}" stroke="{color}" stroke-width="2" fill="none"{dashed}/>'


def _grid(left: float, top: float, right: float, bottom: float) -> str:
    return f'<path d="M{left:.1f} {top:.1f}L{right:.1f} {bottom:.1f}" stroke="{INK}" stroke-opacity="0.3" fill="none"/>'
