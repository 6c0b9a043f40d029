"""Read values from files and programs that may be broken or hostile: strictly, with errors of one line."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import cattrs
from cattrs import AttributeValidationNote
from cattrs.gen import make_dict_structure_fn, override

from systolic.support.printable import printable
from systolic.support.ranges import Range
from systolic.support.regular_file import read_regular

_T = TypeVar("_T")

_LARGEST = 2**63  # SQLite and C hold no larger whole number
_SHOWN = 60  # characters of a value that is refused
_FIRST_FORMAT = 1  # records were without one before


class UntrustedError(ValueError):
    """A value is not as required; the message is one line, with the place and the value."""


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, as RFC 8259 has it.

    Python's own reader also takes NaN and Infinity, keeps the last of several equal keys, and ends a text of a hundred
    thousand brackets with a `RecursionError`.

    Raises:
      UntrustedError: it is not such a text.
    """
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8-sig")
        return json.loads(decoded, parse_constant=_no_number, object_pairs_hook=_without_duplicates)
    except UntrustedError:
        raise
    except RecursionError as error:
        raise UntrustedError("not JSON that can be read: it is nested too deep") from error
    except UnicodeDecodeError as error:
        raise UntrustedError(f"not JSON: byte {error.start + 1} is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise UntrustedError(f"not JSON: {printable(str(error))}") from error
    except ValueError as error:
        raise UntrustedError("not JSON that can be read: a number has thousands of digits") from error


def read_json_file(path: Path, error: type[ValueError], *, expected: str = "") -> Any:
    """Return the value of a JSON file; raise `error` if it cannot be read or is no JSON. `expected` names its kind."""
    try:
        return read_json(read_regular(path))
    except OSError as reason:
        raise error(f"cannot read {path}: {reason.strerror}") from reason
    except UntrustedError as reason:
        raise error(f"{path} is {reason}" + (f"; this takes {expected}" if expected else "")) from reason


def structured(value: Any, kind: type[_T]) -> _T:
    """Return a record made from values of `read_json`. Nothing is converted: "5.0" and true are not numbers.

    A number is finite and in the `Range` of its field, a whole number is below 2⁶³ either way, text has no half of a
    surrogate pair, no field is missing or unknown.

    Args:
      kind: a dataclass, whose own checks raise `ValueError`. If fields have to agree with each other, its method
        `check_saved` raises a `ValueError`.

    Raises:
      UntrustedError: it is not such a record.
    """
    try:
        return _converter().structure(value, kind)
    except RecursionError as error:
        raise UntrustedError("nested too deep") from error
    except Exception as error:
        raise UntrustedError(_reason(error)) from error


def read_record(text: str, kind: type[_T], what: str, error: type[ValueError] = ValueError) -> _T:
    """Return a record from JSON text that `json.dumps(cattrs.unstructure(record))` wrote.

    Args:
      text: the JSON text.
      kind: a dataclass; where it has a field `format` with a default, the text has to have the same;
        none counts as 1.
      what: names the record in messages: "simulated run".
      error: the exception to raise.

    Raises:
      ValueError: as `error`: the text is not such a record, or has another format.
    """
    try:
        document = read_json(text)
        expected_format = {field.name: field.default for field in dataclasses.fields(kind)}.get("format")  # type: ignore[arg-type]
        found_format = document.get("format") if isinstance(document, dict) else None
        if found_format != expected_format and (found_format, expected_format) != (None, _FIRST_FORMAT):
            raise UntrustedError(f"format {expected_format} is read here, and not that of {shown(found_format)}")
        return structured(document, kind)
    except UntrustedError as reason:
        raise error(f"this is not {'an' if what[0] in 'aeiou' else 'a'} {what}: {reason}") from reason


def shown(value: Any) -> str:
    """Return a value for a message: one line, cut short, without control characters."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # an integer with thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _no_number(name: str) -> None:
    raise UntrustedError(f"not JSON: {name} is not a number there")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise UntrustedError(f"not JSON that can be read: the key {shown(twice)} is there twice")
    return result


@functools.cache
def _converter() -> cattrs.Converter:
    made = cattrs.Converter(forbid_extra_keys=True)
    made.register_structure_hook(bool, lambda value, _: _exactly(value, bool, "true or false"))
    made.register_structure_hook(int, lambda value, _: _whole(value))
    made.register_structure_hook(float, lambda value, _: _number(value))
    made.register_structure_hook(str, lambda value, _: _text(value))
    made.register_structure_hook_func(lambda kind: get_origin(kind) is Literal, _one_of)
    made.register_structure_hook_factory(lambda kind: get_origin(kind) is tuple, lambda kind: _list_hook(made, kind))
    made.register_structure_hook_factory(
        lambda kind: get_origin(kind) in (dict, Mapping), lambda kind: _dict_hook(made, kind)
    )
    made.register_structure_hook_factory(
        lambda kind: get_origin(kind) is Annotated, lambda kind: _range_hook(made, kind)
    )
    made.register_structure_hook_factory(
        lambda kind: hasattr(kind, "__dataclass_fields__"), lambda kind: _record_hook(made, kind)
    )
    return made


def _list_hook(converter: cattrs.Converter, kind: Any) -> Callable[[Any, Any], tuple[Any, ...]]:
    (inner, _) = get_args(kind)  # of any length

    def structure(value: Any, _: Any) -> tuple[Any, ...]:
        entries = enumerate(_exactly(value, list, "a list"))
        return tuple(_placed(converter, entry, inner, index) for index, entry in entries)

    return structure


def _dict_hook(converter: cattrs.Converter, kind: Any) -> Callable[[Any, Any], dict[Any, Any]]:
    names, values = get_args(kind)

    def structure(value: Any, _: Any) -> dict[Any, Any]:
        pairs = _exactly(value, dict, "an object").items()
        return {converter.structure(name, names): _placed(converter, entry, values, name) for name, entry in pairs}

    return structure


def _placed(converter: cattrs.Converter, value: Any, kind: Any, place: object) -> Any:
    try:
        return converter.structure(value, kind)
    except Exception as error:
        error.add_note(AttributeValidationNote("", printable(str(place))[:_SHOWN], kind))
        raise


def _range_hook(converter: cattrs.Converter, kind: Any) -> Callable[[Any, Any], Any]:
    inner, *ranges = get_args(kind)

    def structure(value: Any, _: Any) -> Any:
        number = converter.structure(value, inner)
        for limits in ranges:
            if isinstance(limits, Range) and not limits.holds(number):
                raise UntrustedError(f"{shown(value)} is not {limits}")
        return number

    return structure


def _record_hook(converter: cattrs.Converter, kind: Any) -> Callable[[Any, Any], Any]:
    # cattrs reads hints that are texts without what they are annotated by.
    bare, hints = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    ranged: dict[str, Any] = {
        field.name: override(struct_hook=functools.partial(_field, converter, hints[field.name]))
        for field in dataclasses.fields(kind)
        if hints[field.name] != bare[field.name]
    }
    structure = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True, **ranged)
    check = getattr(kind, "check_saved", None)

    def checked(value: Any, _: Any) -> Any:
        record = structure(_exactly(value, dict, "an object"), kind)
        if check is not None:
            check(record)
        return record

    return checked


def _field(converter: cattrs.Converter, hint: Any, value: Any, _: Any) -> Any:
    return converter.structure(value, hint)


def _exactly(value: Any, kind: type[_T], name: str) -> _T:
    if type(value) is not kind:
        raise UntrustedError(f"{shown(value)} is not {name}")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not -_LARGEST <= value < _LARGEST:
        raise UntrustedError(f"{shown(value)} is not an integer below 2^63")
    return value


def _number(value: Any) -> float:
    try:
        number = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UntrustedError(f"{shown(value)} is not a finite number")
    return number


def _text(value: Any) -> str:
    text = _exactly(value, str, "a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UntrustedError(f"{shown(value)} is not Unicode text") from error
    return text


def _one_of(value: Any, kind: Any) -> Any:
    choices = get_args(kind)
    if type(value) is not str or value not in choices:
        raise UntrustedError(f"{shown(value)} is none of {', '.join(choices)}")
    return value


def _reason(error: BaseException) -> str:
    """Return the first error and its place: cattrs raises a tree with a note of the place at each level."""
    places = _places(error)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
        places += _places(error)
    if isinstance(error, KeyError):
        reason = f"{error.args[0]} is missing"
    elif isinstance(error, cattrs.ForbiddenExtraKeysError):
        reason = f"{shown(min(error.extra_fields))} is not known"
    else:
        reason = printable(str(error)) or type(error).__name__
    return f"{'.'.join(places)}: {reason}" if places else reason


def _places(error: BaseException) -> list[str]:
    return [str(note.name) for note in reversed(getattr(error, "__notes__", ())) if hasattr(note, "name")]


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """Return the value if it is a JSON object; raise UntrustedError if it is none."""
    if not isinstance(value, dict):
        raise UntrustedError(f"{what} is not an object but {shown(value)}")
    return value
