"""The matmul that a function seems to compute, as XLA's own program and as this package's."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from systolic.explaining.function_analysis import FunctionAnalysis

_MATRIX = 2  # dimensions
_TRANSPOSES = ((False, False), (False, True), (True, False), (True, True))


@dataclass(frozen=True, slots=True, kw_only=True)
class EquivalentMatmul:
    """A function of two matrices that seems to be their product."""

    transposes: tuple[bool, bool]  # True if lhs, and rhs, is stored transposed
    flops: float  # operations of the product
    dtype_out: str  # the result's dtype
    precision: str | None = None  # the precision that the kernels ask for; None: the default

    @property
    def words(self) -> str:
        """The product as a formula."""
        return " @ ".join(self._named("ᵀ"))

    @property
    def written_by_xla(self) -> str:
        """The product in plain JAX, as its user would write it."""
        return f"jnp.matmul({', '.join(self._named('.T'))}{self._asked})"

    @property
    def written_by_systolic(self) -> str:
        """The product by this package, as its user would write it: a transposition in front would be a copy."""
        names = zip(("lhs", "rhs"), self.transposes, strict=True)
        turned = "".join(f", transpose_{name}=True" for name, is_turned in names if is_turned)
        return f"systolic.matmul(lhs, rhs{turned}{self._asked})"

    @property
    def by_xla(self) -> functools.partial[Any]:
        """The product in plain JAX, as a function."""
        return functools.partial(_by_xla, product=self)

    @property
    def by_systolic(self) -> functools.partial[Any]:
        """The product by this package's kernel, as a function."""
        return functools.partial(_by_systolic, product=self)

    @property
    def _asked(self) -> str:
        return f", precision={self.precision!r}" if self.precision is not None else ""

    def _named(self, mark: str) -> list[str]:
        return [name + mark * turned for name, turned in zip(("lhs", "rhs"), self.transposes, strict=True)]


def equivalent_matmul(args: Sequence[Any], analysis: FunctionAnalysis) -> EquivalentMatmul | None:
    """Return the product of two matrices with a function's shapes and, if known, its number of operations; else None.

    Square matrices fit however they are stored; then the dimensions that the kernels' own products contract decide.
    """
    if len(args) != 2 or not all(hasattr(arg, "shape") for arg in args) or len(analysis.out) != 1 or not analysis.calls:
        return None
    if any(call.executions != 1 for call in analysis.calls):  # a loop of products is not a product
        return None
    (out, dtype_out), shapes = analysis.out[0], [tuple(arg.shape) for arg in args]
    if len(out) != _MATRIX or any(len(shape) != _MATRIX for shape in shapes):
        return None
    for transposes in sorted(_TRANSPOSES, key=lambda transposed: transposed != analysis.dots.transposes):
        lhs, rhs = (shape[::-1] if turned else shape for shape, turned in zip(shapes, transposes, strict=True))
        if lhs[1] != rhs[0] or (lhs[0], rhs[1]) != tuple(out):
            continue
        flops = 2.0 * math.prod(lhs) * rhs[1]
        if analysis.flops is None or math.isclose(analysis.flops, flops):
            return EquivalentMatmul(
                transposes=transposes, flops=flops, dtype_out=dtype_out, precision=analysis.dots.precision
            )
    return None


def _by_xla(lhs: Any, rhs: Any, *, product: EquivalentMatmul) -> Any:
    import jax
    import jax.numpy as jnp

    transpose_lhs, transpose_rhs = product.transposes
    contracted = ((0 if transpose_lhs else 1,), (1 if transpose_rhs else 0,))
    preferred = jnp.int32 if jnp.issubdtype(lhs.dtype, jnp.integer) else jnp.float32
    result = jax.lax.dot_general(
        lhs, rhs, (contracted, ((), ())), precision=product.precision, preferred_element_type=preferred
    )
    return result.astype(product.dtype_out)


def _by_systolic(lhs: Any, rhs: Any, *, product: EquivalentMatmul) -> Any:
    from systolic.ops.matmul import matmul

    return matmul(
        lhs,
        rhs,
        transpose_lhs=product.transposes[0],
        transpose_rhs=product.transposes[1],
        precision=product.precision,
        preferred_element_type=product.dtype_out,
        implementation="pallas",
    )
