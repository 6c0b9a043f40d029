"""Functions and constants that are collected while a function is traced, without side effects."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.explaining.entering import values_seen

_registered: list[int] = []


@functools.cache
def _register() -> None:
    _registered.append(1)


@functools.cache
def _made_of(width: int) -> int:
    return width


def _function(size: int) -> int:
    _register()
    return _made_of(size)


@pytest.mark.exhaustive
def test_what_acts_once_is_not_forgotten_and_what_is_made_is() -> None:
    for _ in range(2):
        with values_seen() as found:
            _function(7)
        assert [value for home, value in found.items() if home.function == "_made_of"] == [7]
    assert _registered == [1]


def test_a_quantized_array_is_made_while_a_function_is_traced() -> None:
    def made() -> jax.Array:
        return systolic.Quantized(jnp.ones((8, 8), jnp.int8), jnp.ones((1, 8))).dequantize()

    for _ in range(2):
        with values_seen():
            assert jax.eval_shape(made).shape == (8, 8)
