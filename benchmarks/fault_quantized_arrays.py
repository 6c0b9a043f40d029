"""Quantized arrays of wrong dtypes and shapes, and plans of large products: a named error, or a right answer."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from fault_cases import CaseError, Section, Setting
from fault_numerics_quantized import exact

import systolic
from systolic.analysis import kernel_calls, vmem_estimate
from systolic.chips import CHIPS
from systolic.ops.op import op_of
from systolic.ops.quantized.schedule import QuantizedSchedule
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.schedule import IllegalTilesError, total_bytes
from systolic.spec import LARGEST, SpecError

_K, _N = 64, 32
_X = np.linspace(-1, 1, 5 * _K, dtype=np.float32).reshape(5, _K)
_DTYPES = (
    *LARGEST,
    *("bfloat16", "float16", "float32", "uint8", "int16", "int32", "bool", "complex64", "uint4", "float8_e4m3b11fnuz"),
)
# Functions of a weight, such as a product, each with the same function of its exact numbers.
_USES: tuple[tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]], ...] = (
    (lambda q: systolic.matmul(_X, q), lambda w: _X @ w),
    (lambda q: jax.jit(systolic.matmul)(_X, q), lambda w: _X @ w),
    (
        lambda q: systolic.matmul(q, np.ones((q.values.shape[-1], 3), np.float32)),
        lambda w: w @ np.ones((w.shape[-1], 3)),
    ),
    (lambda q: systolic.matmul(systolic.quantize(_X, axis=-1), q), lambda w: _X @ w),
    (lambda q: systolic.gated_matmul(_X, q, q, activation="relu"), lambda w: np.maximum(_X @ w, 0) * (_X @ w)),
    (lambda q: jax.grad(lambda x: systolic.matmul(x, q).sum())(_X), lambda w: np.ones((5, w.shape[-1])) @ w.T),
    (lambda q: systolic.matmul(_X, q, implementation="interpret", chip="v6e"), lambda w: _X @ w),
    (systolic.dequantize, lambda w: w),
    (lambda q: q.mT.dequantize(), lambda w: w.mT),
)


def _changed(choose: random.Random, array: Any) -> Any:
    kind = choose.randrange(6)
    if kind < 3:
        return array.astype(choose.choice(_DTYPES))
    if kind == 3:
        return array[: choose.randrange(array.shape[0] + 1)]
    if kind == 4:
        return jnp.concatenate([array, array], axis=choose.randrange(2))
    return choose.choice([array[0], array[None], np.asarray(array), tuple(array.shape), None])


def _casts(choose: random.Random, _folder: Path, _setting: Setting) -> None:
    """Change arrays of a weight by tree operations, which no constructor checks."""
    weight = np.random.default_rng(choose.getrandbits(32)).standard_normal((_K, _N)).astype(np.float32)
    q = systolic.quantize(weight, choose.choice(list(LARGEST)), block=choose.choice([None, 32]))
    arrays, structure = jax.tree.flatten(q)
    if choose.random() < 0.4:
        dtype = choose.choice(_DTYPES)
        arrays = [array.astype(dtype) for array in arrays]
    else:
        at = choose.randrange(2)
        arrays[at] = _changed(choose, arrays[at])
    changed = structure.unflatten(arrays)
    use, reference = choose.choice(_USES)
    try:
        systolic.Quantized(*arrays)
        valid = np.asarray(changed.values).ndim == 2
    except SpecError:
        valid = False
    with np.errstate(all="ignore"):
        try:
            numbers = np.asarray(use(changed)).astype(np.float64)
        except (SpecError, IllegalTilesError) as error:  # also for sizes that do not match
            if str(error).count("\n"):
                raise CaseError(f"the error has several lines: {error}") from error
            return
        except (TypeError, AttributeError):
            if any(array is None or isinstance(array, tuple) for array in arrays):
                return  # not a pytree of arrays: JAX's own error
            raise
        if not valid:
            shapes = [getattr(array, "dtype", array) for array in arrays]
            raise CaseError(f"arrays of {shapes} gave a result")
        expected = reference(exact(changed))
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    if numbers.shape != expected.shape or not np.allclose(
        numbers, expected, rtol=0.03, atol=0.03 * scale, equal_nan=True
    ):
        raise CaseError("a result is wrong")


def _plans(choose: random.Random, _folder: Path, _setting: Setting) -> None:
    """Plan a large product: the traced kernel has the plan's buffers, and they fit."""
    chip = CHIPS[choose.choice(["v4", "v5e", "v5p", "v6e", "v7x"])]
    k = choose.choice([4096, 7168, 11008, 16384, 28672, 65536, 131072, 262144])
    block = choose.choice([k, k, 32, 128, 512])
    rows: dict[str, Any] = choose.choice(
        [
            {},
            {},
            {"quantize_lhs": choose.choice(["int8", "int4", "float8_e4m3fn"])},
            {"dtype_lhs": "int8", "lhs_block": k},
        ]
    )
    spec = QuantizedSpec(
        **{"dtype_lhs": "bfloat16", **rows},
        m=choose.choice([1, 3, 9, 16, 100, 300, 2048]),
        k=k,
        n=choose.choice([128, 1024, 8192, 14336, 32768]),
        dtype_rhs=choose.choice(list(LARGEST)),
        dtype_out=choose.choice(["bfloat16", "float32"]),
        block=block if k % block == 0 else k,
        gated=choose.random() < 0.2,
    )
    try:
        plan = systolic.plan(spec, chip.name)
    except IllegalTilesError:
        return  # rows that VMEM has no room for; an error that names the sizes
    schedule = QuantizedSchedule.of(spec, plan.config, chip)
    if not total_bytes(schedule.buffers) < schedule.vmem_limit_bytes <= chip.usable_vmem_bytes_per_core:
        raise CaseError(f"{spec}: {total_bytes(schedule.buffers)} bytes, {schedule.vmem_limit_bytes} asked for")
    programs = op_of(spec).programs(spec, chip)
    jaxpr = jax.make_jaxpr(functools.partial(programs.kernel(plan.config)))(*programs.arguments)
    (call,) = kernel_calls(jaxpr)
    estimate = vmem_estimate(call, chip)
    planned, traced = total_bytes(schedule.buffers), estimate.total_bytes
    if not traced <= 1.02 * planned + 2**16:
        raise CaseError(f"{spec}: the kernel's buffers take {traced} bytes, and {planned} are planned")


SECTIONS = (
    Section(name="quantized-casts", tries="quantized arrays cast or cut as trees", share=4, attempt=_casts),
    Section(name="plans-quantized", tries="plans of large quantized products", share=1, attempt=_plans),
)
