"""The weights of a step in VMEM, floats or codes: their copies, and the products of rows with them.

Codes are exact in the dtype that the matrix units take; scales multiply the sums over each block of k, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.launch import vmem_shapes
from systolic.kernels.registers import spread_over_registers
from systolic.kernels.ring import Act
from systolic.ops.moe.matrices import MatrixForm


def scale_scratch(buffers: Any) -> list[Any]:
    """Return the slots of scales, and the place for scales of single columns; None for those that do not exist."""
    shapes = vmem_shapes(buffers)
    return [shapes.get("scales"), shapes.get("column scales")]


class StoredWeights:
    """Slots of weights and of their scales, and the scales of a step's single columns.

    Refs are `weights`, [slots, products, k, n]; and None without scales: `scales`, the slots, and `column_scales`.
    """

    def __init__(self, form: MatrixForm, dtype: str, weights: Any, scales: Any, column_scales: Any) -> None:
        self._weights, self._scales, self._column_scales = weights, scales, column_scales
        self._dtype, self._pushed = jnp.dtype(dtype), jnp.dtype(form.pushed(dtype))

    def copy_scales(self, source: Any, columns: Any, slot: Any, sem: Any, act: Act) -> None:
        """Act on the copy of a step's scales.

        Args:
          source: of the scales in HBM, all columns.
          columns: of the step; those that share scales are copied with all others.
        """
        if self._scales is None:
            return
        source = source.at[:, columns] if self._column_scales is None else source
        act(pltpu.make_async_copy(source, self._scales.at[slot], sem))

    def spread_scales(self, slot: Any, first: Any) -> None:
        """Write the scales of single columns, of which whole registers share one; `first` is the step's first."""
        if self._column_scales is not None:
            spread_over_registers(self._scales[slot], self._column_scales, first)

    def product(self, rows: Callable[[int, int], Array], slot: Any, number: int, columns: Any) -> Array:
        """Return the product, in float32, of rows with columns of one of the matrices in a slot.

        Args:
          rows: returns columns of the rows, from a first one and of a number.
        """
        _, products, depth, _ = self._weights.shape
        scales = self._scales if self._column_scales is None else self._column_scales
        blocks = 1 if self._scales is None else self._scales.shape[1] // products
        size, total = depth // blocks, None
        for block in range(blocks):
            weights = self._weights[slot, number, pl.ds(block * size, size), columns].astype(self._pushed)
            of_block = lax.dot_general(
                rows(block * size, size), weights, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
            )
            if scales is not None:
                row = pl.ds(number * blocks + block, 1), columns
                of_block *= scales[(slot, *row) if self._column_scales is None else row]
            total = of_block if total is None else total + of_block
        assert total is not None  # there is a block
        return total
