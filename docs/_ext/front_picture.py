"""Draw the picture of the front page: what systolic does with a kernel, and the times that it finds.

The figures come from the first report of the gallery.
"""

from __future__ import annotations

from pictures import COLOURS, INK, box, svg, text

from systolic import Explanation
from systolic.explaining.explanation import Program

_WIDTH, _BAR = 780, 360  # pixels


def front_picture(found: Explanation) -> str:
    """Draw the steps of `found` from left to right, and below them each program's time as a bar."""
    stations = (
        ("your kernel", found.function.rpartition(":")[2], "any JAX function"),
        ("the TPU compiler", "is it accepted?", "on Linux, without a TPU"),
        (f"a model of the {found.chip}", "how long, and why?", "executes the program"),
        ("the kernel, changed", "what would be faster?", "compiled and executed too"),
    )
    parts = [part for number, station in enumerate(stations) for part in _station(10 + number * 196, station)]
    parts += [_arrow(182 + number * 196) for number in range(len(stations) - 1)]
    programs = _shown(found)
    longest = max(time_us for _, _, time_us in programs)
    for number, (name, color, time_us) in enumerate(programs):
        top = 132 + number * 34
        width = max(2.0, time_us / longest * _BAR)
        parts += [
            text(10, top + 17, name),
            box(270, top, width, 24, color, 0.85),
            text(278 + width, top + 17, f"{time_us:,.1f} µs"),
        ]
    below = 132 + len(programs) * 34
    arguments = " · ".join(found.arguments)
    parts.append(text(10, below + 20, f"{arguments} on {found.chip_title}; simulated, no TPU was there", size=11))
    return svg(_WIDTH, below + 32, parts, "A kernel is compiled, executed on a model of the chip, and changed")


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


def _station(left: float, lines: tuple[str, str, str]) -> list[str]:
    title, question, command = lines
    return [
        box(left, 10, 172, 88, "none", 1, stroke=INK),
        text(left + 12, 36, title, bold=True),
        text(left + 12, 60, question),
        text(left + 12, 82, command, size=11),
    ]


def _arrow(left: float) -> str:
    return f'<path d="M{left + 2} 54h18m-6 -5l6 5l-6 5" stroke="{INK}" fill="none"/>'
