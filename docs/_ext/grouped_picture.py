"""Draw the grouped product: rows of several groups in a panel, the weights of these groups, and the result."""

from __future__ import annotations

from pictures import COLOURS, INK, box, svg, text

# Rows of each group; the first three, and the first rows of the fourth, fill the panel.
_GROUP_ROWS = (5, 2, 4, 6)
_PANEL_ROWS = 12
_ROW, _TOP = 14, 50  # pixels
_K, _COLUMNS = 70, 90  # widths of k and of all columns, in pixels
_TILE = 30  # width of a tile of columns
_GROUP_COLOURS = tuple(COLOURS.values())


def grouped_picture() -> str:
    """Draw one step of the kernel: one tile of columns, for all groups of one panel."""
    rows, weights, result = 80, 196, 382
    parts = [
        text(rows, 22, "sorted rows", bold=True),
        text(weights, 22, "weights of each group", bold=True),
        text(result, 22, "result", bold=True),
        text(rows, 40, "a panel in VMEM", size=11),
        text(weights, 40, "a tile of columns at a time", size=11),
        text(result, 40, "rows stored once", size=11),
    ]
    top = float(_TOP)
    for number, (count, color) in enumerate(zip(_GROUP_ROWS, _GROUP_COLOURS, strict=True)):
        height = count * _ROW
        inside = max(0, min(count, _PANEL_ROWS - sum(_GROUP_ROWS[:number]))) * _ROW
        parts += [
            text(10, top + 17, f"group {number}"),
            box(rows, top, _K, height, color, 0.25),
            box(rows, top, _K, inside, color, 0.85),
            box(result, top, _COLUMNS, height, color, 0.12),
            box(result, top, _TILE, inside, color, 0.85),
            box(rows, top, _K, height, "none", 1, stroke=INK),
            box(result, top, _COLUMNS, height, "none", 1, stroke=INK),
        ]
        weight_top = _TOP + number * 66
        parts += [
            box(weights, weight_top, _COLUMNS, 54, color, 0.12),
            box(weights, weight_top, _TILE, 54, color, 0.85),
            box(weights, weight_top, _COLUMNS, 54, "none", 1, stroke=INK),
            text(weights + _COLUMNS + 8, weight_top + 32, f"matrix {number}", size=12),
            _arrow(rows + _K + 8, top + max(inside, _ROW) / 2, weights - 8, weight_top + 27),
        ]
        top += height
    legend = max(top, _TOP + len(_GROUP_ROWS) * 66) + 22
    bottom = _TOP + _PANEL_ROWS * _ROW
    parts += [
        f'<path d="M{rows - 8} {_TOP}h-4V{bottom}h4M{rows - 4} {bottom}h{_K + 8}" stroke="{INK}" fill="none" '
        'stroke-width="2" stroke-dasharray="5 3"/>',
        text(10, legend, "dashed: the panel · full color: in use now · pale: before or after", size=12),
        text(10, legend + 18, "the panel ends within group 3, whose matrix passes twice", size=12),
    ]
    return svg(480, int(legend) + 30, parts, "Panels and groups of a grouped product")


def _arrow(left: float, start: float, right: float, end: float) -> str:
    return (
        f'<path d="M{left:.1f} {start:.1f}L{right:.1f} {end:.1f}" stroke="{INK}" fill="none"/>'
        f'<circle cx="{right:.1f}" cy="{end:.1f}" r="3" fill="{INK}"/>'
    )
