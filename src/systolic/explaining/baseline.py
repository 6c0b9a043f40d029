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
    """A function of two matrices that seems to be their product.

    Attributes:
      transposes: whether lhs and rhs are stored transposed.
      flops: operations of the product.
      dtype_out: the result's dtype.
      precision: the precision that the kernels ask for; None: the default.
    """

    transposes: tuple[bool, bool]
    flops: float
    dtype_out: str
    precision: str | None = None

    @property
    def words(self) -> str:
        """The product as a formula."""
        lhs, rhs = ("lhsᵀ" if self.transposes[0] else "lhs"), ("rhsᵀ" if self.transposes[1] else "rhs")
        return f"{lhs} @ {rhs}"

    @property
    def by_xla(self) -> functools.partial[Any]:
        """The product as plain JAX."""
        return functools.partial(
            _by_xla, transposes=self.transposes, dtype_out=self.dtype_out, precision=self.precision
        )

    @property
    def written_by_xla(self) -> str:
        """The same as its user would write it."""
        lhs, rhs = ("lhs.T" if self.transposes[0] else "lhs"), ("rhs.T" if self.transposes[1] else "rhs")
        return f"jnp.matmul({lhs}, {rhs}{self._asked})"

    @property
    def written_by_systolic(self) -> str:
        """The product by this package as its user would write it: a transposition in front would be a copy."""
        names = zip(("lhs", "rhs"), self.transposes, strict=True)
        turned = "".join(f", transpose_{name}=True" for name, is_turned in names if is_turned)
        return f"systolic.matmul(lhs, rhs{turned}{self._asked})"

    @property
    def _asked(self) -> str:
        return f", precision={self.precision!r}" if self.precision is not None else ""

    @property
    def by_systolic(self) -> functools.partial[Any]:
        """The product by this package's kernel."""
        return functools.partial(
            _by_systolic, transposes=self.transposes, dtype_out=self.dtype_out, precision=self.precision
        )


def equivalent_matmul(args: Sequence[Any], analysis: FunctionAnalysis) -> EquivalentMatmul | None:
    """Recognises a function of two matrices with the shapes and, as far as it is known, the op count of their product.

    Square matrices fit however they are stored; then the dimensions that the kernels' own products contract decide.
    """
    if len(args) != 2 or not all(hasattr(arg, "shape") for arg in args) or len(analysis.out) != 1 or not analysis.calls:
        return None
    if any(call.executions != 1 for call in analysis.calls):  # a loop of products is no product
        return None
    (out, dtype_out), shapes = analysis.out[0], [tuple(arg.shape) for arg in args]
    if len(out) != _MATRIX or any(len(shape) != _MATRIX for shape in shapes):
        return None
    for transposes in sorted(_TRANSPOSES, key=lambda each: each != analysis.dots.transposes):
        lhs, rhs = (shape[::-1] if turned else shape for shape, turned in zip(shapes, transposes, strict=True))
        if lhs[1] != rhs[0] or (lhs[0], rhs[1]) != tuple(out):
            continue
        flops = 2.0 * math.prod(lhs) * rhs[1]
        if analysis.flops is None or math.isclose(analysis.flops, flops):
            return EquivalentMatmul(
                transposes=transposes, flops=flops, dtype_out=dtype_out, precision=analysis.dots.precision
            )
    return None


def _by_xla(lhs: Any, rhs: Any, *, transposes: tuple[bool, bool], dtype_out: str, precision: str | None = None) -> Any:
    import jax
    import jax.numpy as jnp

    contracted = ((0 if transposes[0] else 1,), (1 if transposes[1] else 0,))
    whole = jnp.issubdtype(lhs.dtype, jnp.integer)
    preferred = jnp.int32 if whole else jnp.float32
    result = jax.lax.dot_general(
        lhs, rhs, (contracted, ((), ())), precision=precision, preferred_element_type=preferred
    )
    return result.astype(dtype_out)


def _by_systolic(
    lhs: Any, rhs: Any, *, transposes: tuple[bool, bool], dtype_out: str, precision: str | None = None
) -> Any:
    from systolic.ops.matmul.api import matmul

    return matmul(
        lhs,
        rhs,
        transpose_lhs=transposes[0],
        transpose_rhs=transposes[1],
        precision=precision,
        preferred_element_type=dtype_out,
        implementation="pallas",
    )
