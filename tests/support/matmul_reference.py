"""The result that `systolic.matmul` must return, in float64, and its tolerance for rounding.

Bound of one element: an error of a sum of k products, each rounded with unit u, is within λ·√k·u·Σ|lhs·rhs| but for one
time in exp(λ²/2)/2 (Higham and Mary, A new approach to probabilistic rounding error analysis, 2019, theorem 2.4). The
steps after it are few: each adds its own rounding, and an activation stretches an error by its steepest slope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from scipy.special import expit

_UNIT = 2.0**-24  # of float32
_SURE = 6.0  # λ: one element in 3e7
_STEEPEST = 1.2  # slope of every activation here

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda z: np.maximum(z, 0),
    "gelu": lambda z: 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))),
    "silu": lambda z: z * expit(z),
    "swish": lambda z: z * expit(z),
    "sigmoid": expit,
    "tanh": np.tanh,
    "softplus": lambda z: np.logaddexp(z, 0),
}


def wide(array: Any) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


def values(random: np.random.Generator, shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Standard normal floats, integers of the full range."""
    if jnp.issubdtype(dtype, jnp.integer):
        limits = ml_dtypes.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
    return random.standard_normal(shape, np.float32).astype(dtype)


def normal(*shape: int, seed: int = 0, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(values(np.random.default_rng([seed, *shape]), shape, dtype))


def assert_same(found: Any, wanted: Any, unit: float) -> None:
    """Each array within `unit` of the largest element: gradients are sums of terms that cancel."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(wide(one), wide(other), rtol=0, atol=unit * max(1.0, np.abs(wide(other)).max()))


@dataclass(frozen=True, kw_only=True, repr=False)
class Call:
    """One call of `matmul`: its arrays and what is done around the product."""

    lhs: np.ndarray
    rhs: np.ndarray
    keywords: dict[str, Any] = field(default_factory=dict)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __repr__(self) -> str:
        def short(value: Any) -> str:
            if isinstance(value, tuple):
                return f"({', '.join(map(short, value))})"
            return f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") else str(value)

        parts = {"lhs": self.lhs, "rhs": self.rhs, **self.keywords}
        return ", ".join(f"{name}={short(value)}" for name, value in parts.items())

    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the multiplied operands: after their functions, not transposed."""
        found = []
        for side in ("lhs", "rhs"):
            array = getattr(self, side)
            fn = self.keywords.get(f"{side}_fn")
            if fn is not None:
                array = fn(jnp.asarray(array), *map(jnp.asarray, self.keywords.get(f"{side}_args", ())))
            array = wide(array)
            found.append(np.swapaxes(array, -1, -2) if self.keywords.get(f"transpose_{side}") else array)
        return found[0], found[1]

    def wanted(self) -> tuple[np.ndarray, np.ndarray]:
        """The result before its last cast, and the largest error of each element before that."""
        lhs, rhs = self.operands()
        exact = self.lhs.dtype == np.int8 and self.rhs.dtype == np.int8 and "lhs_fn" not in self.keywords
        z = np.matmul(lhs, rhs)
        k = lhs.shape[-1]
        products = np.matmul(np.abs(lhs), np.abs(rhs))
        error = (0.0 if exact else (_SURE * np.sqrt(k) + 4) * _UNIT) * products  # and four roundings of the operands

        def step(value: np.ndarray) -> None:
            nonlocal z, error
            z = value
            error = error + _UNIT * np.abs(z)

        if (bias := self.keywords.get("bias")) is not None:
            step(z + wide(bias))
        if (activation := self.keywords.get("activation")) is not None:
            z = ACTIVATIONS[activation](z)
            error = error * _STEEPEST + 16 * _UNIT * (1 + np.abs(z))
        if (residual := self.keywords.get("residual")) is not None:
            step(z + wide(residual))
        if (scale := self.keywords.get("out_scale")) is not None:
            error = error * np.abs(wide(scale))
            step(z * wide(scale))
        return z, error

    def check(self, result: Any) -> None:
        found = np.asarray(result)
        wanted, error = self.wanted()
        assert found.shape == wanted.shape
        if "preferred_element_type" in self.keywords:
            assert found.dtype == np.dtype(self.keywords["preferred_element_type"])
        if jnp.issubdtype(found.dtype, jnp.integer):
            limits = ml_dtypes.iinfo(found.dtype)
            wanted = np.clip(wanted, limits.min, limits.max)
            # Rounded to the nearest; where the sum alone is stored it is exact.
            error = error + (0.5 if np.any(error) else 0.0)
        else:
            limits = ml_dtypes.finfo(found.dtype)
            error = (1 + float(limits.eps)) * error + float(limits.eps) / 2 * np.abs(wanted)
            error = error + float(limits.smallest_subnormal)
        beyond = np.abs(wide(found) - wanted) - error
        assert not np.isnan(wide(found)).any()
        assert (beyond <= 0).all(), f"{beyond.max()} beyond a tolerance of at most {error.max()}"
