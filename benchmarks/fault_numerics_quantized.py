"""Quantized products with all their options crossed, compared with float64 references made from codes and scales."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from fault_cases import CaseError, Section, Setting

import systolic
from systolic.ops.quantized.spec import ROW_FORMATS
from systolic.schedule import IllegalTilesError
from systolic.spec import LARGEST

_FORMATS = tuple(LARGEST)
_SIZES = (0, 1, 1, 3, 5, 16, 17, 64, 96, 128, 160, 256)
_BFLOAT16 = 2.0**-8  # half the distance of two neighbors of 1, over 1, of a sum of two roundings
_NEARLY_INFINITE = 3.3e38
_ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda value: value,
    "relu": lambda value: np.maximum(value, 0),
    "tanh": np.tanh,
    "silu": lambda value: value / (1 + np.exp(-value)),
    "sigmoid": lambda value: 1 / (1 + np.exp(-value)),
}
_STEEPEST = 1.2  # of the activations' derivatives


@dataclass(frozen=True, slots=True, kw_only=True)
class _Approximate:
    """Float64 numbers, and a bound of a result's distance from each."""

    numbers: np.ndarray
    bounds: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """An operand, the numbers that it represents, and the relative rounding error of a product with each."""

    operand: Any
    numbers: np.ndarray
    share: float


def exact(q: systolic.Quantized) -> np.ndarray:
    """Return codes times scales, by NumPy only."""
    scales = np.asarray(q.scales).astype(np.float64)
    for axis, (size, part) in enumerate(zip(q.values.shape, q.scales.shape, strict=True)):
        scales = scales.repeat(size // part, axis) if part else scales
    codes = np.asarray(q.values).astype(np.float64)
    return codes * scales[tuple(slice(0, size) for size in codes.shape)]


def _blocks(choose: random.Random, size: int, *, of_kernel: bool) -> int | None:
    divisors = [
        divisor for divisor in range(1, size + 1) if size % divisor == 0 and (not of_kernel or divisor % 32 == 0)
    ]
    return choose.choice([None, *divisors])


def _quantized(
    choose: random.Random, numbers: np.ndarray, k_axis: int, *, of_kernel: bool, formats: tuple[str, ...] = _FORMATS
) -> systolic.Quantized:
    shares = choose.choice(["column", "block", "square", "all"])
    keywords: dict[str, Any] = {"axis": None} if shares == "all" else {"axis": k_axis}
    if shares in ("block", "square"):
        keywords["block"] = _blocks(choose, numbers.shape[k_axis], of_kernel=of_kernel)
    if shares == "square":
        other = -1 if k_axis == -2 else -2
        keywords = {"axis": (k_axis, other), "block": None}
        keywords["block"] = tuple(
            _blocks(choose, numbers.shape[axis], of_kernel=of_kernel) or max(numbers.shape[axis], 1)
            for axis in (k_axis, other)
        )
    fn = functools.partial(
        systolic.quantize,
        dtype=choose.choice(formats),
        scale_dtype=choose.choice(["float32", "float32", "bfloat16"]),
        **keywords,
    )
    return jax.jit(fn)(numbers)


def _special(choose: random.Random, numbers: np.ndarray) -> np.ndarray:
    if numbers.size:
        at = tuple(choose.randrange(size) for size in numbers.shape)
        numbers[at] = choose.choice([np.inf, -np.inf, np.nan, 1e30, -1e30])
    return numbers


def _lhs(choose: random.Random, generator: np.random.Generator, shape: tuple[int, ...], *, of_kernel: bool) -> _Side:
    numbers = generator.standard_normal(shape).astype(np.float32)
    if len(shape) > 1 and choose.random() < 0.35:
        q = _quantized(choose, numbers, -1, of_kernel=of_kernel)
        return _Side(operand=q, numbers=exact(q), share=0.0)
    if choose.random() < 0.2:
        numbers = _special(choose, numbers)
    array = jnp.asarray(numbers, choose.choice(["bfloat16", "float32"]))
    return _Side(operand=array, numbers=np.asarray(array).astype(np.float64), share=_BFLOAT16)


def _rhs(
    choose: random.Random, generator: np.random.Generator, shape: tuple[int, ...], *, plain: bool, of_kernel: bool
) -> _Side:
    if plain:
        array = jnp.asarray(generator.standard_normal(shape), choose.choice(["bfloat16", "float32"]))
        return _Side(operand=array, numbers=np.asarray(array).astype(np.float64), share=_BFLOAT16)
    if choose.random() < 0.25:  # stored as its transpose
        stored = generator.standard_normal((*shape[:-2], shape[-1], shape[-2])).astype(np.float32)
        q = _quantized(choose, stored, -1, of_kernel=of_kernel).mT
    else:
        q = _quantized(choose, generator.standard_normal(shape).astype(np.float32), -2, of_kernel=of_kernel)
    return _Side(operand=q, numbers=exact(q), share=_BFLOAT16)


def _rows_rounded(side: _Side, name: str) -> _Side:
    """Return the rows that the product quantizes; a number halfway between two codes may go either way."""
    q = jax.jit(functools.partial(systolic.quantize, dtype=name, axis=-1))(side.operand)
    one_up = {"int8": 1 / 127, "int4": 1 / 7, "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}[name]
    return _Side(operand=side.operand, numbers=exact(q), share=one_up)


def _product(left: _Side, right: _Side, *, exact: bool) -> _Approximate:
    numbers = left.numbers @ right.numbers
    largest = np.abs(left.numbers).max(-1, initial=0.0)[..., None]
    magnitudes = np.broadcast_to(largest, left.numbers.shape) @ np.abs(right.numbers)
    share = 2.0**-18 if exact else left.share + right.share + 2.0**-18
    return _Approximate(numbers=numbers, bounds=share * magnitudes)


def _applied(fn: Callable[[Any], Any], value: _Approximate) -> _Approximate:
    return _Approximate(numbers=fn(value.numbers), bounds=_STEEPEST * value.bounds)


def _compare(found: Any, expected: _Approximate, what: str, *, any_class: bool = False) -> None:
    """Compare values; where the reference is not finite, compare classes: infinities with their signs, and NaN."""
    out = np.asarray(found).astype(np.float64)
    if out.shape != expected.numbers.shape:
        raise CaseError(f"{what} is of shape {out.shape}, not {expected.numbers.shape}")
    finite = np.isfinite(expected.numbers)
    # A number near or above float32's largest may be an infinity.
    finite &= ~((np.abs(expected.numbers) > _NEARLY_INFINITE) & (out == np.sign(expected.numbers) * np.inf))
    if any_class:  # if one number of a row is not finite, none is
        wrong = np.isfinite(out) & ~finite
    else:
        is_same = (out == expected.numbers) | (np.isnan(out) & np.isnan(expected.numbers))
        wrong = ~finite & ~is_same & ~np.isfinite(expected.numbers)
    bounds = expected.bounds + 2 * _BFLOAT16 * np.abs(expected.numbers) + 1e-30
    wrong |= finite & ~(np.abs(out - expected.numbers) <= bounds)
    if wrong.any():
        at = tuple(int(index[0]) for index in np.nonzero(wrong))
        raise CaseError(
            f"{what}{list(at)} is {out[at]}, not {expected.numbers[at]} ± {bounds[at]}; {wrong.sum()} are off"
        )


def _numerics(choose: random.Random, _folder: Path, _setting: Setting) -> None:
    with np.errstate(all="ignore"):
        _one_product(choose)


def _one_product(choose: random.Random) -> None:
    generator = np.random.default_rng(choose.getrandbits(32))
    of_kernel = choose.random() < 0.15
    m, k, n = (choose.choice(_SIZES) for _ in range(3))
    batch = choose.choice([(), (), (), (2,), (0,)])
    shared = not batch or choose.random() < 0.5
    lhs_shape = (k,) if not batch and choose.random() < 0.1 else (*batch, m, k)
    left = _lhs(choose, generator, lhs_shape, of_kernel=of_kernel)
    of_codes = isinstance(left.operand, systolic.Quantized)
    row_format = None if of_codes or choose.random() < 0.6 else choose.choice(ROW_FORMATS)
    gated = choose.random() < 0.25
    plain = bool(of_codes or row_format) and choose.random() < 0.2
    weight_shape = (k, n) if shared else (*batch, k, n)
    right = _rhs(choose, generator, weight_shape, plain=plain, of_kernel=of_kernel)
    keywords: dict[str, Any] = {"quantize_lhs": row_format, "implementation": "xla"}
    if of_kernel:
        keywords |= {"implementation": "interpret", "chip": choose.choice(["v4", "v5e", "v6e", "v7x"])}
    keywords["preferred_element_type"] = choose.choice([None, "float32", "bfloat16"])
    special = not np.isfinite(left.numbers).all()
    rows = left if row_format is None else _rows_rounded(left, row_format)
    # With rows of codes the codes of weights are multiplied, and are exact: only sums are rounded.
    of_integers = of_codes and not plain
    keywords["activation"] = name = choose.choice(list(_ACTIVATIONS)) if not special else None
    expected = _applied(
        _ACTIVATIONS[name], _with_bias(choose, keywords, _product(rows, right, exact=of_integers), n, gated)
    )
    if gated:
        up = right
        expected = _times(expected, _product(rows, up, exact=of_integers))
        fn = functools.partial(systolic.gated_matmul, **keywords)
        operands = (left.operand, right.operand, up.operand)
    else:
        expected = _with_rest(choose, generator, keywords, expected, n)
        fn, operands = functools.partial(systolic.matmul, **keywords), (left.operand, right.operand)
    try:
        out = jax.jit(fn)(*operands)
    except IllegalTilesError as error:
        if not of_kernel:
            raise
        if "scale-block" in str(error) or "VMEM" in str(error) or "tile-of-scales" in str(error):
            return  # blocks of both sides have a common divisor that no kernel takes
        raise
    _compare(out, expected, "result", any_class=of_kernel or gated)
    if name is None and not gated and not special and not of_kernel and not batch:
        _check_gradients(generator, fn, left, right, rows, keywords)


def _with_bias(
    choose: random.Random, keywords: dict[str, Any], total: _Approximate, n: int, gated: bool
) -> _Approximate:
    if gated or choose.random() < 0.7:
        return total
    bias = np.linspace(-1, 1, n, dtype=np.float32) if n else np.zeros(0, np.float32)
    keywords["bias"] = bias
    return _Approximate(numbers=total.numbers + bias, bounds=total.bounds)


def _with_rest(
    choose: random.Random, generator: np.random.Generator, keywords: dict[str, Any], value: _Approximate, n: int
) -> _Approximate:
    numbers, bounds = value.numbers, value.bounds
    if choose.random() < 0.3:
        keywords["residual"] = residual = generator.standard_normal(numbers.shape).astype(np.float32)
        numbers, bounds = numbers + residual, bounds + _BFLOAT16 * np.abs(residual)
    if choose.random() < 0.3:
        keywords["out_scale"] = scale = np.linspace(0.5, 2, n, dtype=np.float32) if n else np.zeros(0, np.float32)
        numbers, bounds = numbers * scale, bounds * scale
    return _Approximate(numbers=numbers, bounds=bounds)


def _times(gate: _Approximate, up: _Approximate) -> _Approximate:
    bounds = gate.bounds * (np.abs(up.numbers) + up.bounds) + np.abs(gate.numbers) * up.bounds
    return _Approximate(numbers=gate.numbers * up.numbers, bounds=bounds)


def _check_gradients(
    generator: np.random.Generator,
    fn: Callable[..., Any],
    left: _Side,
    right: _Side,
    rows: _Side,
    keywords: dict[str, Any],
) -> None:
    """Check cotangents of floats and of scales of a product without an activation; values have none."""
    out, back = jax.vjp(jax.jit(fn), left.operand, right.operand)
    cotangent = jnp.asarray(generator.standard_normal(out.shape), out.dtype)
    to_left, to_right = back(cotangent)
    dout = np.asarray(cotangent).astype(np.float64) * keywords.get("out_scale", 1.0)
    dout, numbers = np.atleast_2d(dout), np.atleast_2d(rows.numbers)
    for side, got, of_numbers, magnitudes in (
        (left, to_left, dout @ right.numbers.T, np.abs(dout) @ np.abs(right.numbers.T)),
        (right, to_right, numbers.T @ dout, np.abs(numbers.T) @ np.abs(dout)),
    ):
        name = "cotangent of lhs" if side is left else "cotangent of rhs"
        expected = _Approximate(numbers=of_numbers, bounds=4 * _BFLOAT16 * magnitudes)
        if isinstance(side.operand, systolic.Quantized):
            q, codes = side.operand, np.asarray(side.operand.values).astype(np.float64)
            expected = _Approximate(
                numbers=_summed(codes * expected.numbers, q.scales.shape),
                bounds=_summed(np.abs(codes) * expected.bounds, q.scales.shape),
            )
            _compare(got.scales, expected, f"{name}'s scales")
            continue
        shape = side.numbers.shape
        expected = _Approximate(numbers=expected.numbers.reshape(shape), bounds=expected.bounds.reshape(shape))
        _compare(got, expected, name)


def _summed(numbers: np.ndarray, parts: tuple[int, ...]) -> np.ndarray:
    """Return sums over the blocks that share a scale."""
    for axis, (size, part) in enumerate(zip(numbers.shape, parts, strict=True)):
        if part != size:
            blocked = np.moveaxis(numbers, axis, -1)
            blocked = blocked.reshape(*blocked.shape[:-1], part, size // max(part, 1)).sum(-1)
            numbers = np.moveaxis(blocked, -1, axis)
    return numbers


SECTIONS = (
    Section(
        name="numerics-quantized",
        tries="quantized products and their gradients",
        share=8,
        attempt=_numerics,
    ),
)
