"""Both programs of a case: `systolic.matmul`, and the plain JAX that somebody would write who does not know it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.bench.cases import Case, Stack
from systolic.chips import Chip
from systolic.ops.epilogue import ACTIVATIONS, epilogue_of, operand_fn, work_of
from systolic.ops.matmul import matmul
from systolic.spec import Extra, Fusion, MatmulSpec, OperandFn

Fn = Callable[..., Array]


class Operands(NamedTuple):
    """The arrays of a case, or their shapes; None where its stack has no such array."""

    lhs: Any  # [m, k], or [k, m] if transposed
    rhs: Any  # [k, n], or [n, k] if transposed
    bias: Any = None  # [n]
    residual: Any = None  # [m, n]
    out_scale: Any = None  # [n]
    lhs_args: tuple[Any, ...] = ()  # mask: [m, k]; norm: [m, 1] and [1, k]
    rhs_args: tuple[Any, ...] = ()  # dequantise: [1, n]


def arguments(case: Case) -> Operands:
    """Shapes and dtypes of both programs' one argument."""
    m, k, n, stack = case.m, case.k, case.n, case.stack

    def shape(dtype: str, *sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype))

    lhs_args: dict[str, tuple[Any, ...]] = {
        "mask": (shape("int8", m, k),),
        "norm": (shape("float32", m, 1), shape("float32", 1, k)),
    }
    return Operands(
        lhs=shape(case.dtype_lhs, *((k, m) if stack.transpose_lhs else (m, k))),
        rhs=shape(case.dtype_rhs, *((n, k) if stack.transpose_rhs else (k, n))),
        bias=shape(case.dtype_beside, n) if stack.bias else None,
        residual=shape(case.dtype_beside, m, n) if stack.residual else None,
        out_scale=shape("float32", n) if stack.out_scale else None,
        lhs_args=lhs_args.get(stack.lhs_fn, ()),
        rhs_args=(shape("float32", 1, n),) if stack.rhs_fn else (),
    )


def ours(
    case: Case, chip: str | Chip, implementation: Literal["pallas", "xla", "interpret"] = "pallas"
) -> Callable[[Operands], Array]:
    """`systolic.matmul` of a case's operands, with the planner's tiles for a chip."""
    return functools.partial(_ours, case, chip, implementation)


def xla(case: Case) -> Callable[[Operands], Array]:
    """The same as plain JAX operations."""
    return functools.partial(_xla, case)


def _ours(case: Case, chip: str | Chip, implementation: Any, operands: Operands) -> Array:
    stack = case.stack
    return matmul(
        operands.lhs,
        operands.rhs,
        bias=operands.bias,
        activation=stack.activation or None,
        residual=operands.residual,
        out_scale=operands.out_scale,
        transpose_lhs=stack.transpose_lhs,
        transpose_rhs=stack.transpose_rhs,
        lhs_fn=_operand_function(stack.lhs_fn, case.dtype),
        lhs_args=operands.lhs_args,
        rhs_fn=_operand_function(stack.rhs_fn, case.dtype),
        rhs_args=operands.rhs_args,
        precision=case.precision,
        preferred_element_type=case.dtype_out,
        implementation=implementation,
        chip=chip,
    )


def _xla(case: Case, operands: Operands) -> Array:
    stack = case.stack
    lhs, rhs = operands.lhs, operands.rhs
    lhs_fn, rhs_fn = _operand_function(stack.lhs_fn, case.dtype), _operand_function(stack.rhs_fn, case.dtype)
    if lhs_fn is not None:
        lhs = lhs_fn(lhs, *operands.lhs_args)
    if rhs_fn is not None:
        rhs = rhs_fn(rhs, *operands.rhs_args)
    accumulator = "int32" if case.dtype == "int8" else "float32"
    out = jnp.matmul(
        lhs.T if stack.transpose_lhs else lhs,
        rhs.T if stack.transpose_rhs else rhs,
        precision=lax.Precision[case.precision.upper()],
        preferred_element_type=jnp.dtype(accumulator if stack.has_epilogue else case.dtype_out),
    )
    if not stack.has_epilogue:
        return out
    out = out.astype(jnp.float32)
    if operands.bias is not None:
        out = out + operands.bias.astype(jnp.float32)
    if stack.activation:
        out = ACTIVATIONS[stack.activation](out)
    if operands.residual is not None:
        out = out + operands.residual.astype(jnp.float32)
    if operands.out_scale is not None:
        out = out * operands.out_scale
    return out.astype(case.dtype_out)


@functools.cache
def _operand_function(name: str, dtype: str) -> Fn | None:
    functions: dict[str, Fn] = {
        "cast": lambda block: block.astype(dtype),
        "mask": lambda block, mask: jnp.where(mask != 0, block, jnp.zeros_like(block)),
        "norm": lambda block, rows, columns: (block.astype(jnp.float32) * rows * columns).astype(dtype),
        "dequantise": lambda block, scale: (block.astype(jnp.float32) * scale).astype(dtype),
    }
    return functions[name] if name else None


def spec_of(case: Case) -> MatmulSpec:
    """The problem that `systolic.matmul` plans for a case."""
    stack = case.stack
    return MatmulSpec(
        m=case.m,
        k=case.k,
        n=case.n,
        dtype_lhs=case.dtype_lhs,
        dtype_rhs=case.dtype_rhs,
        dtype_out=case.dtype_out,
        transpose_lhs=stack.transpose_lhs,
        transpose_rhs=stack.transpose_rhs,
        precision=case.precision,
        fusion=Fusion(
            extras=_extras(case),
            lhs_fn=_operand_fn(case, "lhs"),
            rhs_fn=_operand_fn(case, "rhs"),
            epilogue=", ".join(_epilogue_names(stack)),
            epilogue_ops=_epilogue_ops(case),
        ),
    )


@functools.cache
def _operand_fn(case: Case, side: Literal["lhs", "rhs"]) -> OperandFn | None:
    name, dtype = (case.stack.lhs_fn, case.dtype_lhs) if side == "lhs" else (case.stack.rhs_fn, case.dtype_rhs)
    beside = [jax.ShapeDtypeStruct((8, 128), extra.dtype) for extra in _extras(case) if extra.beside == side]
    return operand_fn(_operand_function(name, case.dtype), jax.ShapeDtypeStruct((8, 128), dtype), beside)


def _extras(case: Case) -> tuple[Extra, ...]:
    """In the order in which `matmul` hands them to its kernel."""
    stack, m, k, n = case.stack, case.m > 1, case.k > 1, case.n > 1
    found = []
    if stack.lhs_fn == "mask":
        found.append(Extra(beside="lhs", rows=m, columns=k, dtype="int8"))
    if stack.lhs_fn == "norm":
        found.append(Extra(beside="lhs", rows=m, columns=False, dtype="float32"))
        found.append(Extra(beside="lhs", rows=False, columns=k, dtype="float32"))
    if stack.rhs_fn:
        found.append(Extra(beside="rhs", rows=False, columns=n, dtype="float32"))
    if stack.bias:
        found.append(Extra(beside="out", rows=False, columns=n, dtype=case.dtype_beside))
    if stack.residual:
        found.append(Extra(beside="out", rows=m, columns=n, dtype=case.dtype_beside))
    if stack.out_scale:
        found.append(Extra(beside="out", rows=False, columns=n, dtype="float32"))
    return tuple(found)


def _epilogue_names(stack: Stack) -> list[str]:
    parts = {"bias": stack.bias, stack.activation: bool(stack.activation)}
    parts |= {"residual": stack.residual, "scale": stack.out_scale}
    return [name for name, there in parts.items() if there]


@functools.cache
def _epilogue_ops(case: Case) -> int:
    stack = case.stack
    epilogue = epilogue_of(
        bias=stack.bias,
        activation=ACTIVATIONS[stack.activation] if stack.activation else None,
        residual=stack.residual,
        scale=stack.out_scale,
        dtype_out=case.dtype_out,
        keep_sum=False,
    )
    tile = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    return work_of(epilogue, tile, *(tile for _ in range(stack.bias + stack.residual + stack.out_scale))).ops
