"""One product with everything that is fused into it: the record, and how the planner takes it.

All arrays of a product have the same number of dimensions: those of the batch, each as long as the batch's or 1, then
two of a matrix, or of a row, a column, or one element beside it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from systolic.chips import Chip
from systolic.compat import interpreted_effects
from systolic.ops.epilogue import Work, operand_fn, work_of
from systolic.schedule import KernelConfig, Tiles
from systolic.spec import Extra, Fusion, MatmulSpec, PrecisionName, Side

Implementation = Literal["pallas", "xla", "interpret"] | pltpu.InterpretParams | None
Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """By what a product is computed."""

    implementation: Implementation  # None: Pallas where the program runs on a TPU, else XLA
    chip: Chip | None  # whose tiles; None where no TPU is in sight and nobody asked for one
    tiles: Tiles | KernelConfig | None

    @property
    def interpret(self) -> bool | pltpu.InterpretParams:
        """What Pallas is told: how it interprets the kernel, or False."""
        if self.implementation is None or self.implementation in ("pallas", "xla"):
            return False
        return pltpu.InterpretParams() if isinstance(self.implementation, str) else self.implementation

    @property
    def effects(self) -> frozenset[Any]:
        """JAX's effects of a product."""
        return interpreted_effects() if self.interpret else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """outs = epilogue(lhs_fn(lhs) @ rhs_fn(rhs)): all that is static about it."""

    where: Where
    precision: PrecisionName
    dtypes_out: tuple[str, ...]
    epilogue: Fn  # of the sum and the extras beside the output, one result for each of `dtypes_out`
    epilogue_name: str = ""
    transpose_lhs: bool = False
    transpose_rhs: bool = False
    lhs_fn: Fn | None = None  # of lhs and the extras beside it
    rhs_fn: Fn | None = None
    beside: tuple[Side, ...] = ()  # for each extra


def spec_of(product: Product, arrays: Sequence[Any]) -> MatmulSpec:
    """Sizes and dtypes of a product of these arrays, or shapes, as the planner takes them."""
    lhs, rhs, *extras = arrays
    m, k = lhs.shape[-2:][:: -1 if product.transpose_lhs else 1]
    n = rhs.shape[-2 if product.transpose_rhs else -1]
    batch = math.prod(max(sizes) for sizes in zip(*(array.shape[:-2] for array in arrays), strict=True))
    found = []
    for side, extra in zip(product.beside, extras, strict=True):
        rows, columns = {"lhs": lhs.shape[-2:], "rhs": rhs.shape[-2:], "out": (m, n)}[side]
        found.append(
            Extra(
                beside=side,
                rows=extra.shape[-2] == rows and rows > 1,
                columns=extra.shape[-1] == columns and columns > 1,
                dtype=extra.dtype.name,
            )
        )
    by_side = extras_by_side(product, arrays)
    fusion = Fusion(
        extras=tuple(found),
        lhs_fn=operand_fn(product.lhs_fn, lhs, by_side["lhs"]),
        rhs_fn=operand_fn(product.rhs_fn, rhs, by_side["rhs"]),
        epilogue=product.epilogue_name,
        epilogue_ops=epilogue_work(product).ops,
        more_outputs=product.dtypes_out[1:],
    )
    return MatmulSpec(
        m=max(m, 1),
        k=max(k, 1),
        n=max(n, 1),
        dtype_lhs=lhs.dtype.name,
        dtype_rhs=rhs.dtype.name,
        dtype_out=product.dtypes_out[0],
        batch=max(batch, 1),
        batch_lhs=max(math.prod(lhs.shape[:-2]), 1),
        batch_rhs=max(math.prod(rhs.shape[:-2]), 1),
        transpose_lhs=product.transpose_lhs,
        transpose_rhs=product.transpose_rhs,
        precision=product.precision,
        fusion=fusion,
    )


def extras_by_side(product: Product, arrays: Sequence[Any]) -> dict[Side, list[Any]]:
    """The extras of a product's arrays, by what they stand beside."""
    found: dict[Side, list[Any]] = {"lhs": [], "rhs": [], "out": []}
    for side, extra in zip(product.beside, arrays[2:], strict=True):
        found[side].append(extra)
    return found


@functools.lru_cache(maxsize=1024)
def epilogue_work(product: Product) -> Work:
    """What the epilogue costs an element."""
    tile = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    return work_of(product.epilogue, tile, *(tile for side in product.beside if side == "out"))
