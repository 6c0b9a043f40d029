"""Errors of simulated times by chip and kind of published program, as a stored table.

`systolic validate … --kinds FILE` makes `kind_errors.json`; do not edit it by hand.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources

from systolic.support.ranges import Amount, Change, Count
from systolic.support.untrusted import UntrustedError, read_json, structured

_FILE = "kind_errors.json"


class KindErrorsError(ValueError):
    """A file of errors by kind that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindErrors:
    """Errors of the rows of one kind of program on one chip, of one half.

    Attributes:
      in_view: the half that constants may be fitted to; else the half that is held out.
      rows: rows with a simulated time.
      refused: rows without one.
      other_programs: rows for which another program was timed: the published time is shorter than the compiled program
        can take.
      median_percent, p90_percent: of the errors' sizes; None: no row.
      bias_percent: the median of the signed errors.
      with_interval: rows whose simulated time has an interval.
      covered: rows whose published time lies in it.
      worst: the program with the largest error.
      worst_percent: the signed error of this program.
    """

    chip: str
    kind: str
    in_view: bool
    rows: Count
    refused: Count
    other_programs: Count
    median_percent: Amount | None
    p90_percent: Amount | None
    bias_percent: Change | None
    with_interval: Count
    covered: Count
    worst: str = ""
    worst_percent: Change | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindErrorsTable:
    """The errors of all kinds, and their origin."""

    command: str
    versions: Mapping[str, str]
    kinds: tuple[KindErrors, ...]

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> KindErrorsTable:
        """Read the text of `as_json`.

        Raises:
          KindErrorsError: the text is not a table of errors by kind.
        """
        try:
            return structured(read_json(text), cls)
        except UntrustedError as error:
            raise KindErrorsError(f"these are no errors by kind of program: {error}") from error


@functools.cache
def shipped_kind_errors() -> KindErrorsTable:
    return KindErrorsTable.from_json((resources.files(str(__package__)) / _FILE).read_text(encoding="utf-8"))
