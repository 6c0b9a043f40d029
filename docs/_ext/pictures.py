"""Draw blocks and buffers as SVG: where a step's blocks lie in HBM, and which buffers hold them in VMEM.

Tiles and buffers come from the table of rungs. Colors and greys are readable on white and on black.
"""

from __future__ import annotations

from systolic.lessons.ladder import Rung
from systolic.spec import MatmulSpec

INK = "#808080"  # as far from white as from black
COLOURS = {"lhs": "#3b82f6", "rhs": "#f97316", "out": "#22a05a", "acc": "#a855f7"}
SIDE = 120  # of a matrix, in pixels
SIZE, SMALL_SIZE = 4096, 1024  # of the matrices that are drawn; v3's blocks need small ones to be seen


def blocks_picture(rung: Rung) -> str:
    """Draw the blocks in HBM of a step of a rung in bfloat16."""
    spec = _spec(rung)
    size = spec.m
    tiles = rung.default_tiles(spec, 4)
    grid_m, grid_n, grid_k = tiles.grid(spec)
    i, j, kk = (count // 2 for count in (grid_m, grid_n, grid_k))
    first_step = (i * grid_n + j) * grid_k + kk
    steps = [
        (step // grid_k // grid_n, step // grid_k % grid_n, step % grid_k)
        for step in range(first_step, min(first_step + rung.operand_buffers, grid_m * grid_n * grid_k))
    ]
    right, below = 10 + SIDE + 30, 40 + SIDE + 34
    parts = [
        text(10, 22, f"HBM: {size}³, step (i, j, kk) = ({i}, {j}, {kk})", bold=True),
        text(10, 366, "full color: the step's blocks", size=12),
        text(10, 384, "pale: on their way for the next steps", size=12),
        *matrix("lhs", 10, below, (grid_m, grid_k), [(i, kk) for i, _, kk in steps]),
        *matrix("rhs", right, 40, (grid_k, grid_n), [(kk, j) for _, j, kk in steps]),
        *matrix("out", right, below, (grid_m, grid_n), [(i, j)]),
    ]
    return svg(330, 394, parts, f"{rung.name}: blocks in HBM")


def buffers_picture(rung: Rung) -> str:
    """Draw the buffers in VMEM of a rung in bfloat16."""
    parts = buffers(rung, _spec(rung))
    if rung.vmem_limit_bytes:
        parts.append(text(10, 366, "dashed: subtiles", size=12))
    return svg(460, 394, parts, f"{rung.name}: buffers in VMEM")


def _spec(rung: Rung) -> MatmulSpec:
    size = SMALL_SIZE if rung.name in ("v1", "v2", "v3") else SIZE
    return MatmulSpec.of(size, size, size, "bfloat16")


def matrix(name: str, left: float, top: float, counts: tuple[int, int], blocks: list[tuple[int, int]]) -> list[str]:
    """Draw a matrix cut into `counts` blocks; the first of `blocks` is the step's, the others come next."""
    rows, columns = counts
    height, width = SIDE / rows, SIDE / columns
    shapes = [text(left, top + SIDE + 16, name)]
    for number, (row, column) in reversed(list(enumerate(blocks))):
        opacity = 0.85 if number == 0 else 0.35
        shapes.append(box(left + column * width, top + row * height, width, height, COLOURS[name], opacity))
    lines = [f"M{left + c * width:.1f} {top}v{SIDE}" for c in range(columns + 1)]
    lines += [f"M{left} {top + r * height:.1f}h{SIDE}" for r in range(rows + 1)]
    return [*shapes, f'<path d="{"".join(lines)}" stroke="{INK}" fill="none"/>']


def buffers(rung: Rung, spec: MatmulSpec) -> list[str]:
    """Draw the buffers as rows of slots, in proportion to their blocks."""
    tiles = rung.default_tiles(spec, 4)
    left, top = 10.0, 40.0
    shapes = [text(left, 22, "VMEM: buffers", bold=True)]
    rung_buffers = rung.buffers(spec, tiles)
    scale = 60 / max(side for buffer in rung_buffers for side in buffer.shape)
    for buffer in rung_buffers:
        height, width = (max(8.0, side * scale) for side in buffer.shape)
        for slot in range(buffer.copies):
            at = left + 125 + slot * (width + 48)
            filled = slot == 0 or buffer.name in ("lhs", "rhs")
            shapes.append(box(at, top, width, height, COLOURS[buffer.name], 0.85 if slot == 0 else 0.35 * filled))
            shapes.append(box(at, top, width, height, "none", 1, stroke=INK))
            if rung.vmem_limit_bytes and buffer.name != "lhs":  # two subtiles of columns
                shapes.append(
                    f'<path d="M{at + width / 2:.1f} {top}v{height:.1f}" stroke="{INK}" stroke-dasharray="3"/>'
                )
            shapes.append(text(at + width + 4, top + 12, _said(rung, buffer.name, slot)))
        rows, columns = buffer.shape
        shapes.append(text(left, top + 12, f"{buffer.name}_vmem"))
        shapes.append(text(left, top + 28, f"{rows}×{columns} {buffer.dtype}", size=11))
        top += max(height, 30) + 14
    return shapes


def _said(rung: Rung, name: str, slot: int) -> str:
    """Return the content of a slot while the step computes."""
    if name == "acc":
        return "stays"
    if name == "out":
        return ("sum" if not rung.accumulator and rung.takes_tiles else "result") if slot == 0 else "leaves"
    return "now" if slot == 0 else f"t + {slot}"


def pipeline_picture() -> str:
    """Draw copies and additions over time, with one buffer per block and with two."""
    parts = []
    for name, top, pipelined in (
        ("one buffer: one after the other", 20, False),
        ("two buffers: a pipeline", 190, True),
    ):
        parts.append(text(10, top, name, bold=True))
        for row, label in enumerate(("copy x, y in", "add", "copy z out")):
            parts.append(text(10, top + 34 + row * 40, label))
            for step in range(4):
                start = step + row if pipelined else 3 * step + row
                if start > 8:
                    continue
                color = COLOURS["lhs"] if step % 2 == 0 or not pipelined else COLOURS["rhs"]
                left = 92 + start * 42
                parts.append(box(left, top + 14 + row * 40, 40, 30, color, 0.85))
                parts.append(text(left + 2, top + 34 + row * 40, f"step {step}", size=11, fill="#ffffff"))
    parts.append(text(10, 342, "blue: buffer 0 · orange: buffer 1 · time goes to the right", size=12))
    return svg(480, 350, parts, "Copies and additions over time, without a pipeline and with one")


def box(left: float, top: float, width: float, height: float, fill: str, opacity: float, stroke: str = "none") -> str:
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" '
        f'fill-opacity="{opacity}" stroke="{stroke}"/>'
    )


def text(left: float, top: float, words: str, *, bold: bool = False, size: int = 13, fill: str = INK) -> str:
    """Draw a line of text; `top` is its base line."""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{left:.1f}" y="{top:.1f}" fill="{fill}" font-size="{size}"{weight}>{words}</text>'


def svg(width: int, height: int, parts: list[str], title: str) -> str:
    sizes = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {sizes} font-family="sans-serif">'
    return "\n".join([head, f"<title>{title}</title>", *parts, "</svg>\n"])
