"""Arrays of zeros in place of results that are not computed. They take address space and no memory."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np

from systolic.compat import key_implementation

_ALIGNMENT = 64  # at which JAX takes NumPy's memory as it is


class Zeros:
    """Makes arrays of zeros that all share one block of memory, which is never written."""

    def __init__(self) -> None:
        self._block = np.zeros(0, np.uint8)
        self._made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def like(self, shapes: Any) -> Any:
        """Return a pytree of zeros for a pytree of `jax.ShapeDtypeStruct`s, with their shardings over devices here."""
        import jax

        return jax.tree.map(self._array, shapes)

    def is_computed(self, leaf: Any) -> bool:
        """False if an array was made here."""
        return self._made.get(id(leaf)) is not leaf

    def _array(self, shape: Any) -> Any:
        import jax

        if jax.numpy.issubdtype(shape.dtype, jax.dtypes.prng_key):
            name = key_implementation(shape.dtype)
            data = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=name)))
            zeros = self._array(jax.ShapeDtypeStruct((*shape.shape, *data.shape), data.dtype))
            made = jax.random.wrap_key_data(zeros, impl=name)
        else:
            made = self._plain(shape)
        self._made[id(made)] = made
        return made

    def _plain(self, shape: Any) -> Any:
        import jax

        sharding = shape.sharding
        piece = shape.shape if sharding is None else sharding.shard_shape(shape.shape)
        # Of 4-bit types NumPy stores an element in a byte.
        size_bytes = math.prod(piece) * np.dtype(shape.dtype).itemsize
        memory = self._zeros(size_bytes).view(shape.dtype).reshape(piece)
        if sharding is None or len(sharding.device_set) == 1:
            return jax.device_put(memory, may_alias=True)
        devices = sharding.devices_indices_map(shape.shape)
        pieces = [jax.device_put(memory, device, may_alias=True) for device in devices]
        return jax.make_array_from_single_device_arrays(shape.shape, sharding, pieces)

    def _zeros(self, size_bytes: int) -> np.ndarray:
        """Return bytes of zeros from a multiple of `_ALIGNMENT` on."""
        if size_bytes + _ALIGNMENT > self._block.size:
            # Pages that are only read are all the system's one page of zeros. Arrays keep the former block alive.
            self._block = np.zeros(2 * (size_bytes + _ALIGNMENT), np.uint8)
        start = -self._block.ctypes.data % _ALIGNMENT
        return self._block[start : start + size_bytes]
