"""Dense, gated and grouped products, their gradients compared with float64, and plans of sizes up to 2³¹ − 1."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from fault_cases import CaseError, Section, Setting

import systolic
from systolic.chips import CHIPS, UnsupportedDtypeError
from systolic.ops.gated.spec import GatedSpec
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import IllegalTilesError
from systolic.spec import MatmulSpec, SpecError

LARGEST = 2**31 - 1
ROUNDING = 2.0**-24  # of float32
KEPT = {"float32": 4 * ROUNDING, "bfloat16": 2.0**-8, "float16": 2.0**-10}  # of what a dtype holds
THREE_PASSES = 2.0**-14 + 2.0**-15  # of a product: low × low is left out, and two low parts are rounded
SIZES = (0, 1, 2, 7, 8, 9, 31, 64, 127, 128, 129, 200)
PRESET = jax.lax.DotAlgorithmPreset
# All spellings; the refused ones are last.
PRECISIONS: tuple[Any, ...] = (
    *(None, "default", "fastest", "bfloat16", "high", "bfloat16_3x", "tensorfloat32", "highest", "float32", "HIGHEST"),
    *(jax.lax.Precision.HIGH, ("high", "tensorfloat32"), PRESET.BF16_BF16_F32, PRESET.BF16_BF16_F32_X3),
    *("BF16_BF16_F32_X6", jax.lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, jnp.float32, num_primitive_operations=6)),
)
REFUSED: tuple[Any, ...] = ("F32_F32_F32", PRESET.TF32_TF32_F32, "BF16_BF16_F32_X9", "medium", 3, ("high", "highest"))
Function = tuple[Any, Any]  # an activation in float64, and its derivative


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return (1 + np.tanh(x / 2)) / 2


def _gelu(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    slope = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return x / 2 * (1 + t), (1 + t) / 2 + x / 2 * (1 - t**2) * slope


ACTIVATIONS: dict[str | None, Any] = {
    None: lambda x: (x, np.ones_like(x)),
    "relu": lambda x: (np.maximum(x, 0), (x > 0) * 1.0),
    "tanh": lambda x: (np.tanh(x), 1 - np.tanh(x) ** 2),
    "silu": lambda x: (x * _sigmoid(x), _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))),
    "gelu": _gelu,
}


def _numbers(choose: random.Random, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    drawn = np.random.default_rng(choose.getrandbits(32)).standard_normal(shape)
    return np.asarray(jnp.asarray(drawn, jnp.float32).astype(dtype))


def _integers(choose: random.Random, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Return numbers whose products and sums float32 holds exactly."""
    return np.random.default_rng(choose.getrandbits(32)).integers(-4, 5, shape).astype(dtype)


def _wide(array: Any) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


def _within(what: str, found: Any, exact: np.ndarray, bound: np.ndarray | float) -> None:
    out = _wide(found)
    if out.shape != exact.shape:
        raise CaseError(f"{what} has shape {out.shape}, not {exact.shape}")
    off = abs(out - exact) - bound
    if off.size and not off.max() <= 0:
        at = np.unravel_index(np.nanargmax(off) if np.isfinite(off).any() else 0, off.shape)
        raise CaseError(f"{what}{list(map(int, at))} is {out[at]}, not {exact[at]}: off by {off[at]} more than allowed")


def _backend(choose: random.Random) -> dict[str, Any]:
    if choose.random() < 0.85:
        return {"implementation": "xla"}
    return {"implementation": "interpret", "chip": choose.choice(("v4", "v5e", "v5p", "v6e", "v7x"))}


def _precision(choose: random.Random, run: Any) -> Any:
    """Return a precision that is accepted; now and then, first try one that is refused."""
    if choose.random() < 0.1:
        wrong = choose.choice(REFUSED)
        try:
            run(wrong)
        except SpecError:
            pass
        else:
            raise CaseError(f"precision={wrong!r} was taken")
    return choose.choice(PRECISIONS)


def _unit(dtype: str) -> float:
    """Return the error bound of one product, for any precision: `high` is three passes in interpret mode."""
    return THREE_PASSES if dtype in ("float32", "float16") else 0.0


def _matmul(choose: random.Random, _folder: Path, _setting: Setting) -> None:
    """Check `(activation(lhs @ rhs + bias) + residual) · scale` and its gradients."""
    m, k, n = (choose.choice(SIZES) for _ in range(3))
    batch = choose.choice(((), (), (2,), (3, 1), (0,)))
    shared = choose.random() < 0.5
    dtype = choose.choice(("float32", "float32", "bfloat16", "float16"))
    out = choose.choice((None, "float32", "bfloat16"))
    name = choose.choice(list(ACTIVATIONS))
    x, w = _numbers(choose, (*batch, m, k), dtype), _numbers(choose, (k, n) if shared else (*batch, k, n), dtype)
    turned = {side: choose.random() < 0.3 for side in ("transpose_lhs", "transpose_rhs")}
    fused: dict[str, Any] = {
        "bias": _numbers(choose, (n,), "float32") if choose.random() < 0.5 else None,
        "residual": _numbers(choose, choose.choice(((*batch, m, n), (n,), ())), dtype)
        if choose.random() < 0.5
        else None,
        "out_scale": _numbers(choose, choose.choice(((n,), (m, 1), ())), "float32") if choose.random() < 0.4 else None,
    }
    options: dict[str, Any] = {**_backend(choose), **turned, "activation": name, "preferred_element_type": out}

    def product(x: Any, w: Any, precision: Any = None) -> Any:
        left = jnp.swapaxes(x, -1, -2) if turned["transpose_lhs"] else x
        right = jnp.swapaxes(w, -1, -2) if turned["transpose_rhs"] else w
        return systolic.matmul(left, right, **fused, **options, precision=precision)

    precision = _precision(choose, lambda wrong: product(x, w, wrong))
    computed, back = jax.vjp(lambda x, w: product(x, w, precision), jnp.asarray(x), jnp.asarray(w))
    dout = jnp.asarray(_numbers(choose, computed.shape, "float32")).astype(computed.dtype)
    x64, w64, c64 = _wide(x), _wide(w), _wide(dout)
    bias, residual, scale = (0.0 if operand is None else _wide(operand) for operand in fused.values())
    scale = 1.0 if fused["out_scale"] is None else scale
    z = x64 @ w64 + bias
    value, slope = ACTIVATIONS[name](z)
    off_z = (_unit(dtype) + (k + 2) * ROUNDING) * (abs(x64) @ abs(w64)) + 4 * ROUNDING * abs(bias)
    exact = (value + residual) * scale
    off = abs(scale) * (1.2 * off_z + 16 * ROUNDING * (1 + abs(value) + abs(z) + abs(residual)))
    _within("the product", computed, exact, off + KEPT[np.dtype(computed.dtype).name] * (abs(exact) + off))
    if name == "relu" and (abs(z) < 2 * off_z + 2.0**-7 * abs(z)).any():
        return  # the slope is different on either side of zero
    stored_rounding = KEPT["bfloat16" if dtype == "bfloat16" else "float32"]
    dz = c64 * scale * slope
    off_dz = abs(c64 * scale) * (1.2 * (off_z + stored_rounding * abs(z)) + 16 * ROUNDING * (1 + abs(z)))
    off_dz = off_dz * (name is not None) + (stored_rounding + 4 * ROUNDING) * abs(dz)
    _gradients(dtype, back(dout), (x64, w64), [(dz, off_dz, w64)])


def _gradients(dtype: str, found: Any, shapes: tuple[np.ndarray, ...], factors: list[Any]) -> None:
    """Check dx and the gradient of each weight, which follow from cotangents with known error bounds.

    Args:
      shapes: x and the weights; gradients have their sizes.
      factors: for each weight its product's cotangent, the error bound of that, and the weight.
    """
    x, *weights = shapes
    dx: Any = sum(d @ np.swapaxes(w, -1, -2) for d, _, w in factors)
    size: Any = sum(abs(d) @ abs(np.swapaxes(w, -1, -2)) for d, _, w in factors)
    off: Any = sum(o @ abs(np.swapaxes(w, -1, -2)) for _, o, w in factors)
    gradients = [(found[0], x, dx, size, off, 2 * factors[0][0].shape[-1])]
    turned = np.swapaxes(x, -1, -2)
    for computed, weight, (d, o, _) in zip(found[1:], weights, factors, strict=True):
        gradients.append((computed, weight, turned @ d, abs(turned) @ abs(d), abs(turned) @ o, x.shape[-2]))
    for computed, like, exact, size, off, count in gradients:
        axes = tuple(range(exact.ndim - like.ndim)) + tuple(
            axis + exact.ndim - like.ndim
            for axis, length in enumerate(like.shape)
            if exact.shape[axis + exact.ndim - like.ndim] != length
        )
        summands = count * int(np.prod([exact.shape[axis] for axis in axes], initial=1))
        exact, size, off = (np.sum(terms, axis=axes).reshape(like.shape) for terms in (exact, size, off))
        bound = off + (_unit(dtype) + (summands + 4) * ROUNDING) * (size + off)
        _within("a gradient", computed, exact, bound + KEPT[dtype] * (abs(exact) + bound))


def _gated(choose: random.Random, _folder: Path, _setting: Setting) -> None:
    """Check `activation(x @ w_gate) · (x @ w_up)` and its gradients."""
    m, k, n = (choose.choice(SIZES) for _ in range(3))
    dtype, name = choose.choice(("float32", "float32", "bfloat16")), choose.choice((None, "silu", "gelu", "tanh"))
    batch = choose.choice(((), (), (2,), (0,)))
    x = _numbers(choose, (*batch, m, k), dtype)
    gate, up = (_numbers(choose, (k, n), dtype) for _ in range(2))
    together = choose.random() < 0.3
    options: dict[str, Any] = {
        **_backend(choose),
        "activation": name,
        "preferred_element_type": choose.choice((None, "float32")),
    }

    def product(x: Any, gate: Any, up: Any, precision: Any = None) -> Any:
        first, second = (jnp.concatenate((gate, up), axis=1), None) if together else (gate, up)
        return systolic.gated_matmul(x, first, second, **options, precision=precision)

    precision = _precision(choose, lambda wrong: product(x, gate, up, wrong))
    arrays = (jnp.asarray(x), jnp.asarray(gate), jnp.asarray(up))
    out, back = jax.vjp(lambda x, gate, up: product(x, gate, up, precision), *arrays)
    dout = jnp.asarray(_numbers(choose, out.shape, "float32")).astype(out.dtype)
    x64, gate64, up64, c64 = (_wide(array) for array in (x, gate, up, dout))
    first, second = x64 @ gate64, x64 @ up64
    value, slope = ACTIVATIONS[name](first)
    unit = _unit(dtype) + (k + 2) * ROUNDING
    off_first, off_second = (unit * (abs(x64) @ abs(weight)) for weight in (gate64, up64))
    off_value = 1.2 * off_first + 16 * ROUNDING * (1 + abs(first))
    off_slope = (name is not None) * (1.2 * off_first + 16 * ROUNDING * (1 + abs(first)))
    exact = value * second
    off = abs(second) * off_value + (abs(value) + off_value) * off_second + 4 * ROUNDING * abs(exact)
    _within("the product", out, exact, off + KEPT[np.dtype(out.dtype).name] * (abs(exact) + off))
    # Slopes are stored for the gradient, and multiplied by dout before the product.
    stored_rounding = 2 * KEPT[dtype] + 4 * ROUNDING
    dgate, dup = c64 * second * slope, c64 * value
    off_dgate = abs(c64) * (abs(second) * off_slope + (abs(slope) + off_slope) * off_second)
    factors = [
        (dgate, (1 + stored_rounding) * off_dgate + stored_rounding * abs(dgate), gate64),
        (dup, (1 + stored_rounding) * abs(c64) * off_value + stored_rounding * abs(dup), up64),
    ]
    _gradients(dtype, back(dout), (x64, gate64, up64), factors)


def _grouped(choose: random.Random, _folder: Path, _setting: Setting) -> None:
    """Check integer products in groups of any sizes from any traced offset, and refusals of known wrong arguments."""
    m, k, n = (choose.choice((0, 1, 7, 8, 40, 64)) for _ in range(3))
    all_groups, dtype = choose.choice((0, 1, 2, 3, 8)), choose.choice(("float32", "bfloat16"))
    groups = choose.randrange(all_groups + 1)
    drawn = (0, 1, 5, m // 2, m, LARGEST, -1, -LARGEST - 1, LARGEST - m)
    sizes = np.array([choose.choice(drawn) for _ in range(all_groups)], np.int32)
    offset = choose.choice((-LARGEST - 1, -5, -1, 0, 1, 2, all_groups - groups, all_groups, 99, LARGEST))
    if groups == all_groups and choose.random() < 0.5:
        offset = None
    turned, plain = choose.random() < 0.4, choose.random() < 0.5
    x, w, up = (_integers(choose, shape, dtype) for shape in ((m, k), (groups, k, n), (groups, k, n)))
    bias, residual = _integers(choose, (groups, n)), _integers(choose, (m, n))
    scale = _integers(choose, (m,))
    existing: Any = _integers(choose, (m, n)) if choose.random() < 0.3 else None
    fused: dict[str, Any] = (
        {} if plain else {"bias": bias, "residual": residual, "row_scale": scale, "activation": "relu", "up": up}
    )
    if turned and not plain:
        fused["up"] = up.swapaxes(1, 2)
    precision, backend = choose.choice(PRECISIONS), _backend(choose)

    def product(x: Any, w: Any, sizes: Any, offset: Any) -> Any:
        w = jnp.swapaxes(w, 1, 2) if turned else w
        return systolic.grouped_matmul(
            *(x, w, sizes),
            group_offset=offset,
            transpose_rhs=turned,
            existing_out=existing,
            precision=precision,
            **{"preferred_element_type": "float32", **fused, **backend},
        )

    def both(x: Any, w: Any, sizes: Any, offset: Any, dout: Any) -> Any:
        out, back = jax.vjp(lambda x, w: product(x, w, sizes, offset), x, w)
        return (out, *back(dout)) if plain else (out,)

    dout = _integers(choose, (m, n))
    traced = None if offset is None else np.int32(offset)
    results = jax.jit(both)(*map(jnp.asarray, (x, w)), sizes, traced, dout)
    ends = np.minimum(np.cumsum(np.maximum(sizes.astype(np.int64), 0)), m)
    out = np.zeros((m, n)) if existing is None else _wide(existing)
    dx, dw = np.zeros((m, k)), np.zeros((groups, k, n))
    x64, w64, up64, d64 = map(_wide, (x, w, up, dout))
    for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        number, rows = group - (offset or 0), slice(start, end)
        if 0 <= number < groups:
            total = x64[rows] @ w64[number]
            if not plain:
                total = np.maximum(total + bias[number], 0) * (x64[rows] @ up64[number])
                total = total * scale[rows, None] + residual[rows]
            out[rows], dx[rows], dw[number] = total, d64[rows] @ w64[number].T, x64[rows].T @ d64[rows]
    for name, computed, exact in zip(("the product", "dx", "dw"), results, (out, dx, dw), strict=False):
        _within(name, computed, exact, 2.0**-8 * abs(exact) if name != "the product" and dtype == "bfloat16" else 0.0)
    wrong_sizes = bool((sizes < 0).any()) or int(sizes.astype(np.int64).sum()) > m
    wrong = choose.choice((None, True, 1.5, [0], "x", np.array([0, 1]), 2**40, -1, all_groups - groups + 1))
    for group_sizes, group_offset, is_wrong in (
        (sizes, traced, wrong_sizes),
        (np.zeros(all_groups, np.int32), wrong, wrong is not None or groups != all_groups),
    ):
        if is_wrong or (group_sizes is sizes and not 0 <= (offset or 0) <= all_groups - groups):
            try:
                product(x, w, group_sizes, group_offset)
            except SpecError:
                continue
            raise CaseError(
                f"{group_sizes} and group_offset={group_offset!r} of {all_groups} were taken for {groups} matrices"
            )


def _plans(choose: random.Random, _folder: Path, _setting: Setting) -> None:
    """Check that a plan of any sizes ends with a time, or with an error that says why not."""

    def size() -> int:
        near = (1, 127, 128, 4096, 5760, 2**20, 2**24, 2**30, 128 * 14414400, LARGEST - 127, LARGEST)
        return choose.choice((*near, choose.randrange(1, 2**31), min(LARGEST, 128 * choose.randrange(1, 2**24))))

    m, k, n, dtype = size(), size(), size(), choose.choice(("bfloat16", "float32"))
    groups = choose.choice((1, 8, size()))
    grouped: dict[str, Any] = {
        "m": m,
        "k": k,
        "n": n,
        "groups": groups,
        "rows_per_group": choose.choice((1, 64, max(m // groups, 1))),
    }
    of: dict[str, Any] = {"dtype": dtype, "dtype_out": dtype}
    kind, block = choose.randrange(5), choose.choice((k, k, 128))
    chip = CHIPS[choose.choice(("v4", "v5e", "v5p", "v6e", "v7x"))]
    try:
        spec: Any
        if kind == 0:
            batch = choose.choice((1, 1, 7, 4096, LARGEST))
            batch_rhs = choose.choice((1, batch))
            spec = MatmulSpec(
                m=m, k=k, n=n, dtype_lhs=dtype, dtype_rhs=dtype, dtype_out=dtype, batch=batch, batch_lhs=batch,
                batch_rhs=batch_rhs, transpose_rhs=choose.random() < 0.3,
            )  # fmt: skip
        elif kind == 1:
            spec = GatedSpec.of(m, k, n, dtype)
        elif kind == 2:
            spec = GroupedSpec(**grouped, **of)
        elif kind == 3:
            spec = GroupedGradientSpec(**grouped, **of)
        else:
            spec = QuantizedSpec(
                m=m, k=k, n=n, dtype_lhs="bfloat16", dtype_rhs="int8", dtype_out="bfloat16", block=block
            )
        time_us = systolic.plan(spec, chip).time_us
    except (SpecError, IllegalTilesError, UnsupportedDtypeError):
        return
    if not 0 < time_us < float("inf"):
        raise CaseError(f"{spec} on {chip.name} takes {time_us} µs")


SECTIONS = (
    Section(name="numerics-matmul", tries="products of any options beside float64", share=3, attempt=_matmul),
    Section(name="numerics-gated", tries="gated products and gradients beside float64", share=3, attempt=_gated),
    Section(name="numerics-grouped", tries="groups of hostile sizes and offsets", share=3, attempt=_grouped),
    Section(name="huge-plans", tries="plans of sizes up to 2³¹ − 1", share=2, attempt=_plans),
)
