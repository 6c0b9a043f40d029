"""Values with their sources in a chip's file, and their way into the record and its table of sources."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from systolic.chips.chip import Chip

_T = TypeVar("_T")

# Records of a chip whose fields each have a source.
_PARTS = ("sparse_core", "code_costs", "links", "machine")


@dataclass(frozen=True, slots=True)
class _Sourced:
    value: Any
    source: str


def sourced(value: _T, source: str) -> _T:
    """Return the value with its source, until `with_sources` takes them apart; type checkers see the value alone."""
    pair: Any = _Sourced(value, source)
    return pair


def with_sources(chip: Chip) -> Chip:
    """Return the chip with plain values, and with their sources in its table.

    A chip made from another by `dataclasses.replace` keeps the sources of unchanged values.
    """
    chip, sources = _taken_apart(chip)
    table = {**chip.sources, **sources}
    for part in _PARTS:
        if (record := getattr(chip, part)) is None:
            table = {name: source for name, source in table.items() if not name.startswith(f"{part}.")}
            continue
        plain, sources = _taken_apart(record)
        chip = replace(chip, **{part: plain})
        table.pop(part, None)
        table |= {f"{part}.{name}": source for name, source in sources.items()}
    return replace(chip, sources=table)


def _taken_apart(record: _T) -> tuple[_T, dict[str, str]]:
    values: Any = record
    pairs = {field.name: getattr(values, field.name) for field in fields(values)}
    pairs = {name: pair for name, pair in pairs.items() if isinstance(pair, _Sourced)}
    plain = replace(values, **{name: pair.value for name, pair in pairs.items()})
    return plain, {name: pair.source for name, pair in pairs.items()}
