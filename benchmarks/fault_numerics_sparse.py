"""Sections on block-sparse products: random products compared with float64, and records made from hostile arguments."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from fault_cases import CaseError, Section, Setting
from fault_sparse_records import attempt_record

from systolic import BlockMask, BlockSparse, sparse_matmul

_INTERPRETED_SHARE = 0.08  # of the cases: each takes seconds
_TWICE_SHARE = 0.4  # of the cases that can be differentiated twice
_BATCHES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ()), ((), ()), ((), (2,)), ((2,), ()), ((2,), (2,))]
_BATCHES += [((2,), (3, 1)), ((0,), ()), ((), (0,))]
_EPSILON = {"float32": 2.0**-24, "bfloat16": 2.0**-9, "int32": 0.0, "int8": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A product and its options.

    Attributes:
      grid, block: of the stored sparse matrix.
      sweep: the size that the sparse matrix does not have.
      dtypes: of the sparse matrix and the dense one; with a mask, of lhs and rhs.
      batches: of the same two operands.
    """

    kind: str  # dsd, dds or sdd
    implementation: Any
    grid: tuple[int, int]
    block: tuple[int, int]
    sweep: int
    dtypes: tuple[str, str]
    batches: tuple[tuple[int, ...], tuple[int, ...]]
    transposes: tuple[bool, bool]
    dense_out: bool
    band: tuple[int | None, int | None]
    bias: bool
    activation: str | None
    preferred: str | None

    @classmethod
    def drawn(cls, choose: random.Random) -> _Case:
        interpreted = choose.random() < _INTERPRETED_SHARE
        sizes = [128] if interpreted else [1, 2, 3, 8]
        numbers = [0, 1, 2] if interpreted else [0, 1, 1, 2, 3, 4]
        kind = choose.choice(["dsd", "dds", "sdd"])
        dense_out = kind == "sdd" and choose.random() < 0.6
        dtypes = choose.choice(
            [("float32", "float32")] * 3
            + [("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float32", "int8"), ("int8", "bfloat16")]
            + [("int8", "int8")]
        )
        fused = kind != "sdd"
        grid = (choose.choice(numbers), choose.choice(numbers))
        block = (choose.choice(sizes), choose.choice(sizes))
        limits = [None, None, 0, 1, -1, block[0], -block[1], grid[1] * block[1], 2**40, -(2**40)]
        return cls(
            kind=kind,
            implementation="interpret" if interpreted else "xla",
            grid=grid,
            block=block,
            sweep=choose.choice([0, 16, 130] if interpreted else [0, 1, 3, 8]),
            dtypes=dtypes,
            batches=choose.choice(_BATCHES[:4] if interpreted else _BATCHES),
            transposes=(choose.random() < 0.5, choose.random() < 0.5),
            dense_out=dense_out,
            band=(choose.choice(limits), choose.choice(limits)) if dense_out else (None, None),
            bias=fused and choose.random() < 0.5,
            activation=choose.choice([None, None, "relu", "tanh", "silu", "softplus"]) if fused else None,
            preferred=choose.choice([None, None, "float32", "bfloat16"]),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the stored sparse matrix."""
        return self.grid[0] * self.block[0], self.grid[1] * self.block[1]

    @property
    def multiplied(self) -> str:
        """Return the dtype of the products."""
        return max(self.dtypes, key=["int8", "bfloat16", "float32"].index)

    @property
    def out(self) -> str:
        """Return the dtype of the result."""
        return self.preferred or ("int32" if self.multiplied == "int8" else self.multiplied)

    @property
    def is_smooth(self) -> bool:
        """True if the product has a meaningful second derivative, not one of rounded numbers."""
        return {*self.dtypes, self.out} == {"float32"} and self.activation != "relu"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrays:
    """Operands of a case, and the mask of the sparse matrix's blocks."""

    matrix: BlockSparse  # with NaN as padding; of sdd its places are the mask
    wanted: np.ndarray  # [*batch, m, n], bool
    first: np.ndarray  # the sparse matrix as a whole, or lhs
    second: np.ndarray
    bias: np.ndarray


def _values(random_: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (
        random_.integers(-9, 10, shape).astype(dtype) if dtype == "int8" else random_.normal(size=shape).astype(dtype)
    )


def _arrays(case: _Case, choose: random.Random) -> _Arrays:
    draw = np.random.default_rng(choose.randrange(2**32))
    (rows, columns), density = case.shape, choose.choice([0, 0.3, 0.6, 1])
    sparse_batch, dense_batch = case.batches
    masks = draw.random((*sparse_batch, *case.grid)) < density
    room = int(masks.sum((-2, -1)).max(initial=0)) + choose.choice([0, 0, 1, 3])
    mask = np.kron(masks, np.ones((*(1 for _ in sparse_batch), *case.block), bool))
    if case.kind == "sdd":
        dense = np.zeros(mask.shape, "float32")
        sides = [(case.sweep, rows) if case.transposes[0] else (rows, case.sweep)]
        sides += [(columns, case.sweep) if case.transposes[1] else (case.sweep, columns)]
        first, second = (
            _values(draw, (*batch, *side), dtype)
            for batch, side, dtype in zip((dense_batch, ()), sides, case.dtypes, strict=True)
        )
    else:
        dense = first = _values(draw, mask.shape, case.dtypes[0]) * mask
        sparse_is_turned, dense_is_turned = case.transposes[:: 1 if case.kind == "dsd" else -1]
        shared = rows if (case.kind == "dsd") == sparse_is_turned else columns
        side = (shared, case.sweep) if (case.kind == "dsd") != dense_is_turned else (case.sweep, shared)
        second = _values(draw, (*dense_batch, *side), case.dtypes[1])
    matrix = BlockSparse.from_dense(dense.astype(first.dtype), case.block, masks, most_blocks=room)
    is_padding = np.asarray(matrix.rows) >= case.grid[0]
    blocks = np.where(is_padding[..., None, None], 99 if case.dtypes[0] == "int8" else np.nan, matrix.blocks)
    order = draw.permuted(np.broadcast_to(np.arange(room), is_padding.shape), axis=-1)
    places = [
        np.take_along_axis(np.asarray(places_along_axis), order, -1)
        for places_along_axis in (matrix.rows, matrix.columns)
    ]
    blocks = np.take_along_axis(blocks.astype(first.dtype), order[..., None, None], -3)
    make: Any = jax.jit(BlockSparse, static_argnums=3) if choose.random() < 0.3 else BlockSparse
    matrix = make(blocks, *places, case.shape)
    columns_out = case.sweep if case.kind == "dsd" else rows if case.kind == "dds" and case.transposes[1] else columns
    return _Arrays(
        matrix=matrix, wanted=mask, first=first, second=second, bias=_values(draw, (columns_out,), "float32")
    )


def _ours(case: _Case, arrays: _Arrays, first: Any, second: Any, bias: Any) -> Any:
    """Return the whole result; `first` holds the blocks of a sparse matrix."""
    options: dict[str, Any] = {
        "transpose_lhs": case.transposes[0],
        "transpose_rhs": case.transposes[1],
        "activation": case.activation,
        "preferred_element_type": case.preferred,
        "implementation": case.implementation,
        "precision": "highest",
    }
    if case.kind == "sdd":
        matrix = arrays.matrix
        lower, upper = case.band
        mask = BlockMask(matrix.rows, matrix.columns, case.shape, case.block, lower, upper)
        out = sparse_matmul(first, second, mask=mask, dense_out=case.dense_out, **options)
        return out.to_dense() if isinstance(out, BlockSparse) else out
    sparse = arrays.matrix.with_blocks(first)
    sides = (sparse, second) if case.kind == "dsd" else (second, sparse)
    return sparse_matmul(*sides, bias=bias if case.bias else None, **options)


def _reference(case: _Case, wanted: Any, first: Any, second: Any, bias: Any) -> Any:
    """Return the product of whole matrices, in their dtype."""
    if case.kind != "sdd":
        first = jnp.where(wanted, first, 0)
    lhs, rhs = (second, first) if case.kind == "dds" else (first, second)
    total = (lhs.mT if case.transposes[0] else lhs) @ (rhs.mT if case.transposes[1] else rhs)
    if case.kind == "sdd":
        rows, columns = np.indices(case.shape)
        lower, upper = case.band
        within = np.ones(case.shape, bool) if lower is None else columns - rows >= lower
        within = within if upper is None else within & (columns - rows <= upper)
        return jnp.where(wanted & within, total, 0)
    total = total + bias if case.bias else total
    return getattr(jax.nn, case.activation)(total) if case.activation else total


def _check(name: str, found: Any, expected: Any, epsilon: float, case: _Case) -> None:
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if found.shape != expected.shape:
        raise CaseError(f"{name} has shape {found.shape}, not {expected.shape}: {case}")
    limit = epsilon * (np.abs(expected) + np.abs(expected).max(initial=0) + 1)
    limit = limit + 0.5 * (case.out == "int32" and (case.bias or case.activation is not None))
    off = np.abs(found - expected)
    if not np.all(off <= limit):  # also of NaN
        raise CaseError(f"{name} is {np.max(off)} off, of at most {np.max(limit)}: {case}")


def _attempt_product(choose: random.Random, _folder: Path, _setting: Setting) -> None:
    case = _Case.drawn(choose)
    arrays = _arrays(case, choose)
    first: Any = arrays.first if case.kind == "sdd" else arrays.matrix.blocks
    our_operands = (first, arrays.second, arrays.bias)
    wide = (arrays.first.astype(np.float64), arrays.second.astype(np.float64), arrays.bias.astype(np.float64))
    with jax.enable_x64(True):
        expected = np.asarray(_reference(case, arrays.wanted, *wide))
    rounding = 8 * max(*case.shape, case.sweep, 8) * _EPSILON["float32"]  # of a sum over the largest size
    epsilon = rounding + 2 * _EPSILON[case.out]
    value = _ours(case, arrays, *our_operands)
    if value.dtype != case.out:
        raise CaseError(f"the result is {value.dtype}, not {case.out}: {case}")
    _check("the result", value, expected, epsilon, case)

    twice = case.is_smooth and choose.random() < _TWICE_SHARE
    weights = np.random.default_rng(choose.randrange(2**32)).normal(size=expected.shape)
    numbers = [at for at, array in enumerate(our_operands) if array.dtype != np.int8 and (at < 2 or case.bias)]
    if not numbers or (case.out == "int32"):
        return

    def loss(fn: Any, dtype: Any) -> Any:
        def weighted(some: list[Any], rest: tuple[Any, ...]) -> Any:
            operands = list(rest)
            for at, array in zip(numbers, some, strict=True):
                operands[at] = array
            out = fn(*operands)
            return (out.astype(dtype) * weights.astype(dtype)).sum(), out

        return weighted

    def ours(some: list[Any], rest: tuple[Any, ...]) -> Any:
        return loss(lambda *operands: _ours(case, arrays, *operands), "float32")(some, rest)

    def plain(some: list[Any], rest: tuple[Any, ...]) -> Any:
        return loss(lambda *operands: _reference(case, arrays.wanted, *operands), "float64")(some, rest)

    def derivatives(fn: Any, operands: tuple[Any, ...]) -> Any:
        """Return the value, the gradients, and the gradients of their squares."""
        arrays_at_numbers = [operands[at] for at in numbers]
        (_, out), first_order = jax.value_and_grad(fn, has_aux=True)(arrays_at_numbers, operands)
        if not twice:
            return out, first_order, []

        def squares(some: list[Any]) -> Any:
            return sum((jnp.square(gradient).sum() for gradient in jax.grad(fn, has_aux=True)(some, operands)[0]), 0.0)

        return out, first_order, jax.grad(squares)(arrays_at_numbers)

    out, *our_orders = jax.jit(derivatives, static_argnums=0)(ours, our_operands)
    with jax.enable_x64(True):
        _, *orders = derivatives(plain, wide)
    _check("the value under value_and_grad", out, expected, epsilon, case)
    epsilon = 4 * rounding + 8 * max(_EPSILON[dtype] for dtype in (case.out, *case.dtypes))
    for order, (our_order, plain_order) in enumerate(zip(our_orders, orders, strict=True)):
        for number, got, exact in zip(numbers, our_order, plain_order, strict=False):
            if number == 0 and case.kind != "sdd":
                exact = np.where(arrays.wanted, exact, 0)
                got = arrays.matrix.with_blocks(got)
                is_padding = np.asarray(got.rows) >= case.grid[0]
                if np.any(np.asarray(got.blocks, np.float64)[is_padding] != 0):
                    raise CaseError(f"padding has a gradient: {case}")
                got = got.to_dense()
            name = ("the sparse operand's" if case.kind != "sdd" else "lhs'", "the dense operand's", "bias'")[number]
            _check(f"{name} derivative {order + 1}", got, exact, epsilon, case)


SECTIONS = (
    Section(
        name="numerics-sparse", tries="sparse products and gradients beside float64", share=2, attempt=_attempt_product
    ),
    Section(
        name="sparse-records", tries="BlockMask and BlockSparse of hostile arguments", share=2, attempt=attempt_record
    ),
)
