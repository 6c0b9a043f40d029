"""Published times that were in view when constants of a chip were chosen, from `seen_rows.json`.

A prediction of such a row says less about the model than a prediction of an unseen row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

from systolic.support.untrusted import read_json, structured
from systolic.validation.device_times import for_fitting
from systolic.validation.published import PublishedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRows:
    """A pattern of published rows. None matches any value."""

    op: str | None = None  # as in a file of published times, such as "xla"
    sizes: tuple[int, ...] | None = None  # m, k, n
    tiles: tuple[int, ...] | None = None  # tile_m, tile_k, tile_n

    def matches(self, row: PublishedRow) -> bool:
        return (
            self.op in (None, row.op)
            and self.sizes in (None, (row.m, row.k, row.n))
            and self.tiles in (None, (row.tile_m, row.tile_k, row.tile_n))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRowsOfChip:
    """The rows of one chip, in addition to a tuning cache's, which were in view for every chip."""

    reason: str
    rows: tuple[SeenRows, ...]


@functools.cache
def seen_rows() -> dict[str, SeenRowsOfChip]:
    """Return the seen rows by chip, in any clock state."""
    text = (resources.files(str(__package__)) / "seen_rows.json").read_text(encoding="utf-8")
    return structured(read_json(text), dict[str, SeenRowsOfChip])


def in_view(row: PublishedRow) -> bool:
    """True if the shipped constants were chosen with such rows in view; of recorded ones, the half for fitting."""
    if row.arguments:
        return for_fitting(row)
    chip = seen_rows().get(row.chip.partition("@")[0])
    return "tuning cache" in row.source or (chip is not None and any(pattern.matches(row) for pattern in chip.rows))
