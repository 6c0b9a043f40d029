"""Teach TPU interpret mode more about references: reshaped references, and stores under a mask."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from systolic.compat.reshaped import is_reshaped, read_reshaped, slicing, write_reshaped

_Place = tuple[Any, Any, Any, Any, Any]  # a token, the device, the core, the memory, the number of the buffer


def buffer_view(memory: Any, buffer: int, device: int, core: int, transforms: Any) -> Any:
    """Return a part of a buffer of the running kernel, whose accesses TPU interpret mode does not notice.

    It is None if there is no such buffer. Without a number of its memory space it may be of any; `transforms` say which
    part, as interpret mode gives it to its functions.
    """
    held = _held(memory, buffer, device, core)
    if held is None:
        return None
    view = held.content[_ranges(transforms)]
    return view if getattr(view, "ndim", 0) else None  # NumPy gives no view of one element


def _held(memory: Any, buffer: int, device: int, core: int) -> Any:
    """Return a buffer of the interpreter; None if it does not exist."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    calls: Any = interpret_pallas_call
    buffers = calls._get_shared_memory().mem
    if memory is None:
        return next((held for key, held in list(buffers.items()) if key[1:3] == (buffer, device)), None)
    name = calls.TPU_MEMORY_SPACE_NAMES[int(memory)]
    return buffers.get((name, buffer, device, calls._local_core_id_or_zero_if_hbm(core, name)))


def _ranges(transforms: Any) -> tuple[int | slice, ...]:
    import jax
    from jax._src.pallas.mosaic.interpret import utils

    return utils.to_range(jax.tree.map(int, transforms))


@contextmanager
def all_references() -> Iterator[None]:
    """Let TPU interpret mode accept references that a kernel reshapes or bitcasts, and masks of stores.

    Its own test whether a masked store ends inside of its buffer (jax 0.10 to 0.12) holds every dimension against the
    first, and calls stores of 8 × 2 elements out of bounds.
    """
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    calls: Any = interpret_pallas_call
    before = {name: getattr(calls, name) for name in ("get", "store", "swap")}
    for name, made in (("get", _get), ("store", _store), ("swap", _swap)):
        function: Any = made(before[name])
        function.__wrapped__ = made(before[name].__wrapped__)  # copies of the kernel's own call use it
        setattr(calls, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(calls, name, function)


def _array(place: _Place) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of a buffer."""
    _, device, core, memory, number = place
    held = _held(memory, int(number), int(device), int(core))
    return tuple(held.logical_shape), held.dtype


def _whole(transforms: Any) -> tuple[Any, ...]:
    import jax

    return jax.tree.map(int, tuple(transforms))


def _get(get: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(get)
    def got(*arguments: Any, **kw: Any) -> Any:
        place, transforms, rest = arguments[:5], arguments[5], arguments[6:]
        if not is_reshaped(transforms):
            return get(*arguments, **kw)
        return place[0], read_reshaped(
            lambda slices: get(*place, slices, *rest, **kw)[1], _whole(transforms), *_array(place)
        )

    return got


def _store(store: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(store)
    def stored(*arguments: Any, **kw: Any) -> Any:
        place, transforms, value, rest = arguments[:5], arguments[5], arguments[6], arguments[7:]
        if not is_reshaped(transforms):
            return store(*arguments, **kw)

        def write(slices: Any, part: Any) -> None:
            store(*place, slices, part, *rest, **kw)

        write_reshaped(write, _whole(transforms), *_array(place), np.asarray(value))
        return place[0]

    return stored


def _swap(swap: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(swap)
    def swapped(*arguments: Any, **kw: Any) -> Any:
        place, transforms, value, mask = arguments[:5], arguments[5], np.asarray(arguments[6]), arguments[7]
        if is_reshaped(transforms):
            if mask is not None:
                raise NotImplementedError("a masked store to a reference that is reshaped")
            return place[0], write_reshaped(
                lambda slices, part: swap(*place, slices, part, None, **kw)[1],
                _whole(transforms),
                *_array(place),
                value,
            )
        if mask is None:
            return swap(*arguments, **kw)
        return _masked(swap, place, transforms, value, np.asarray(mask), kw)

    return swapped


def _masked(
    swap: Callable[..., Any], place: _Place, transforms: Any, value: np.ndarray, mask: np.ndarray, kw: dict[str, Any]
) -> Any:
    """Turn a store under a mask into one of its part inside of the buffer, with old content where the mask is off."""
    shape, _ = _array(place)
    ranges = _ranges(transforms)
    if any(isinstance(index, int) and index >= size for index, size in zip(ranges, shape, strict=False)):
        return swap(*place, transforms, value, None, **kw) if mask.any() else (place[0], value)
    inside, region = _clipped(ranges, shape)
    outside = mask.copy()
    outside[inside] = False
    if outside.any():
        return swap(*place, transforms, value, None, **kw)  # its error says how far the store is out of bounds
    if not mask[inside].size:
        return place[0], value
    indexer = slicing(region, shape)
    view = buffer_view(place[3], int(place[4]), int(place[1]), int(place[2]), (indexer,))
    if view is None:  # one element
        return swap(*place, transforms, value, mask, **kw)
    before = np.array(view)
    swap(*place, (indexer,), np.where(mask[inside], value[inside], before), None, **kw)
    masked = value.copy()
    masked[inside] = np.where(mask[inside], before, value[inside])
    return place[0], masked


def _clipped(
    ranges: Sequence[int | slice], shape: Sequence[int]
) -> tuple[tuple[slice, ...], list[int | tuple[int, int, int]]]:
    """Return the part of an access that is inside of a buffer, and its start, size and stride."""
    inside, region = list[slice](), list[int | tuple[int, int, int]]()
    for index, size in itertools.zip_longest(ranges, shape):
        if isinstance(index, int):
            region.append(index)
            continue
        start, stop, step = (0, size, 1) if index is None else (index.start, index.stop, index.step or 1)
        count = len(range(start, min(stop, size), step))
        inside.append(slice(0, count))
        region.append((start, count, step))
    return tuple(inside), region
