"""Results that are saved as JSON text."""

from __future__ import annotations

import json
from typing import ClassVar, Self

import cattrs

from systolic.support.summary import Summarised
from systolic.support.untrusted import read_record


class SavedResult(Summarised):
    """A result that is written as JSON text and read again. Its dataclass has a field `format`."""

    __slots__ = ()

    saved_name: ClassVar[str]  # names the result in messages: "simulated run"
    saved_error: ClassVar[type[ValueError]] = ValueError

    def to_json(self) -> str:
        """Return JSON text for `from_json`."""
        return json.dumps(cattrs.unstructure(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the text of `to_json`.

        Raises:
          ValueError: the text is not such a result, or one of another version's format; of an explanation it is an
            `ExplanationError`, of a check a `CheckReportError`.
        """
        return read_record(text, cls, cls.saved_name, cls.saved_error)
