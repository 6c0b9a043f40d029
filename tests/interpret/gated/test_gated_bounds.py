"""Gradients of gated products in float32, against float64, within the error that the format allows.

    dx = dgate · w_gateᵀ + dup · w_upᵀ        dgate = dout · up · f'(gate)        dup = dout · f(gate)

Where terms of these sums cancel, and for each n there are two, an error is large beside the result. The errors that the
sums gate and up may have go through both slopes, and each term of the last sum is rounded again. They are independent,
so their squares are added.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
import numpy as np
import pytest

import systolic

ROUNDING = 2.0**-24  # of float32
# Of one product: high leaves out low × low, below 2^-14, and rounds two low parts, 2^-16 each.
PRODUCT = {"highest": 2 * ROUNDING, "high": 2.0**-14 + 2.0**-15}
DEVIATIONS = 6  # from the mean, of up to 40,000 elements
SLOPES = 8 * ROUNDING  # of XLA's float32 tanh and logistic function, and of the few operations around them


def functions(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An activation and its derivative."""
    if name == "silu":
        s = 1 / (1 + np.exp(-x))
        return x * s, s * (1 + x * (1 - s))
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    inner = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return x / 2 * (1 + t), (1 + t) / 2 + x / 2 * (1 - t**2) * inner


def arrays(m: int, k: int, n: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (k, n), (m, n))]


def expected(
    activation: str, precision: str, given: list[np.ndarray], rounded: str = "float64"
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The gradients, and the deviation of each.

    Args:
      rounded: the dtype in which dgate and dup are kept.
    """
    x, w_gate, w_up, dout = (array.astype(np.float64) for array in given)
    unit = PRODUCT[precision]
    gate, up = x @ w_gate, x @ w_up
    value, slope = functions(activation, gate)
    # A sum of k products is rounded k times besides, at random.
    off_gate, off_up = ((unit + x.shape[1] ** 0.5 * ROUNDING) * (x**2 @ weight**2) ** 0.5 for weight in (w_gate, w_up))
    # f and f' change by at most 1.2 and 1 of what the sum does.
    off_dgate = abs(dout) * np.hypot(slope * off_up, up * (off_gate + SLOPES * (1 + abs(slope))))
    off_dup = abs(dout) * (1.2 * off_gate + SLOPES * (abs(value) + abs(gate)))
    dgate, dup = ((dout * factor).astype(rounded).astype(np.float64) for factor in (up * slope, value))
    m, n = dout.shape
    of_x = dgate @ w_gate.T + dup @ w_up.T
    squares = off_dgate**2 @ w_gate.T**2 + off_dup**2 @ w_up.T**2
    terms = dgate**2 @ w_gate.T**2 + dup**2 @ w_up.T**2
    bounds = [(squares + (unit + (2 * n) ** 0.5 * ROUNDING) ** 2 * terms) ** 0.5]
    for terms, off in ((dgate, off_dgate), (dup, off_dup)):
        bounds.append((x.T**2 @ (off**2 + (unit + m**0.5 * ROUNDING) ** 2 * terms**2)) ** 0.5)
    return [of_x, x.T @ dgate, x.T @ dup], bounds


CASES = [
    (178, 233, 1, "silu", "highest"),
    (128, 154, 1, "gelu", "high"),
    (1, 9, 185, "silu", "high"),
    (33, 200, 130, "gelu", "highest"),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("m", "k", "n", "activation", "precision"), CASES)
def test_gradients_are_within_what_float32_allows(m: int, k: int, n: int, activation: str, precision: str) -> None:
    given = arrays(m, k, n)

    def product(*operands: Any) -> jax.Array:
        return systolic.gated_matmul(
            *operands, activation=activation, precision=precision, implementation="interpret", chip="v5p"
        )

    _, back = jax.vjp(product, *map(jnp.asarray, given[:3]))
    wanted, bounds = expected(activation, precision, given)
    for found, exact, bound in zip(back(jnp.asarray(given[3])), wanted, bounds, strict=True):
        assert (abs(np.asarray(found, np.float64) - exact) <= DEVIATIONS * bound).all()


@pytest.mark.parametrize(("m", "k", "n", "activation", "precision"), [CASES[0], CASES[3]])
def test_cotangents_in_bfloat16_would_be_seen(m: int, k: int, n: int, activation: str, precision: str) -> None:
    given = arrays(m, k, n)
    wanted, bounds = expected(activation, precision, given)
    short, _ = expected(activation, precision, given, "bfloat16")
    for found, exact, bound in zip(short, wanted, bounds, strict=True):
        assert (abs(found - exact) > DEVIATIONS * bound).any()
