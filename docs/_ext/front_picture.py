"""Draw the picture of the front page: what systolic does with a kernel, and the times that it finds.

The figures come from the first report of the gallery. The picture is as narrow as a phone: a wider one would be scaled
down there, and its words with it.
"""

from __future__ import annotations

from pictures import COLOURS, INK, box, svg, text

from systolic import Explanation
from systolic.explaining.explanation import Program

_WIDTH, _STATION, _BAR = 480, 46, 260  # pixels


def front_picture(found: Explanation) -> str:
    """Draw the steps of `found` from top to bottom, and below them each program's time as a bar."""
    stations = (
        ("your kernel", found.function.rpartition(":")[2], "any JAX function"),
        ("the TPU compiler", "is it accepted?", "on Linux, without a TPU"),
        (f"a model of the {found.chip}", "how long, and why?", "executes the program"),
        ("the kernel, changed", "what would be faster?", "compiled and executed too"),
    )
    tops = [10 + number * (_STATION + 16) for number in range(len(stations))]
    parts = [part for top, station in zip(tops, stations, strict=True) for part in _station(top, station)]
    parts += [_arrow(top + _STATION) for top in tops[:-1]]
    programs = _shown(found)
    longest = max(time_us for _, _, time_us in programs)
    for number, (name, color, time_us) in enumerate(programs):
        top = tops[-1] + _STATION + 22 + number * 32
        width = max(2.0, time_us / longest * _BAR)
        parts += [
            box(10, top, width, 24, color, 0.85),
            text(18 + width, top + 17, f"{time_us:,.1f} µs: {name}"),
        ]
    below = tops[-1] + _STATION + 22 + len(programs) * 32
    arguments = " · ".join(found.arguments)
    parts.append(text(10, below + 18, f"{arguments} on {found.chip_title}, simulated", size=12))
    return svg(_WIDTH, below + 30, parts, "A kernel is compiled, executed on a model of the chip, and changed")


def _shown(found: Explanation) -> list[tuple[str, str, float]]:
    """Return the kernel, the best of its changes, and its alternatives: name, color, time."""
    timed = [program for program in found.programs if program.time_us is not None]

    def fastest(role: str) -> list[Program]:
        return sorted((program for program in timed if program.role == role), key=lambda each: each.time_us or 0.0)[:1]

    chosen = [
        *((program, "your kernel", COLOURS["rhs"]) for program in fastest("this")),
        *((program, f"with {program.label.replace('tile_', '')}", COLOURS["out"]) for program in fastest("change")),
        *((program, program.label, COLOURS["lhs"]) for program in fastest("other")),
        *((program, program.label, INK) for program in fastest("xla")),
    ]
    return [(name, color, program.time_us) for program, name, color in chosen if program.time_us is not None]


def _station(top: float, lines: tuple[str, str, str]) -> list[str]:
    title, question, condition = lines
    return [
        box(10, top, _WIDTH - 20, _STATION, "none", 1, stroke=INK),
        text(22, top + 28, title, bold=True),
        text(210, top + 19, question),
        text(210, top + 37, condition, size=12),
    ]


def _arrow(top: float) -> str:
    return f'<path d="M110 {top + 1}v14m-5 -5l5 5l5 -5" stroke="{INK}" fill="none"/>'
