"""Rows of tokens in the order of their experts, and the weighted sums of experts' rows, with derivatives.

Each is the other's derivative, up to weights, and both are gathers. JAX would transpose a gather to a scatter-add,
which a TPU does row by row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.chips import Chip
from systolic.kernels.packed_rows import PACKED_DTYPES
from systolic.ops.engine.backend import Backend
from systolic.ops.engine.derivative import bilinear
from systolic.ops.engine.dispatch import Run, dispatched, one_at_a_time
from systolic.ops.engine.linear import Linear, linear
from systolic.ops.engine.target import explicit_mesh, without_kernel
from systolic.ops.moe.combining import combine_by_pallas, combine_by_xla, combine_spec, kept_rows
from systolic.ops.moe.forms import Form, combine_form, spread_form
from systolic.ops.moe.routing import Sorted
from systolic.ops.moe.schedule import SpreadSpec
from systolic.ops.moe.spreading import spread_by_pallas, spread_by_xla


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """Copies of tokens' rows, one for each choice that is kept, in the order of experts: [rows, d] of [tokens, d]."""

    backend: Backend
    rows: int
    used_rows: int  # rows of this device's experts, if all are equally likely
    permutes: bool  # True if the first rows are copied, in another order: those after them are not read

    @property
    def effects(self) -> frozenset[Any]:
        return self.backend.effects

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        choices, (x,) = Sorted(*residuals), arguments
        assert x is not None  # the only argument, without which there is no tangent
        runs = spread_by_pallas, spread_by_xla
        by_pallas, by_xla = (functools.partial(run, self.backend, self.permutes) for run in runs)

        def call(x: Array, tokens: Array, expert_rows: Array) -> Array:
            def form(chip: Chip) -> Form:
                sizes = x.shape[0], self.rows, x.shape[1], x.dtype.name
                return spread_form(SpreadSpec.of(*sizes, permutes=self.permutes), chip, self.used_rows)

            return _computed(self.backend, form, by_pallas, by_xla, x, tokens, expert_rows)

        return [one_at_a_time(call, x, tokens_of_rows(choices, x.shape[0], self.rows), choices.sizes.sum())]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        choices, (x,), (cotangent,) = Sorted(*residuals), arguments, cotangents
        if x is None:
            return [None]
        weights = jnp.ones((x.shape[0], choices.place.size // x.shape[0]), jnp.float32)
        summing = Summing(backend=self.backend, dtype_out=x.dtype.name, used_rows=self.used_rows)
        return [combined(summing, cotangent, weights, choices)]


def tokens_of_rows(choices: Sorted, tokens: int, rows: int) -> Array:
    """Return the token of each of the first rows of experts."""
    return choices.order[:rows] // (choices.order.size // tokens)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _moved(move: Linear, array: Array, choices: Sorted) -> Array:
    return move.forward(choices, (array,))[0]


@_moved.defjvp
def _tangent(move: Linear, primals: Any, tangents: Any) -> tuple[Array, Array]:
    array, choices = primals
    out = _moved(move, array, choices)
    return out, linear(move, choices, (tangents[0],), (out,))[0]


def is_for_xla(array: Array, *operands: Any) -> bool:
    """True if no kernel can move rows of the array."""
    return explicit_mesh(jax.tree.leaves((array, operands))) is not None or array.dtype.name not in PACKED_DTYPES


def _computed(
    backend: Backend, form: Callable[[Chip], Form], by_pallas: Run, by_xla: Run, array: Array, *operands: Any
) -> Array:
    """Compute by a kernel where it is possible and, unless the caller requires it, faster by arithmetic."""
    if is_for_xla(array, *operands):
        return by_xla(array, *operands)
    if backend.chip is not None and backend.implementation is None and array.size:
        chosen = form(backend.chip)
        if not chosen.by_kernel:
            return by_xla(without_kernel(array, chosen.reason), *operands)
    return dispatched(backend, by_pallas, by_xla, array, *operands)


def spread(
    backend: Backend,
    x: Array,
    choices: Sorted,
    rows: int,
    used_rows: int | None = None,
    *,
    permutes: bool = False,
) -> Array:
    """Return the rows of tokens in the order of experts, the first `rows` of them.

    Those after the last expert's are not defined. `used_rows` have an expert, as far as the choice of the faster way
    knows; None: all. With `permutes` rows with an expert are the first ones of x, each copied once.
    """
    used_rows = rows if used_rows is None else used_rows
    return _moved(_Spread(backend=backend, rows=rows, used_rows=used_rows, permutes=permutes), x, choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summing:
    """`out[t] = Σ weights[t, j] · results[row of choice j of t]` over choices that have an expert."""

    backend: Backend
    dtype_out: str
    used_rows: int | None  # as in `_Spread`; None: all

    @property
    def effects(self) -> frozenset[Any]:
        return self.backend.effects

    def multiply(self, lhs: Array, rhs: Array, rest: Sorted) -> Array:
        runs = combine_by_pallas, combine_by_xla
        by_pallas, by_xla = (functools.partial(run, self.backend, self.dtype_out) for run in runs)

        def call(results: Array, weights: Array, choices: Sorted) -> Array:
            def form(chip: Chip) -> Form:
                spec = combine_spec(results, weights, choices, self.dtype_out)
                return combine_form(spec, chip, results.shape[0], self.used_rows)

            return _computed(self.backend, form, by_pallas, by_xla, results, weights, choices)

        return one_at_a_time(call, lhs, rhs, rest)

    def lhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Sorted) -> Array:
        rows = lhs.shape[0]
        weights = _by_expert(rhs, rest, rows)[:, None]
        cotangents = spread(self.backend, cotangent, rest, rows, self.used_rows).astype(jnp.float32)
        return kept_rows(cotangents * weights, rest).astype(lhs.dtype)

    def rhs_cotangent(self, cotangent: Array, lhs: Array, rhs: Array, rest: Sorted) -> Array:
        rows = spread(self.backend, cotangent, rest, lhs.shape[0], self.used_rows).astype(jnp.float32)
        products = kept_rows((rows * lhs.astype(jnp.float32)).sum(1, keepdims=True), rest)[:, 0]
        return _by_choice(products, rest).reshape(rhs.shape).astype(rhs.dtype)


# Sorts in place of gathers: a TPU gathers numbers one by one.
def _by_expert(numbers: Array, choices: Sorted, rows: int) -> Array:
    """Return the numbers of choices in the order of experts, those of the first rows."""
    return lax.sort((choices.place, numbers.reshape(-1)), num_keys=1)[1][:rows]


def _by_choice(numbers: Array, choices: Sorted) -> Array:
    """Return the numbers of rows in the order of choices; zero for choices without a row."""
    numbers = jnp.pad(numbers, (0, choices.order.size - numbers.size))
    return lax.sort((choices.order, numbers), num_keys=1)[1]


def combined(summing: Summing, results: Array, weights: Array, choices: Sorted) -> Array:
    """Return the weighted sums, [tokens, d]. Choices without an expert add nothing, whatever their weight."""
    return bilinear(summing, results, weights_of_kept(weights, choices), choices)


def weights_of_kept(weights: Array, choices: Sorted) -> Array:
    """Return zero for choices without an expert."""
    has_expert = (choices.place < choices.sizes.sum()).reshape(weights.shape)
    return jnp.where(has_expert, weights, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Added:
    """The sums of a token's results, [tokens, d] of [rows, d]; the transpose of `_Spread`."""

    summing: Summing
    tokens: int

    @property
    def effects(self) -> frozenset[Any]:
        return self.summing.effects

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        choices, (results,) = Sorted(*residuals), arguments
        assert results is not None  # as in `_Spread`
        weights = jnp.ones((self.tokens, choices.place.size // self.tokens), jnp.float32)
        return [combined(self.summing, results, weights, choices)]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        choices, (results,), (cotangent,) = Sorted(*residuals), arguments, cotangents
        if results is None:
            return [None]
        summing = self.summing
        return [spread(summing.backend, cotangent, choices, results.shape[0], summing.used_rows).astype(results.dtype)]


def added(summing: Summing, results: Array, choices: Sorted, tokens: int) -> Array:
    """Return the sums of experts' rows of each token, [tokens, d].

    The gradient of rows after the last expert's is not defined: it is for products that do not read them.
    """
    return _moved(_Added(summing=summing, tokens=tokens), results, choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class _InOrder:
    """Numbers of choices in the order of experts, [rows] of [tokens, k]."""

    rows: int

    @property
    def effects(self) -> frozenset[Any]:
        return frozenset()

    def forward(self, residuals: Sequence[Array], arguments: Sequence[Array | None]) -> Sequence[Array]:
        (numbers,) = arguments
        assert numbers is not None  # as in `_Spread`
        return [_by_expert(numbers, Sorted(*residuals), self.rows)]

    def transpose(
        self, residuals: Sequence[Array], arguments: Sequence[Any], cotangents: Sequence[Array]
    ) -> Sequence[Array | None]:
        (numbers,), (cotangent,) = arguments, cotangents
        return [None if numbers is None else _by_choice(cotangent, Sorted(*residuals)).reshape(numbers.shape)]


def in_order_of_experts(weights: Array, choices: Sorted, rows: int) -> Array:
    """Return the weights of choices in the order of experts, those of the first rows; zero without an expert."""
    return _moved(_InOrder(rows=rows), weights_of_kept(weights, choices), choices)
