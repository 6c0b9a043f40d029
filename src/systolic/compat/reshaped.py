"""References that a kernel reshapes or bitcasts, in TPU interpret mode, which knows slices of references alone.

An access to such a reference is one to some elements of the buffer. The interpreter is asked for them in boxes, evenly
spaced along each dimension, so that it looks for races in what is accessed and nowhere else; what the kernel sees of
them is made here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_Box = tuple[tuple[int, int, int], ...]  # start, size and stride along each dimension


def slicing(region: Sequence[int | tuple[int, int, int]], shape: tuple[int, ...]) -> Any:
    """Make the transform that slices a reference of that shape: an index, or start, size and stride, a dimension."""
    from jax._src.state import indexing as jax_indexing

    indexing: Any = jax_indexing  # the module exports none of its names

    indices = tuple(index if isinstance(index, int) else indexing.Slice(*index) for index in region)
    return indexing.NDIndexer(indices=indices, shape=shape, int_indexer_shape=())


def is_reshaped(transforms: Any) -> bool:
    """True if a reference is more than sliced."""
    return any(not hasattr(transform, "indices") for transform in transforms)


def read_reshaped(read: Callable[[Any], Any], transforms: Sequence[Any], shape: Sequence[int], dtype: Any) -> Any:
    """Read a reshaped reference.

    Args:
      read: reads what slices of the buffer hold.
      transforms: of the reference, as the interpreter has them.
      shape: of the buffer.
      dtype: of the buffer.

    Raises:
      NotImplementedError: the reference is transformed in another way.
    """
    slices, rest, inner = _split(transforms, shape)
    held = np.zeros(inner, dtype)
    for box in _boxes(_elements(inner, rest, dtype), inner):
        held[_region(box)] = read((*slices, slicing(box, inner)))
    return _seen(held, rest)


def write_reshaped(
    write: Callable[[Any, Any], Any], transforms: Sequence[Any], shape: Sequence[int], dtype: Any, value: Any
) -> Any:
    """Write to a reference that is reshaped, and not bitcast; see `read_reshaped`.

    Args:
      write: writes to slices of the buffer, and returns what they held, or None.
      value: what is written.

    Returns:
      What was there, in the shape of what is written; None if `write` does not say.
    """
    slices, rest, inner = _split(transforms, shape)
    if any(hasattr(argument, "dtype") for argument in rest):
        raise NotImplementedError("a store to a reference that is bitcast")
    places = _elements(inner, rest, dtype)[..., 0]
    held = np.zeros(inner, np.asarray(value).dtype)
    held.reshape(-1)[places] = value
    before = None
    for box in _boxes(places[..., None], inner):
        before = write((*slices, slicing(box, inner)), held[_region(box)])
        if before is not None:
            held[_region(box)] = before
    if before is None:
        return None
    return held.reshape(-1)[places]


def _split(transforms: Sequence[Any], shape: Sequence[int]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[int, ...]]:
    """Return the slices before the first other transform, the rest, and the shape between them."""
    at = next(number for number, transform in enumerate(transforms) if not hasattr(transform, "indices"))
    inner = tuple(transforms[at - 1].get_indexer_shape()) if at else tuple(shape)
    return tuple(transforms[:at]), tuple(transforms[at:]), inner


def _elements(shape: tuple[int, ...], transforms: Sequence[Any], dtype: Any) -> np.ndarray:
    """Return the numbers of the array's elements that make up each element of a reference, along the last axis."""
    elements = np.arange(math.prod(shape)).reshape(*shape, 1)
    bits = np.dtype(dtype).itemsize
    for transform in transforms:
        if hasattr(transform, "indices"):
            elements = elements[_indices(transform)]
        elif hasattr(transform, "dtype"):
            itemsize = np.dtype(transform.dtype).itemsize
            if itemsize > bits:  # consecutive rows share an element
                ratio = itemsize // bits
                rows = elements.reshape(*elements.shape[:-3], elements.shape[-3] // ratio, ratio, *elements.shape[-2:])
                elements = np.moveaxis(rows, -3, -2).reshape(*rows.shape[:-3], rows.shape[-2], -1)
            elif itemsize < bits:
                elements = elements.repeat(bits // itemsize, axis=-3)
            bits = itemsize
        elif type(transform).__name__ == "ReshapeTransform":
            elements = elements.reshape(*transform.shape, elements.shape[-1])
        else:
            raise NotImplementedError(f"a reference under {type(transform).__name__}")
    return elements


def _boxes(elements: np.ndarray, shape: tuple[int, ...]) -> list[_Box]:
    """Return boxes, evenly spaced along each dimension, that together are the elements with these numbers."""
    if not elements.size:
        return []  # a slice of a length that is known when the kernel runs may be empty
    return _boxes_of(np.stack(np.unravel_index(np.unique(elements), shape), axis=1))


def _boxes_of(places: np.ndarray) -> list[_Box]:
    box, split = list[tuple[int, int, int]](), -1
    for dimension, along in enumerate(map(np.unique, places.T)):
        steps = np.unique(np.diff(along))
        if split < 0 and (len(along) > 1):
            split = dimension
        if len(steps) > 1:
            break
        box.append((int(along[0]), len(along), int(steps[0]) if len(steps) else 1))
    if len(box) == places.shape[1] and math.prod(size for _, size, _ in box) == len(places):
        return [tuple(box)]
    return [box for at in np.unique(places[:, split]) for box in _boxes_of(places[places[:, split] == at])]


def _region(box: _Box) -> tuple[slice, ...]:
    return tuple(slice(start, start + size * stride, stride) for start, size, stride in box)


def _indices(indexer: Any) -> tuple[int | slice, ...]:
    return tuple(
        index if isinstance(index, int) else slice(index.start, index.start + index.size * index.stride, index.stride)
        for index in indexer.indices
    )


def _seen(held: np.ndarray, transforms: Sequence[Any]) -> np.ndarray:
    """Return the part of an array that a reference shows."""
    for transform in transforms:
        if hasattr(transform, "indices"):
            held = held[_indices(transform)]
        elif hasattr(transform, "dtype"):
            held = _bitcast(held, np.dtype(transform.dtype))
        else:
            held = held.reshape(transform.shape)
    return held


def _bitcast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Take the bits for another type: consecutive rows share an element, the first in its low bits."""
    if dtype.itemsize == array.dtype.itemsize:
        return array.view(dtype)
    if dtype.itemsize > array.dtype.itemsize:
        ratio = dtype.itemsize // array.dtype.itemsize
        rows = array.reshape(*array.shape[:-2], array.shape[-2] // ratio, ratio, array.shape[-1])
        return np.ascontiguousarray(np.swapaxes(rows, -1, -2)).view(dtype)[..., 0]
    parts = np.ascontiguousarray(array)[..., None].view(dtype)
    return np.swapaxes(parts, -1, -2).reshape(*array.shape[:-2], -1, array.shape[-1])
