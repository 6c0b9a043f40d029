"""Numbers within values: of an argument itself, of a tuple, or of a record such as `BlockSizes`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from systolic.support.bugs import runs_user_code

Part = int | str | None  # the place in a tuple, or the field of a record; None: the value itself


def is_record(value: Any) -> bool:
    """True if a value has named fields: a dataclass, or a `NamedTuple`."""
    if isinstance(value, tuple):
        return hasattr(value, "_fields")
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def numbers_in(value: Any) -> Iterator[tuple[Part, int]]:
    """Yield the whole numbers of a value, with their places."""
    if _is_number(value):
        yield None, value
    elif is_record(value):
        names = getattr(value, "_fields", None) or [member.name for member in dataclasses.fields(value)]
        yield from ((name, number) for name in names if _is_number(number := getattr(value, name)))
    elif isinstance(value, tuple | list):
        yield from ((at, member) for at, member in enumerate(value) if _is_number(member))


def with_parts(value: Any, parts: Mapping[Part, Any]) -> Any:
    """Make a value of the same kind with other parts, all at once: a record may not take them one by one.

    Raises:
      TypeError, ValueError: a record does not take them, or has no such field.
    """
    if None in parts:
        return parts[None]
    if is_record(value):
        return _replaced(value, {str(part): member for part, member in parts.items()})
    return type(value)(parts.get(at, member) for at, member in enumerate(value))


@runs_user_code
def _replaced(record: Any, fields: Mapping[str, Any]) -> Any:
    replace: Any = getattr(record, "_replace", None) or functools.partial(dataclasses.replace, record)
    return replace(**fields)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
