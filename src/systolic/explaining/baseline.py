"""What else could compute the same: XLA's own program, and this package's."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from systolic.explaining.study import Study

_MATRIX = 2  # dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A function of two matrices that seems to be their product.

    Attributes:
      transposes: whether lhs and rhs are stored the other way round.
      flops: of the product.
      dtype_out: of the result.
    """

    transposes: tuple[bool, bool]
    flops: float
    dtype_out: str

    @property
    def words(self) -> str:
        """As a formula."""
        lhs, rhs = ("lhsᵀ" if self.transposes[0] else "lhs"), ("rhsᵀ" if self.transposes[1] else "rhs")
        return f"{lhs} @ {rhs}"

    @property
    def by_xla(self) -> functools.partial[Any]:
        """The product as plain JAX."""
        return functools.partial(_by_xla, transposes=self.transposes, dtype_out=self.dtype_out)

    @property
    def by_systolic(self) -> functools.partial[Any]:
        """The product by this package's kernel."""
        return functools.partial(_by_systolic, transposes=self.transposes, dtype_out=self.dtype_out)


def product_of(args: Sequence[Any], study: Study) -> Product | None:
    """Whether a function of two matrices has the shapes, and as far as it is known the work, of their product."""
    import jax

    leaves = jax.tree.leaves(list(args))
    if len(leaves) != 2 or len(study.out) != 1 or not study.calls:
        return None
    (out, dtype_out), shapes = study.out[0], [tuple(leaf.shape) for leaf in leaves]
    if len(out) != _MATRIX or any(len(shape) != _MATRIX for shape in shapes):
        return None
    for transposes in ((False, False), (False, True), (True, False)):
        lhs, rhs = (shape[::-1] if turned else shape for shape, turned in zip(shapes, transposes, strict=True))
        if lhs[1] != rhs[0] or (lhs[0], rhs[1]) != tuple(out):
            continue
        flops = 2.0 * math.prod(lhs) * rhs[1]
        if study.flops is None or math.isclose(study.flops, flops):
            return Product(transposes=transposes, flops=flops, dtype_out=dtype_out)
    return None


def _by_xla(lhs: Any, rhs: Any, *, transposes: tuple[bool, bool], dtype_out: str) -> Any:
    import jax
    import jax.numpy as jnp

    contracted = ((0 if transposes[0] else 1,), (1 if transposes[1] else 0,))
    whole = jnp.issubdtype(lhs.dtype, jnp.integer)
    preferred = jnp.int32 if whole else jnp.float32
    result = jax.lax.dot_general(lhs, rhs, (contracted, ((), ())), preferred_element_type=preferred)
    return result.astype(dtype_out)


def _by_systolic(lhs: Any, rhs: Any, *, transposes: tuple[bool, bool], dtype_out: str) -> Any:
    from systolic.ops.matmul import matmul

    return matmul(
        lhs,
        rhs,
        transpose_lhs=transposes[0],
        transpose_rhs=transposes[1],
        preferred_element_type=dtype_out,
        implementation="pallas",
    )
