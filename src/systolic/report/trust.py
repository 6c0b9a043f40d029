"""The page "How far to trust a simulated time" and its tables, made from a comparison with published times."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from systolic.accuracy.kind_errors import KindErrors, KindErrorsTable, shipped_kind_errors
from systolic.accuracy.time_error import percent_text, shipped_time_errors
from systolic.chips import Chip, flags_text
from systolic.chips.constants import FittedConstants, fittable
from systolic.support.extras import check_drawing
from systolic.validation.errors import ChipStatistics, ComparedRow, ErrorStatistics, collective_statistics
from systolic.validation.kind_statistics import GROUPS
from systolic.validation.published import COLLECTIVE

if TYPE_CHECKING:
    from jinja2 import Environment


_LARGEST_ERRORS = 6  # rows of the first page's table: it is read at a glance
_LARGE_PERCENT = 10  # the errors of kinds of programs that are listed with their causes


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustFacts:
    """Numbers of the pages."""

    command: str
    versions: Mapping[str, str]
    dispatch_us: float
    rows: Sequence[ComparedRow]
    statistics: Mapping[str, ChipStatistics]
    chips: Sequence[Chip]  # as they were used
    constants: FittedConstants | None  # in place of shipped ones
    plot: str | None  # where the picture is, seen from the first page
    page: str = "trust.md"  # the name of the first page

    @property
    def folder(self) -> str:
        """Name the folder of the other pages, seen from the first page."""
        return PurePath(self.page).stem


def trust_pages(facts: TrustFacts) -> dict[str, str]:
    """Write the pages, in Markdown: the first page, and the tables that it links to, each by its path.

    Raises:
      DrawingMissing: the library of their templates is not installed.
    """
    check_drawing()
    of_one_device = [row for row in facts.rows if row.kind != COLLECTIVE]
    counted = [row for row in of_one_device if row.counted]
    not_counted = [row for row in of_one_device if not row.counted]
    collectives = [row for row in facts.rows if row.kind == COLLECTIVE]
    rows_of = {chip: [row for row in counted if row.chip == chip] for chip in dict.fromkeys(r.chip for r in counted)}
    row_pages = {chip: f"rows_{re.sub('[^a-z0-9]', '_', chip)}.md" for chip in rows_of}
    render = functools.partial(
        _rendered,
        _environment(),
        facts=facts,
        errors=shipped_time_errors(),
        kinds=shipped_kind_errors(),
        large=_large_errors(shipped_kind_errors()),
    )
    tables = {f"{name}.md": render(name) for name in ("held_out", "in_view", "intervals")}
    tables |= {page: render("rows", chip=chip, rows=rows_of[chip]) for chip, page in row_pages.items()}
    tables["not_counted.md"] = render("not_counted", not_counted=not_counted)
    if collectives:
        tables["collectives.md"] = render("collectives", collectives=collectives)
    tables["constants.md"] = render("constants", sources=_sources(facts.chips))
    first = render(
        "first",
        counted=counted,
        not_counted=not_counted,
        in_view=[row for row in counted if row.in_view],
        collectives=collectives,
        of_collectives=collective_statistics(facts.rows),
        lines=_statistics_lines(facts.statistics),
        largest=_largest_errors(counted),
        halves=_halves(shipped_kind_errors()),
        row_pages=row_pages,
        names=list(tables),
    )
    return {facts.page: first} | {f"{facts.folder}/{name}": text for name, text in tables.items()}


def _environment() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(str(__package__), "trust_pages"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"percent": _percent, "cell": _cell, "us": _us, "flags": flags_text, "error": _error}
    environment.filters |= {"number": _number, "folded": _folded}
    return environment


def _rendered(environment: Environment, name: str, **values: object) -> str:
    text = environment.get_template(f"{name}.md.jinja").render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def _largest_errors(counted: Sequence[ComparedRow]) -> list[ComparedRow]:
    return sorted(counted, key=lambda row: abs(row.error or 0.0), reverse=True)[:_LARGEST_ERRORS]


def _large_errors(table: KindErrorsTable) -> list[KindErrors]:
    """Return the kinds of programs whose worst row is far off, the worst first."""
    worst = {kind: abs(kind.worst_percent or 0.0) for kind in table.kinds if kind.kind not in GROUPS}
    return sorted((kind for kind, size in worst.items() if size >= _LARGE_PERCENT), key=lambda kind: -worst[kind])


def _halves(table: KindErrorsTable) -> list[tuple[KindErrors, KindErrors | None]]:
    """Pair the errors of each chip's groups of kinds: the half that is held out, and the half in view."""
    halves = {(kind.chip, kind.kind, kind.in_view): kind for kind in table.kinds if kind.kind in GROUPS}
    return [(half, halves.get((chip, kind, True))) for (chip, kind, in_view), half in halves.items() if not in_view]


def _folded(command: str) -> str:
    """Continue a long command on further lines of an indented block, after commas and spaces, as a shell reads it."""
    return "\\\n    ".join(re.findall(r".{1,110}(?:[, ]|$)", command))


def _statistics_lines(statistics: Mapping[str, ChipStatistics]) -> list[tuple[str, ErrorStatistics]]:
    lines = []
    for chip, chip_errors in statistics.items():
        lines.append((f"{chip}, all", chip_errors.all_rows))
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
