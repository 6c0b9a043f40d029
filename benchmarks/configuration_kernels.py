"""Random configurations of small kernels for `check_configurations.py`, drawn from a seed, legal and illegal."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

KIB = 2**10
PRODUCTS = ("product in output", "product in scratch", "product whole k", "transposed rhs", "batched product")
OTHERS = ("add a row", "row sum", "vector")
# Operands of products, drawn as often as they are listed.
_PAIRS = (
    *[("bfloat16", "bfloat16")] * 8,
    *[("float32", "float32")] * 6,
    *[("int8", "int8")] * 3,
    *[("float8_e4m3fn", "float8_e4m3fn")] * 2,
    *[("float8_e5m2", "float8_e5m2")] * 2,
    *[("bfloat16", "int8")] * 2,
    *[("float32", "bfloat16")] * 2,
    ("bfloat16", "float32"),
    ("float16", "float16"),
    ("int4", "int4"),
    ("bfloat16", "int4"),
    ("int8", "int4"),
    ("float8_e4m3b11fnuz", "float8_e4m3b11fnuz"),
    ("float8_e5m2", "float8_e4m3fn"),
    ("bfloat16", "float8_e5m2"),
    ("int8", "bfloat16"),
    ("uint8", "uint8"),
    ("int16", "int16"),
    ("int32", "int32"),
)
_PLAIN = ("float32", "float32", "float32", "bfloat16", "bfloat16", "int32", "int8", "float8_e4m3fn", "int16", "float16")
_LIMITS_MIB = (1, 2, 4, 8, 12, 16, 20, 24, 32, 48, 64, 100, 128, 160)
_MAX_TILE_PRODUCT = 2**27  # about a second of compiling


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One kernel on one chip. `rounding` is the grid's: "down" drops a tail, or leaves no steps at all."""

    number: int
    chip: str
    family: str
    batch: int
    m: int
    k: int
    n: int
    tile_m: int
    tile_k: int
    tile_n: int
    dtype_lhs: str
    dtype_rhs: str
    dtype_out: str
    accumulator: str
    precision: str
    buffers: int
    rounding: str
    vmem_limit_kib: int

    @property
    def limit_bytes(self) -> int | None:
        """Return `vmem_limit_bytes`, or None if it is not set."""
        return self.vmem_limit_kib * KIB or None

    @property
    def block_kib(self) -> int:
        """Return the approximate KiB of all blocks, each twice."""
        sides = (self.tile_m * self.tile_k, self.tile_k * self.tile_n, self.tile_m * self.tile_n)
        dtypes = (self.dtype_lhs, self.dtype_rhs, self.dtype_out)
        return sum(2 * side * jnp.dtype(dtype).itemsize for side, dtype in zip(sides, dtypes, strict=True)) // KIB


def configurations(seed: int, count: int, chips: tuple[str, ...]) -> Iterator[Configuration]:
    """Yield `count` configurations; the same seed and chips give the same ones."""
    source = random.Random(seed)
    for number in range(count):
        product = source.random() < 0.72
        draw = _product if product else _other
        drawn = draw(source, number, source.choice(chips))
        if source.random() < 0.15:  # a limit near the VMEM that the kernel needs
            drawn = replace(drawn, vmem_limit_kib=round(drawn.block_kib * source.uniform(0.5, 1.6)) + 8)
        yield drawn


def _tile(source: random.Random, sides: tuple[int, ...], odd: tuple[int, ...]) -> int:
    return source.choice(odd) if source.random() < 0.05 else source.choice(sides)


def _size(source: random.Random, tile: int) -> int:
    kind = source.random()
    if kind < 0.6:
        return tile * source.choice((1, 2, 2, 3, 4, 8, 16))
    if kind < 0.8:
        return tile * source.choice((1, 2)) + source.choice((1, 8, 40, 100, 128))
    if kind < 0.9:
        return max(1, tile - source.choice((1, 8, 56)))
    return source.choice((1, 8, 100, 128, 200, 256, 512, 1000))


def _product(source: random.Random, number: int, chip: str) -> Configuration:
    family = source.choice(PRODUCTS)
    while True:
        tile_m = _tile(source, (8, 16, 32, 64, 128, 256, 512, 1024), (1, 4, 12, 20, 100, 200, 250))
        tile_k = _tile(source, (128, 256, 512, 1024, 2048), (8, 64, 100, 192, 320))
        tile_n = _tile(source, (128, 128, 256, 512, 1024), (1, 8, 64, 100, 192))
        if tile_m * tile_k * tile_n <= _MAX_TILE_PRODUCT:
            break
    lhs, rhs = source.choice(_PAIRS)
    are_integers = jnp.issubdtype(jnp.dtype(lhs), jnp.integer) and jnp.issubdtype(jnp.dtype(rhs), jnp.integer)
    accumulator = "int32" if are_integers else "float32"
    if source.random() < 0.03:
        accumulator = source.choice(("float32", "bfloat16", "int32"))
    out = accumulator
    if family != "product in output" and source.random() < 0.5:
        out = source.choice(("bfloat16", "float32"))
    precision = source.choice(("default",) * 16 + ("HIGHEST",) * 3 + ("HIGH",))
    return Configuration(
        number=number,
        chip=chip,
        family=family,
        batch=source.choice((1, 2, 3)) if family == "batched product" else 1,
        m=_size(source, tile_m),
        k=tile_k if family == "product whole k" else _size(source, tile_k),
        n=_size(source, tile_n),
        tile_m=tile_m,
        tile_k=tile_k,
        tile_n=tile_n,
        dtype_lhs=lhs,
        dtype_rhs=rhs,
        dtype_out=out,
        accumulator=accumulator,
        precision=precision,
        buffers=source.choice((0,) * 10 + (1, 1, 2, 3)),
        rounding=source.choice(("up", "up", "up", "down")),
        vmem_limit_kib=_limit(source),
    )


def _other(source: random.Random, number: int, chip: str) -> Configuration:
    family = source.choice(OTHERS)
    if family == "vector":
        tile_m = _tile(source, (128, 256, 512, 1024, 2048, 4096, 65536), (100, 384, 640, 1000, 64))
        tile_n = 1
    else:
        tile_m = _tile(source, (8, 16, 32, 64, 256, 512, 1024, 2048), (1, 4, 12, 20, 100, 250))
        tile_n = _tile(source, (128, 256, 512, 1024, 2048), (1, 8, 64, 100, 192))
    dtype = source.choice(_PLAIN)
    return Configuration(
        number=number,
        chip=chip,
        family=family,
        batch=1,
        m=_size(source, tile_m),
        k=1,
        n=1 if family == "vector" else _size(source, tile_n),
        tile_m=tile_m,
        tile_k=1,
        tile_n=tile_n,
        dtype_lhs=dtype,
        dtype_rhs=dtype,
        dtype_out="float32" if family == "row sum" else dtype,
        accumulator="",
        precision="default",
        buffers=source.choice((0,) * 10 + (1, 1, 2, 3)),
        rounding=source.choice(("up", "up", "up", "down")),
        vmem_limit_kib=_limit(source),
    )


def _limit(source: random.Random) -> int:
    return source.choice(_LIMITS_MIB) * 2**10 if source.random() < 0.3 else 0


def kernel(one: Configuration) -> tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]:
    """Return the function of a configuration and its arguments."""
    lhs, rhs = jnp.dtype(one.dtype_lhs), jnp.dtype(one.dtype_rhs)
    shape = jax.ShapeDtypeStruct
    if one.family in PRODUCTS:
        lead = (one.batch,) if one.family == "batched product" else ()
        right = (one.n, one.k) if one.family == "transposed rhs" else (one.k, one.n)
        return functools.partial(product, one), (shape((*lead, one.m, one.k), lhs), shape((*lead, *right), rhs))
    if one.family == "add a row":
        return functools.partial(add_row, one), (shape((one.m, one.n), lhs), shape((1, one.n), rhs))
    if one.family == "row sum":
        return functools.partial(row_sum, one), (shape((one.m, one.n), lhs),)
    return functools.partial(double, one), (shape((one.m,), lhs),)


def _steps(one: Configuration, size: int, tile: int) -> int:
    return size // tile if one.rounding == "down" else pl.cdiv(size, tile)


def _spec(one: Configuration, block: tuple[int | None, ...], index_map: Callable[..., Any]) -> pl.BlockSpec:
    mode = pl.Buffered(one.buffers) if one.buffers else None
    return pl.BlockSpec(block, index_map, pipeline_mode=mode)


def product(one: Configuration, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """lhs @ rhs, or lhs @ rhs.T, with the sum in the output block, in scratch, or without a loop over k."""
    batched, transposed = one.family == "batched product", one.family == "transposed rhs"
    in_scratch = one.family in ("product in scratch", "batched product")
    whole_k = one.family == "product whole k"
    sums = jnp.dtype(one.accumulator)
    precision = None if one.precision == "default" else lax.Precision[one.precision]
    dimensions = (((1,), (1 if transposed else 0,)), ((), ()))

    def body(lhs_vmem, rhs_vmem, out_vmem, *acc_vmem):
        part = lax.dot_general(
            lhs_vmem[...], rhs_vmem[...], dimensions, precision=precision, preferred_element_type=sums
        )
        if whole_k:
            out_vmem[...] = part.astype(out_vmem.dtype)
            return
        step, steps = pl.program_id(2 + batched), pl.num_programs(2 + batched)
        total = acc_vmem[0] if in_scratch else out_vmem

        @pl.when(step == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += part.astype(total.dtype)
        if in_scratch:

            @pl.when(step == steps - 1)
            def _():
                out_vmem[...] = total[...].astype(out_vmem.dtype)

    grid = (_steps(one, one.m, one.tile_m), _steps(one, one.n, one.tile_n), _steps(one, one.k, one.tile_k))

    def spec(block: tuple[int, int], axes: tuple[int, int], mode: bool = True) -> pl.BlockSpec:
        if batched:
            return _spec(one, (None, *block), lambda b, *at: (b, at[axes[0]], at[axes[1]]))
        if mode:
            return _spec(one, block, lambda *at: (at[axes[0]], at[axes[1]]))
        return pl.BlockSpec(block, lambda *at: (at[axes[0]], at[axes[1]]))

    right = spec((one.tile_n, one.tile_k), (1, 2)) if transposed else spec((one.tile_k, one.tile_n), (2, 1))
    out = (one.m, one.n)
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((one.batch, *out) if batched else out, jnp.dtype(one.dtype_out)),
        grid=(one.batch, *grid) if batched else grid,
        in_specs=[spec((one.tile_m, one.tile_k), (0, 2)), right],
        out_specs=spec((one.tile_m, one.tile_n), (0, 1), mode=False),
        scratch_shapes=[pltpu.VMEM((one.tile_m, one.tile_n), sums)] if in_scratch else [],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=one.limit_bytes),
    )(lhs, rhs)


def add_row(one: Configuration, rows: jax.Array, row: jax.Array) -> jax.Array:
    """rows + row, with the row in separate blocks."""

    def body(rows_vmem, row_vmem, out_vmem):
        out_vmem[...] = rows_vmem[...] + row_vmem[...]

    block = _spec(one, (one.tile_m, one.tile_n), lambda i, j: (i, j))
    return pl.pallas_call(
        body,
        out_shape=rows,
        grid=(_steps(one, one.m, one.tile_m), _steps(one, one.n, one.tile_n)),
        in_specs=[block, _spec(one, (1, one.tile_n), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((one.tile_m, one.tile_n), lambda i, j: (i, j)),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=one.limit_bytes),
    )(rows, row)


def row_sum(one: Configuration, rows: jax.Array) -> jax.Array:
    """The sum of each row; a block has all columns."""

    def body(rows_vmem, out_vmem):
        out_vmem[...] = jnp.sum(rows_vmem[...].astype(jnp.float32), axis=1, keepdims=True)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((one.m, 1), jnp.float32),
        grid=(_steps(one, one.m, one.tile_m),),
        in_specs=[_spec(one, (one.tile_m, one.n), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((one.tile_m, 1), lambda i: (i, 0)),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=one.limit_bytes),
    )(rows)


def double(one: Configuration, values: jax.Array) -> jax.Array:
    """Twice each value of a vector."""

    def body(values_vmem, out_vmem):
        out_vmem[...] = values_vmem[...] + values_vmem[...]

    return pl.pallas_call(
        body,
        out_shape=values,
        grid=(_steps(one, one.m, one.tile_m),),
        in_specs=[_spec(one, (one.tile_m,), lambda i: (i,))],
        out_specs=pl.BlockSpec((one.tile_m,), lambda i: (i,)),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=one.limit_bytes),
    )(values)
