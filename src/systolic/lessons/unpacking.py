"""Run the kernels of `kernels/unpacking.py`, XLA and `systolic.matmul`, and report the results."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from systolic.chips import Chip
from systolic.lessons.kernels.unpacking import BLOCK, as_it_is, multiply, scaled_sums, scaled_weights, unpacked
from systolic.lessons.lesson import Lesson, Part, everywhere
from systolic.lessons.runner import run_parts
from systolic.ops.matmul import matmul
from systolic.ops.quantized import Quantized

M, K, N = 16, 4096, 14336  # the gate of Llama-3-8B, for 16 tokens
_RUN = 16, 256, 512


def reference(x: Float[Array, "m k"], w: Array, scale: Float[Array, "blocks 1 n"]) -> Array:
    """Multiply every weight by its scale, then by the rows."""
    return x @ (w * jnp.repeat(scale[:, 0], w.shape[0] // len(scale), axis=0))


def xla(x: Array, w: Array, scale: Array) -> Array:
    """Unpack whole weights as XLA does, then multiply."""
    blocks = w.astype(jnp.bfloat16).reshape(len(scale), -1, w.shape[1])
    return jnp.dot(x, (blocks * scale.astype(jnp.bfloat16)).reshape(w.shape), preferred_element_type=x.dtype)


def systolic_matmul(x: Array, w: Array, scale: Float[Array, "blocks n"]) -> Array:
    return matmul(x, Quantized(w, scale))


def no_eight_bits(chip: Chip) -> str:
    """v4 multiplies bfloat16 and float32 alone."""
    return "" if "int8" in chip.dtypes else f"{chip.name} has no product of eight bits"


def _arguments(m: int, k: int, n: int, dtype: str, blocks: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    shapes = ((m, k), jnp.bfloat16), ((k, n), dtype), ((blocks, 1, n), jnp.float32)
    return tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes)


def _part(name: str, fn, dtype: str, *, in_blocks: bool = False, run: bool = True) -> Part:
    return Part(
        name=name,
        fn=fn,
        args=_arguments(M, K, N, dtype, K // BLOCK if in_blocks else 1),
        run_args=_arguments(*_RUN, dtype, _RUN[1] // BLOCK if in_blocks else 1) if run else (),
        reference=reference,
        lacks=everywhere if dtype == "bfloat16" else no_eight_bits,
    )


def _with_flat_scales(part: Part) -> Part:
    """Give systolic.matmul scales as it stores them, so that nothing copies them before its kernel."""
    x, w, scale = part.args
    return replace(part, args=(x, w, jax.ShapeDtypeStruct(scale.shape[::2], scale.dtype)))


_of = functools.partial(functools.partial, multiply)
PARTS = (
    _part("bfloat16", _of(product=as_it_is), "bfloat16"),
    _part("float8", _of(product=as_it_is), "float8_e5m2"),
    _part("int8", _of(product=unpacked), "int8"),
    _part("int4", _of(product=unpacked), "int4"),
    _part("int4 in blocks, scaled weights", _of(product=scaled_weights), "int4", in_blocks=True),
    _part("int4 in blocks, scaled sums", _of(product=scaled_sums), "int4", in_blocks=True),
    _part("int4 in blocks, XLA", xla, "int4", in_blocks=True, run=False),
    _with_flat_scales(_part("int4 in blocks, systolic", systolic_matmul, "int4", in_blocks=True, run=False)),
)


def lesson(chips: Sequence[Chip]) -> Lesson:
    """Run weights of sixteen, eight and four bits, with scales of columns and of blocks."""
    results = run_parts(PARTS, chips)
    sums, weights, ahead, ours = (
        f"int4 in blocks, {way}" for way in ("scaled sums", "scaled weights", "XLA", "systolic")
    )
    waits = {
        name: ", ".join(
            f"{chip.name} {waiting:.0%}" for chip in chips if (waiting := results[name, chip.name].waiting) is not None
        )
        for name in ("bfloat16", "int4")
    }
    return Lesson(
        lines=(
            f"Half the bits, against bfloat16: {results.ratios('int8', 'bfloat16', chips)} as fast; a quarter: "
            f"{results.ratios('int4', 'bfloat16', chips)}. Bytes alone would make it 2 and 4.",
            f"The kernel waits for copies {waits['bfloat16']} of its time with bfloat16, {waits['int4']} with int4: "
            "the rest is work on weights, which int4 has more of: it unpacks them before it pushes them.",
            f"Nothing to unpack, float8 against int8: {results.ratios('float8', 'int8', chips)} as fast.",
            f"Scales of blocks, on sums against on weights: {results.ratios(sums, weights, chips)} as fast.",
            f"Unpacked in VMEM against XLA, which is told to make the weights first: "
            f"{results.ratios(sums, ahead, chips)} as fast; systolic.matmul: {results.ratios(ours, ahead, chips)}.",
        ),
        rows=results.rows,
        ok=results.ok,
    )
