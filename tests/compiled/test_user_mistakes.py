"""Mistakes in the user's own code: `check` reports them as findings, other calls raise them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import systolic

X = jax.ShapeDtypeStruct((256, 256), jnp.float32)


def refusing(x: jax.Array) -> jax.Array:
    raise KeyError("mine")


def two(x: jax.Array, y: jax.Array) -> jax.Array:
    return x + y


def text(x: jax.Array) -> str:
    return "no array"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("fn", "kind", "said"),
    [(refusing, KeyError, "mine"), (two, TypeError, "required positional argument"), (text, TypeError, "JAX type")],
)
def test_what_the_user_has_done_is_a_finding(fn: Callable[..., Any], kind: type[Exception], said: str) -> None:
    """Also where JAX words it, and no frame of the user's is left."""
    report = systolic.check(fn, X, chip="v5e")
    found = {each.rule: each for each in report.findings}
    assert set(found) == {"trace"}
    assert kind.__name__ in found["trace"].value
    assert said in found["trace"].detail
    for call in (systolic.simulate, systolic.explain):
        with pytest.raises(kind, match=said):
            call(fn, X, chip="v5e")


@pytest.mark.exhaustive
def test_a_reference_that_raises_is_a_finding() -> None:
    report = systolic.check(two, X, X, chip="v5e", reference=refusing)
    assert "reference" in [each.rule for each in report.findings]
