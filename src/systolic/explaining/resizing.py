"""A function with other sizes, wherever they are: in its arguments, in arguments of inner functions, in constants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from systolic.compiler import NamedFunction, function_name, loaded_function
from systolic.explaining.entering import Home, values_changed, values_seen
from systolic.explaining.parameters import Place, keywords, record_inside
from systolic.explaining.places import Part, is_record, with_parts
from systolic.support.bugs import runs_user_code
from systolic.support.call_errors import WrongCallError


class NoRecordError(WrongCallError, ValueError):
    """A field is to be changed of an argument that holds no record."""


def with_sizes(fn: Callable[..., Any], sizes: Mapping[Any, Any], args: Sequence[Any] = ()) -> dict[str, Any]:
    """Make the keyword arguments that give a function these sizes, by `Place`.

    Args:
      fn: the function.
      sizes: of its keyword arguments; others are left out.
      args: its arguments. A record that it makes itself if it gets none depends on them.

    Raises:
      NoRecordError: a field is to be changed of a value that is not a record.
      TypeError, ValueError: a record of sizes does not take them.
    """
    parts: dict[str, dict[Part, Any]] = {}
    for place, size in sizes.items():
        if place.home is None:
            parts.setdefault(place.name, {})[place.part] = size
    keywords_of_fn = keywords(fn)
    return {
        name: changes[None]
        if None in changes
        else with_parts(_holding(fn, name, keywords_of_fn, changes, args), changes)
        for name, changes in parts.items()
    }


def _holding(
    fn: Callable[..., Any], name: str, keywords_of_fn: Mapping[str, Any], parts: Mapping[Part, Any], args: Sequence[Any]
) -> Any:
    """Return the tuple or record that an argument holds, or that the function makes in its place."""
    value = keywords_of_fn.get(name)
    if value is None:
        import jax

        with values_seen() as inside:
            jax.eval_shape(lambda *arguments: fn(*arguments), *args)
        value = record_inside(inside, name)
    fields = [part for part in parts if isinstance(part, str)]
    if value is None or (fields and not is_record(value)):
        raise NoRecordError(
            f"{function_name(fn)} has no record {name} whose fields could be changed: it is {value!r}, and no function "
            f"that it calls takes one of that name; bind one by functools.partial"
        )
    if missing := [part for part in fields if not hasattr(value, part)]:
        raise NoRecordError(f"{name}={value!r} has no field {', '.join(missing)}")
    return value


class WithKeywords:
    """A function with sizes, by `Place`, bound in addition to its bound arguments. It may be sent to a worker."""

    def __init__(self, fn: Callable[..., Any] | NamedFunction, sizes: Mapping[Any, Any]) -> None:
        self._fn = fn
        self.__name__ = function_name(fn)
        self._sizes = dict(sizes)

    @runs_user_code
    def __call__(self, *args: Any) -> Any:
        """Call the function with these sizes."""
        fn = loaded_function(self._fn)
        made = with_sizes(fn, self._sizes, args)
        inside: dict[Home, dict[Part, Any]] = {}
        for place, size in self._sizes.items():
            if place.home is not None:
                inside.setdefault(place.home, {})[place.part] = size
        changes = {home: functools.partial(with_parts, parts=parts) for home, parts in inside.items()}
        with values_changed(changes) if changes else nullcontext():
            return fn(*args, **made)


def with_fields(fn: Callable[..., Any] | NamedFunction, fields: Mapping[str, Any]) -> WithKeywords:
    """Bind fields of records among a function's keyword arguments: `{"block_sizes.block_q": 512}`."""
    return WithKeywords(fn, {Place.of(text): value for text, value in fields.items()})


def records_with(fn: Callable[..., Any], fields: Mapping[str, Any], args: Sequence[Any]) -> dict[str, Any]:
    """Make the keyword arguments for these: `{"block_sizes": BlockSizes(block_q=512, …)}`; see `with_sizes`."""
    return with_sizes(fn, {Place.of(text): value for text, value in fields.items()}, args)
