"""The page "How far to trust a simulated time", made from a comparison with published times."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from systolic.accuracy.kind_errors import shipped_kind_errors
from systolic.accuracy.time_error import percent_text, shipped_time_errors
from systolic.chips import Chip, flags_text
from systolic.chips.constants import FittedConstants, fittable
from systolic.support.extras import check_drawing
from systolic.validation.errors import ChipStatistics, ComparedRow, ErrorStatistics, collective_statistics
from systolic.validation.published import COLLECTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustFacts:
    """Numbers of the page."""

    command: str
    versions: Mapping[str, str]
    dispatch_us: float
    rows: Sequence[ComparedRow]
    statistics: Mapping[str, ChipStatistics]
    chips: Sequence[Chip]  # as they were used
    constants: FittedConstants | None  # in place of shipped ones
    plot: str | None  # where the picture is, seen from the page


def trust_page(facts: TrustFacts) -> str:
    """Write the page, in Markdown; raise DrawingMissing if the library of its template is not installed."""
    check_drawing()
    import jinja2

    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"percent": _percent, "cell": _cell, "us": _us, "flags": flags_text, "error": _error}
    environment.filters |= {"number": _number, "folded": _folded}
    template = environment.from_string(files(str(__package__)).joinpath("trust.md.jinja").read_text("utf-8"))
    of_one_device = [row for row in facts.rows if row.kind != COLLECTIVE]
    counted = [row for row in of_one_device if row.counted]
    return template.render(
        facts=facts,
        counted=counted,
        not_counted=[row for row in of_one_device if not row.counted],
        in_view=[row for row in counted if row.in_view],
        collectives=[row for row in facts.rows if row.kind == COLLECTIVE],
        of_collectives=collective_statistics(facts.rows),
        lines=_statistics_lines(facts.statistics),
        errors=shipped_time_errors(),
        kinds=shipped_kind_errors(),
        sources=_sources(facts.chips),
    )


def _folded(command: str) -> str:
    """Continue a long command on further lines of an indented block, after commas and spaces, as a shell reads it."""
    return "\\\n    ".join(re.findall(r".{1,110}(?:[, ]|$)", command))


def _statistics_lines(statistics: Mapping[str, ChipStatistics]) -> list[tuple[str, ErrorStatistics]]:
    lines = []
    for chip, chip_errors in statistics.items():
        lines.append((f"{chip}, all", chip_errors.every))
        lines.append((f"{chip}, from 2048", chip_errors.from_2048))
        if chip_errors.from_2048_not_in_view.rows < chip_errors.from_2048.rows:
            lines.append((f"{chip}, from 2048, not in view", chip_errors.from_2048_not_in_view))
    return [(name, errors) for name, errors in lines if errors.rows]


def _sources(chips: Sequence[Chip]) -> list[tuple[str, list[str], str]]:
    """List the sources of the constants that can be fitted: the chip, names that share a source, the source."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for chip in chips:
        for name in fittable(chip):
            grouped.setdefault((chip.name, chip.sources[f"machine.{name}"]), []).append(name)
    return [(chip, names, source) for (chip, source), names in grouped.items()]


def _percent(value: float | None, sign: bool = False) -> str:
    return "" if value is None else f"{value:{'+' if sign else ''}.1%}".replace("%", " %")


def _number(value: float | None, sign: bool = False) -> str:
    return "" if value is None else f"{value:{'+' if sign else ''}.1f}"


def _error(percent: float | None) -> str:
    return "not known" if percent is None else f"± {percent_text(percent)}"


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _cell(text: object) -> str:
    """Clean text that must not end a table's cell."""
    return " ".join(str(text).split()).replace("|", "\\|")
