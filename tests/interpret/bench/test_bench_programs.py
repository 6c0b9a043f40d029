"""Both programs of a case compute the same, and it is right: against float64, for every stack of the fused suite."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from systolic.bench import layer_programs, moe_layer_programs, moe_programs
from systolic.bench.cases import Case, fused_spec
from systolic.bench.layers import LayersSpec, Which
from systolic.bench.moe import Kind, MoeSpec
from systolic.bench.moe_layer_spec import LayerSpec
from systolic.bench.suites import OPERAND_STACKS, STACKS, Fused, suite
from systolic.chips import chip
from systolic.ops.matmul.programs import raced
from systolic.spec import Operands

STACKS_BY_NAME = dict(STACKS + OPERAND_STACKS)
V5E = chip("v5e")
FLOAT32_UNIT = 2.0**-24


def case_of(stack: Fused, dtype: str, m: int = 24, k: int = 256, n: int = 384) -> Case:
    precision = "highest" if dtype == "float32" else "default"
    return Case(suite="", group="", name="small", spec=stack(m, k, n, dtype, precision))


def prologues(case: Case) -> list[str]:
    """The names of the operands' functions."""
    return [one.name if one else "" for one in (case.spec.lhs_prologue, case.spec.rhs_prologue)]


def filled(case: Case) -> Operands:
    random = np.random.default_rng(0)

    def array(shape: jax.ShapeDtypeStruct) -> np.ndarray:
        if shape.dtype == "int8":
            return random.integers(-128, 128, shape.shape).astype("int8")
        return random.standard_normal(shape.shape, np.float32).astype(shape.dtype)

    made = jax.tree.map(array, *raced(case.spec, V5E).arguments)
    if prologues(case)[0] == "mask":
        made = made._replace(lhs_args=(random.integers(0, 2, (case.spec.m, case.spec.k)).astype("int8"),))
    if prologues(case)[1]:  # an int8 weight stands for numbers of about one
        made = made._replace(rhs_args=(made.rhs_args[0] / np.float32(64),))
    return made


def multiplied(case: Case, operands: Operands) -> tuple[np.ndarray, np.ndarray]:
    """Both matrices in the dtype that is multiplied, as float64."""
    lhs, rhs = np.asarray(operands.lhs), np.asarray(operands.rhs)
    lhs_fn, rhs_fn = prologues(case)
    if lhs_fn == "mask":
        lhs = np.where(operands.lhs_args[0] != 0, lhs, np.zeros_like(lhs))
    if lhs_fn == "norm":
        lhs = lhs.astype(np.float32) * operands.lhs_args[0] * operands.lhs_args[1]
    if rhs_fn:
        rhs = rhs.astype(np.float32) * operands.rhs_args[0]
    lhs, rhs = (array.astype(case.spec.dtype_multiplied).astype(np.float64) for array in (lhs, rhs))
    return lhs.T if case.spec.transpose_lhs else lhs, rhs.T if case.spec.transpose_rhs else rhs


def activated(name: str, value: np.ndarray) -> np.ndarray:
    if name == "gelu":
        return value * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3))) / 2
    if name == "silu":
        return value / (1 + np.exp(-value))
    return np.maximum(value, 0) if name == "relu" else value


def wanted(case: Case, operands: Operands) -> tuple[np.ndarray, np.ndarray]:
    """The result in float64, and the largest error of each element that rounding explains."""
    lhs, rhs = multiplied(case, operands)
    value = lhs @ rhs
    # A sum of k products, each rounded: Higham's bound. No activation here is steeper than 1.2.
    error = 1.2 * (case.spec.k + 8) * FLOAT32_UNIT * (np.abs(lhs) @ np.abs(rhs) + 1)
    if operands.bias is not None:
        value = value + np.asarray(operands.bias, np.float64)
    value = activated(case.spec.epilogue.activation, value)
    if operands.residual is not None:
        value = value + np.asarray(operands.residual, np.float64)
    if operands.scale is not None:
        scale = np.asarray(operands.scale, np.float64)
        value, error = value * scale, error * np.abs(scale)
    if case.spec.dtype_out == "int32":
        return value, np.zeros_like(value)
    unit = float(ml_dtypes.finfo(case.spec.dtype_out).eps) / 2
    return value, error + unit * (np.abs(value) + error)


def programs(case: Case, name: str) -> Iterator[Callable[..., jax.Array]]:
    yield raced(case.spec, chip(name)).xla
    for implementation in ("xla", "interpret"):
        yield raced(case.spec, chip(name), implementation).ours


def check(program: Any, case: Case, operands: Operands) -> None:
    result = np.asarray(jax.jit(program)(operands))
    value, error = wanted(case, operands)
    assert result.shape == (case.spec.m, case.spec.n)
    assert result.dtype.name == case.spec.dtype_out
    excess = np.abs(result.astype(np.float64) - value) - error
    assert np.all(excess <= 0), f"{np.max(excess)} above the tolerance"


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "bfloat16") for name in STACKS_BY_NAME),
        *((name, "float32") for name in ("bias gelu residual", "both transposed", *dict(OPERAND_STACKS))),
    ],
)
def test_every_stack(name: str, dtype: str) -> None:
    case = case_of(STACKS_BY_NAME[name], dtype)
    operands = filled(case)
    for program in programs(case, "v5e"):
        check(program, case, operands)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["bias gelu residual", "both transposed", "scale to bfloat16"])
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_dtypes(name: str, dtype: str) -> None:
    case = case_of(STACKS_BY_NAME[name], dtype, m=32)
    operands = filled(case)
    for program in programs(case, "v7x"):
        check(program, case, operands)


def test_ragged_sizes() -> None:
    for large in suite("edges")[-2:]:
        small = dataclasses.replace(
            large.spec, m=large.spec.m % 64 + 1, k=large.spec.k % 300 + 1, n=large.spec.n % 200 + 1
        )
        case = dataclasses.replace(large, spec=small)
        operands = filled(case)
        for program in programs(case, "v5e"):
            check(program, case, operands)


def test_a_forgotten_bias_is_noticed() -> None:
    case = case_of(STACKS_BY_NAME["bias"], "bfloat16")
    operands = filled(case)
    plain, *_ = programs(case_of(fused_spec, "bfloat16"), "v5e")
    with pytest.raises(AssertionError, match="above the tolerance"):
        check(plain, case, operands)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("which", "experts"), [("mlp", 0), ("gated", 0), pytest.param("mlp", 3, marks=pytest.mark.slow)]
)
def test_layers(which: Which, experts: int) -> None:
    """Both programs compute the same MLPs and gradients: ours in interpret mode, plain JAX in float32."""
    layers = 2 if which == "mlp" else 1
    spec = LayersSpec(m=16, k=128, n=256, dtype="float32", layers=layers, backward=True, which=which, experts=experts)
    programs = layer_programs.raced(spec, V5E, "interpret")
    random = np.random.default_rng(0)
    arrays = [
        one if isinstance(one, np.ndarray) else random.standard_normal(one.shape, np.float32) / one.shape[-2] ** 0.5
        for one in programs.arguments
    ]
    with jax.default_matmul_precision("highest"):
        found, wanted = (jax.jit(fn)(*arrays) for fn in (programs.ours, programs.xla))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=4e-6 * np.abs(other).max())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["forward", "dlhs", "drhs", "gated"])
def test_layers_of_experts(kind: Kind) -> None:
    """Our programs in interpret mode and XLA's make the same of all rows."""
    spec = MoeSpec(kind=kind, m=64, k=128, n=256, groups=4, routing="skewed", dtype="float32")
    programs = moe_programs.raced(spec, V5E, "interpret")
    random = np.random.default_rng(0)
    *shapes, sizes = programs.arguments
    arrays = [random.standard_normal(one.shape, np.float32) for one in shapes]
    with jax.default_matmul_precision("highest"):
        found, wanted = (np.asarray(jax.jit(fn)(*arrays, sizes)) for fn in (programs.ours, programs.xla))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=4e-6 * np.abs(wanted).max())


@pytest.mark.exhaustive
@pytest.mark.parametrize("implementation", ["xla", pytest.param("interpret", marks=pytest.mark.slow)])
def test_a_layer_and_its_gradients(implementation: str) -> None:
    """Ours, XLA's, and the form whose gradients are gathers, next to float64."""
    spec = LayerSpec(m=24, k=128, n=128, experts=3, top_k=2, dtype="float32", backward=True)
    programs = moe_layer_programs.raced(spec, V5E, implementation)
    random = np.random.default_rng(0)
    *shapes, _, cotangent = programs.arguments
    *arrays, cotangent = [
        random.standard_normal(one.shape, np.float32) / one.shape[-2] ** 0.5 for one in (*shapes, cotangent)
    ]
    chosen = np.argsort(-arrays[1], axis=1)[:, : spec.top_k]
    with jax.enable_x64(True):
        dense = functools.partial(dense_layer, chosen)
        exact: list[Any] = [np.float64(array) for array in (*arrays, np.zeros(3), cotangent)]
        wanted = moe_layer_programs.with_gradients(lambda *given: dense(*given[:-1]), *exact)
    operands = (*arrays, np.bincount(chosen.reshape(-1), minlength=3).astype(np.int32), cotangent)
    assert list(programs.xla_forms) == ["gradients by gathers"]
    with jax.default_matmul_precision("highest"):
        for program in (programs.ours, programs.xla, *programs.xla_forms.values()):
            results = jax.tree.leaves(jax.jit(program)(*operands))
            assert len(results) == 6
            for one, other in zip(results, jax.tree.leaves(wanted), strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())


def dense_layer(chosen: np.ndarray, x: Any, logits: Any, gate: Any, up: Any, down: Any) -> Any:
    """All experts of all tokens, and zero weights for those that are not chosen."""
    is_chosen = (chosen[..., None] == np.arange(logits.shape[1])).any(1)
    weights = jax.nn.softmax(jnp.where(is_chosen, logits, -jnp.inf))
    hidden = jax.nn.silu(jnp.einsum("td,edf->tef", x, gate)) * jnp.einsum("td,edf->tef", x, up)
    return jnp.einsum("tef,efd,te->td", hidden, down, weights)
