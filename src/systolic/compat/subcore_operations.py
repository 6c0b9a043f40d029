"""The operations of SparseCores, in terms of those that TPU interpret mode knows.

Each function takes an equation of a jaxpr and its inputs, references among them, and returns its outputs: a list where
the primitive has several results. None leaves the operation as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_Operation = Callable[[Any, Sequence[Any]], Any]


@functools.cache
def operations() -> dict[Any, _Operation]:
    """Return an implementation of each primitive that the interpreter lacks or supports only in part."""
    from jax._src.pallas.mosaic import primitives, sc_primitives

    lacking = {
        "load_p": _load,
        "swap_p": _swap,
        "gather_p": _gather,
        "scatter_p": _scatter,
        "masked_cumsum_p": _cumulative(jnp.cumsum, lambda _: 0),
        "masked_cummax_p": _cumulative(lax.cummax, lambda dtype: -_largest(dtype)),
        "masked_cummin_p": _cumulative(lax.cummin, _largest),
        "masked_sort_p": _sort,
        "all_reduce_population_count_p": lambda equation, inputs: _of_all(equation, jnp.sum(inputs[0])),
        "all_reduce_ffs_p": lambda equation, inputs: _of_all(equation, jnp.append(inputs[0], True).argmax()),
        "bitcast_p": _bitcast,
        "pack_p": _pack,
        "unpack_p": _unpack,
    }
    primitives_by_name = vars(sc_primitives)
    return {
        **{primitives_by_name[name]: operation for name, operation in lacking.items() if name in primitives_by_name},
        primitives.dma_start_p: _start,
        primitives.dma_wait_p: _wait,
    }


def _unknown(dtype: Any) -> Any:
    """Return the value for undefined results: NaN, or the largest integer."""
    return np.nan if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).max


def _seen(ref: Any, transforms: Any) -> Any:
    """Return a reference with its transforms applied."""
    from jax._src.state.types import TransformedRef

    return TransformedRef(ref, tuple(transforms))


def _positions(mask: jax.Array) -> jax.Array:
    """Count the elements of a mask that are true before each one."""
    return jnp.cumsum(mask.astype(jnp.int32)) - 1


def _load(equation: Any, inputs: Sequence[Any]) -> Any:
    """`load_expanded`."""
    params = equation.params
    ref, *rest = inputs
    mask = rest.pop() if params["has_mask"] else None
    value = _seen(ref, jax.tree.unflatten(params["tree"], rest))[...]
    if mask is None:
        return value
    return jnp.where(mask, value[_positions(mask)], _unknown(value.dtype))


def _swap(equation: Any, inputs: Sequence[Any]) -> Any:
    """`store_compressed`, `addupdate`, `addupdate_compressed`."""
    params = equation.params
    ref, value, *rest = inputs
    mask = rest.pop() if params["has_mask"] else None
    target = _seen(ref, jax.tree.unflatten(params["tree"], rest))
    before = target[...]
    if mask is None:
        target[...] = before + value if params["add"] else value
        return before
    at = before.at[jnp.where(mask, _positions(mask), value.size)]
    target[...] = at.add(value, mode="drop") if params["add"] else at.set(value, mode="drop")
    return before


def _gather(equation: Any, inputs: Sequence[Any]) -> Any:
    """`load_gather`; what lies outside is undefined."""
    ref, transforms, indices, mask = equation.params["tree"].unflatten(inputs)
    held = _seen(ref, transforms)[...]
    unknown = _outside(indices, held.shape) if mask is None else _outside(indices, held.shape) | ~mask
    return jnp.where(unknown, _unknown(held.dtype), held[tuple(indices)])


def _scatter(equation: Any, inputs: Sequence[Any]) -> Any:
    """`store_scatter`, `addupdate_scatter`; after a store outside of the buffer nothing in it is defined."""
    ref, transforms, indices, value, mask = equation.params["tree"].unflatten(inputs)
    target = _seen(ref, transforms)
    before = target[...]
    first, *others = indices
    outside = _outside(indices, before.shape)
    if mask is not None:
        outside &= mask
        first = jnp.where(mask, first, before.shape[0])  # that store is dropped
    at = before.at[(first, *others)]
    after = at.add(value, mode="drop") if equation.params["add"] else at.set(value, mode="drop")
    target[...] = jnp.where(outside.any(), _unknown(after.dtype), after)
    return []


def _outside(indices: Sequence[jax.Array], shape: Sequence[int]) -> jax.Array:
    """Describe the elements of lists that are not in a buffer."""
    is_outside = [(index < 0) | (index >= size) for index, size in zip(indices, shape, strict=True)]
    return functools.reduce(jnp.logical_or, is_outside)


def _start(equation: Any, inputs: Sequence[Any]) -> Any:
    """Start the copies of the rows in a list, one for each; the semaphore counts as for a single copy."""
    from jax.experimental.pallas import tpu as pltpu

    source, target, semaphore, sent, _ = jax.tree.unflatten(equation.params["tree"], inputs)
    if equation.params.get("add"):
        raise NotImplementedError("a copy that adds to what is there")
    listed = [_is_listed(reference) for reference in (source, target)]
    if not any(listed):
        return None
    if sent is not None or all(listed):
        raise NotImplementedError("a copy by two lists, or by a list to another device")
    rows = _rows(source if listed[0] else target)

    def row(number: Any, _: None) -> None:
        start = _row(source, number, rows if listed[0] else None)
        end = _row(target, number, rows if listed[1] else None)
        pltpu.make_async_copy(start, end, semaphore).start()

    lax.fori_loop(0, rows.shape[0], row, None)
    return []


def _wait(equation: Any, inputs: Sequence[Any]) -> Any:
    """Wait for a copy by a list: for as many bytes as its other end has."""
    from jax.experimental.pallas import tpu as pltpu

    source, target, semaphore, _, _ = jax.tree.unflatten(equation.params["tree"], inputs)
    if not (_is_listed(source) or _is_listed(target)):
        return None
    plain = target if _is_listed(source) else source
    pltpu.make_async_copy(plain, plain, semaphore).wait()
    return []


def _indexer(end: Any) -> Any:
    """Return the last slice of one end of a copy; None if it has none."""
    transforms = getattr(end, "transforms", ())
    return transforms[-1] if transforms and hasattr(transforms[-1], "indices") else None


def _is_list(index: Any) -> bool:
    return not hasattr(index, "stride") and bool(getattr(index, "shape", ()))


def _is_listed(end: Any) -> bool:
    indexer = _indexer(end)
    return indexer is not None and any(map(_is_list, indexer.indices))


def _rows(end: Any) -> Any:
    """Return the list of numbers that directs a copy."""
    indices = _indexer(end).indices
    if not _is_list(indices[0]) or any(map(_is_list, indices[1:])):
        raise NotImplementedError("a copy by a list of what is not the first dimension")
    rows = indices[0]
    return rows if isinstance(rows, jax.Array) else rows[...]


def _row(end: Any, number: Any, rows: Any) -> Any:
    """Return one row of an end of a copy; `rows` lists the row numbers, None means that they are consecutive."""
    from jax.experimental import pallas as pl

    if rows is None:
        return end.at[number]
    *others, indexer = end.transforms
    sliced = [
        pl.ds(index.start, index.size, index.stride) if hasattr(index, "stride") else index
        for index in indexer.indices[1:]
    ]
    return _seen(end.ref, others).at[(rows[number], *sliced)] if others else end.ref.at[(rows[number], *sliced)]


def _largest(dtype: Any) -> Any:
    return np.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).max


def _cumulative(combine: Callable[..., jax.Array], neutral: Callable[[Any], Any]) -> _Operation:
    def operation(_: Any, inputs: Sequence[Any]) -> Any:
        x, mask = inputs
        result = combine(jnp.where(mask, x, jnp.asarray(neutral(x.dtype)).astype(x.dtype)))
        # Of maxima and minima, elements before the first that counts pass through, as JAX' documentation has it.
        return result if combine is jnp.cumsum else jnp.where(_positions(mask) < 0, x, result)

    return operation


def _sort(equation: Any, inputs: Sequence[Any]) -> Any:
    keys, _, *masks = inputs
    order = jnp.argsort(keys, descending=equation.params["descending"])
    if masks:
        order = order[jnp.argsort(~masks[0][order])]  # a stable sort
    return [operand[order] for operand in inputs]


def _of_all(equation: Any, value: jax.Array) -> Any:
    return jnp.full(equation.outvars[0].aval.shape, value.astype(jnp.int32))


def _bitcast(equation: Any, inputs: Sequence[Any]) -> Any:
    (x,), made = inputs, equation.outvars[0].aval
    if made.size < x.size:
        x = x.reshape(*made.shape, -1)
    return lax.bitcast_convert_type(x, made.dtype).reshape(made.shape)


def _pack(equation: Any, inputs: Sequence[Any]) -> Any:
    made = equation.outvars[0].aval
    return jnp.stack(inputs, axis=-1).astype(made.dtype).reshape(made.shape)


def _unpack(equation: Any, inputs: Sequence[Any]) -> Any:
    pairs = inputs[0].reshape(-1, 2)
    return [pairs[:, half].astype(made.aval.dtype) for half, made in enumerate(equation.outvars)]
