"""Suites: squares, weights of language models, fusions, sizes that no tile divides, layers, experts, and so on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from systolic.bench.cases import Case, even_spec, fused_spec, sizes
from systolic.bench.contest import OF_OP, Contest
from systolic.bench.contests import (
    LayersContest,
    LossContest,
    MoeContest,
    MoeLayerContest,
    PatternContest,
    ShardedContest,
)
from systolic.bench.layers import LayersSpec
from systolic.bench.losses import losses
from systolic.bench.moe import moe
from systolic.bench.moe_layers import moe_layers
from systolic.bench.sharded import SUITE as SHARDED
from systolic.bench.sharded import sharded
from systolic.bench.sparse import sparse
from systolic.ops.quantized.spec import QuantizedSpec
from systolic.spec import MatmulSpec, PrecisionName
from systolic.support.choices import unknown_name

SQUARES = (512, 1024, 2048, 4096, 8192, 16384)

# Weights as [k, n], with the sizes of the models' published config.json: Llama-3 8B and 70B (hidden_size,
# intermediate_size, heads of 128 with 8 of keys), DeepSeek-V3 (q_lora_rank 1536, kv_lora_rank 512, 128 heads of 128 +
# 64 for queries and 128 + 128 for keys and values, moe_intermediate_size 2048), Gemma-2 9B (16 heads of 256, 8 of
# keys). DeepSeek's q_b, kv_b and o are whole, not cut over devices; qkv, and once gate and up, are one weight, as
# engines fuse them.
WEIGHTS: tuple[tuple[str, int, int], ...] = (
    ("llama3-8b qkv", 4096, 6144),
    ("llama3-8b o", 4096, 4096),
    ("llama3-8b gate", 4096, 14336),
    ("llama3-8b gate+up", 4096, 28672),
    ("llama3-8b down", 14336, 4096),
    ("llama3-70b qkv", 8192, 10240),
    ("llama3-70b o", 8192, 8192),
    ("llama3-70b gate", 8192, 28672),
    ("llama3-70b down", 28672, 8192),
    ("deepseek-v3 q_a", 7168, 1536),
    ("deepseek-v3 q_b", 1536, 24576),
    ("deepseek-v3 kv_a", 7168, 576),
    ("deepseek-v3 kv_b", 512, 32768),
    ("deepseek-v3 o", 16384, 7168),
    ("deepseek-v3 gate", 7168, 18432),
    ("deepseek-v3 down", 18432, 7168),
    ("deepseek-v3 expert gate", 7168, 2048),
    ("deepseek-v3 expert down", 2048, 7168),
    ("gemma2-9b qkv", 3584, 8192),
    ("gemma2-9b o", 4096, 3584),
    ("gemma2-9b gate", 3584, 14336),
    ("gemma2-9b down", 14336, 3584),
)
PREFILL = (2048, 4096, 8192, 16384)
DECODE = (1, 8, 16, 64, 128, 256)

# Each makes a spec of sizes, a dtype and a precision.
Fused = Callable[..., MatmulSpec]
STACKS: tuple[tuple[str, Fused], ...] = (
    ("bias", partial(fused_spec, bias=True)),
    ("relu", partial(fused_spec, activation="relu")),
    ("gelu", partial(fused_spec, activation="gelu")),
    ("silu", partial(fused_spec, activation="silu")),
    ("bias gelu", partial(fused_spec, bias=True, activation="gelu")),
    ("residual", partial(fused_spec, residual=True)),
    ("bias residual", partial(fused_spec, bias=True, residual=True)),
    ("bias gelu residual", partial(fused_spec, bias=True, activation="gelu", residual=True)),
    ("bias gelu scale", partial(fused_spec, bias=True, activation="gelu", scale=True)),
    ("scale to bfloat16", partial(fused_spec, scale=True, dtype_out="bfloat16")),
    ("lhs transposed", partial(fused_spec, transpose_lhs=True)),
    ("rhs transposed", partial(fused_spec, transpose_rhs=True)),
    ("both transposed", partial(fused_spec, transpose_lhs=True, transpose_rhs=True)),
    ("rhs transposed bias silu", partial(fused_spec, transpose_rhs=True, bias=True, activation="silu")),
)
# A function of an operand as it is read: for floats, because what it makes has to be the dtype that is multiplied.
OPERAND_STACKS: tuple[tuple[str, Fused], ...] = (
    ("lhs cast", partial(fused_spec, lhs_fn="cast")),
    ("lhs mask", partial(fused_spec, lhs_fn="mask")),
    ("lhs norm", partial(fused_spec, lhs_fn="norm")),
    ("int8 weight", partial(fused_spec, rhs_fn="dequantize")),
    (
        "lhs cast int8 weight bias gelu",
        partial(fused_spec, lhs_fn="cast", rhs_fn="dequantize", bias=True, activation="gelu"),
    ),
)
FUSED_SIZES = ((4096, 4096, 4096), (2048, 4096, 14336), (16, 4096, 14336))

RAGGED_CUBES = (1000, 1023, 2047, 3000, 4000, 4097, 5000, 10007)
# One ragged size at a time, all three, primes, a vocabulary, and skinny products.
RAGGED = (
    (1000, 4096, 4096),
    (4096, 1000, 4096),
    (4096, 4096, 1000),
    (4097, 4096, 14336),
    (4096, 4097, 4096),
    (2048, 4096, 5003),
    (997, 1009, 1013),
    (1999, 2003, 2011),
    (3001, 7001, 5003),
    (2048, 768, 50257),
    (13, 4096, 14336),
    (100, 4096, 4095),
    (77, 1000, 10007),
)


class UnknownSuiteError(ValueError):
    """No suite of that name."""


def suite(name: str, dtype: str = "bfloat16", precision: PrecisionName = "default") -> tuple[Case, ...]:
    """Return all cases of a suite, one of `SUITES`; `precision` is float32's. Raise UnknownSuiteError for others."""
    if name not in SUITES:
        raise UnknownSuiteError(unknown_name("suite", name, SUITES))
    contest = _CONTESTS.get(name, OF_OP)
    return tuple(replace(case, contest=contest) for case in SUITES[name](dtype, precision))


def _square(dtype: str, precision: PrecisionName) -> Iterator[Case]:
    for size in SQUARES:
        yield Case(suite="square", group="square", name=f"{size}³", spec=fused_spec(size, size, size, dtype, precision))


def _llm(dtype: str, precision: PrecisionName) -> Iterator[Case]:
    for group, rows in (("prefill", PREFILL), ("decode", DECODE)):
        for weight, m, k, n in _covering(rows):
            yield Case(suite="llm", group=group, name=f"{weight} {m}", spec=fused_spec(m, k, n, dtype, precision))


def _covering(rows: Sequence[int]) -> Iterator[tuple[str, int, int, int]]:
    """Return every weight with the next number of rows in turn; then the first half again, each with the number before.

    All weights with all rows would be some 220 products. This way no weight and no number of rows is left out, none
    comes much more often than another, and none was picked by hand.
    """
    for turn, (weight, k, n) in enumerate(WEIGHTS):
        yield weight, rows[turn % len(rows)], k, n
    for turn, (weight, k, n) in enumerate(WEIGHTS[: len(WEIGHTS) // 2]):
        yield weight, rows[(turn - 1) % len(rows)], k, n


def _fused(dtype: str, precision: PrecisionName) -> Iterator[Case]:
    stacks = STACKS + (OPERAND_STACKS if dtype in ("bfloat16", "float32") else ())
    for m, k, n in FUSED_SIZES:
        for name, stack in stacks:
            yield Case(
                suite="fused", group="fused", name=f"{name} {sizes(m, k, n)}", spec=stack(m, k, n, dtype, precision)
            )


def _edges(dtype: str, precision: PrecisionName) -> Iterator[Case]:
    for m, k, n in (*((size, size, size) for size in RAGGED_CUBES), *RAGGED):
        spec = fused_spec(m, k, n, dtype, precision)
        yield Case(suite="edges", group="edges", name=sizes(m, k, n), spec=spec, even=even_spec(spec))


# Hidden and intermediate size of the MLPs of Llama-3 8B.
_LLAMA = ("llama3-8b", 4096, 14336)
# Hidden size, intermediate size of an expert, experts, and how many each token goes to, of Qwen3-30B-A3B's config.json.
_EXPERTS = ("qwen3-30b", 2048, 768, 128, 8)
_TOKENS_BY_GROUP = {"few tokens": (16, 128, 256), "many tokens": (2048, 8192)}


def _layers(dtype: str, _precision: PrecisionName) -> Iterator[Case]:
    """Yield two MLPs in a row, two blocks of experts, and one gated product with its gradient, for floats."""
    if dtype not in ("bfloat16", "float32"):
        return
    model, k, n = _LLAMA
    for group, tokens in _TOKENS_BY_GROUP.items():
        for m, backward in itertools.product(tokens, (False, True)):
            spec = LayersSpec(m=m, k=k, n=n, dtype=dtype, backward=backward)
            name = f"{model} 2 MLPs {m}{' and gradients' if backward else ''}"
            yield Case(suite="layers", group=group, name=name, spec=spec)
    model, k, n, experts, rows_per_token = _EXPERTS
    for group, tokens in _TOKENS_BY_GROUP.items():
        for m, backward in itertools.product(tokens, (False, True)):
            spec = LayersSpec(m=rows_per_token * m, k=k, n=n, dtype=dtype, backward=backward, experts=experts)
            name = f"{model} 2 blocks of experts {m}{' and gradients' if backward else ''}"
            yield Case(suite="layers", group=group, name=name, spec=spec)
    model, k, n = _LLAMA
    for m in _TOKENS_BY_GROUP["many tokens"]:
        spec = LayersSpec(m=m, k=k, n=n, dtype=dtype, layers=1, backward=True, which="gated")
        yield Case(suite="layers", group="gated", name=f"{model} gated {m} and gradients", spec=spec)


# One of the larger weights of each model, by its name above.
_QUANTIZED_WEIGHTS = ("llama3-8b gate", "llama3-70b down", "deepseek-v3 gate")
_QUANTIZED_ROWS = (("decode", (1, 16, 64, 128, 256)), ("prefill", (2048, 8192)))
# Names of formats, and how many rows of k share a scale; None: all.
_QUANTIZED_FORMATS: tuple[tuple[str, str, int | None], ...] = (
    ("int4/128", "int4", 128),
    ("int8/128", "int8", 128),
    ("int4", "int4", None),
    ("e4m3", "float8_e4m3fn", None),
    ("fp4", "float4_e2m1fn", None),
)
# With rows that are quantized in the call, each with a scale: names, and formats of rows and weights.
_QUANTIZED_ROWS_FORMATS: tuple[tuple[str, str, str], ...] = (
    ("w8a8", "int8", "int8"),
    ("w4a8", "int8", "int4"),
    ("w4a4", "int4", "int4"),
    ("fp8", "float8_e4m3fn", "float8_e4m3fn"),
)
# Formats in which gate and up of Llama-3 8B are also raced, in one kernel.
_QUANTIZED_GATED = ("int4/128", "int8/128", "w8a8", "fp8")


def _quantized(dtype: str, _precision: PrecisionName) -> Iterator[Case]:
    """Yield rows in bfloat16 times weights of a few bits, named by the format and its block.

    After them come the same rows, quantized in the call, and gated products.
    """
    if dtype != "bfloat16":
        return
    formats: list[tuple[str, str, int | None, str | None]] = [
        *((label, name, block, None) for label, name, block in _QUANTIZED_FORMATS),
        *((label, name, None, row_format) for label, row_format, name in _QUANTIZED_ROWS_FORMATS),
    ]
    weights = [(*weight, False) for weight in WEIGHTS if weight[0] in _QUANTIZED_WEIGHTS]
    _, k, n = _LLAMA
    products = [*itertools.product(formats, _QUANTIZED_ROWS, weights)]
    products += itertools.product(
        [row for row in formats if row[0] in _QUANTIZED_GATED], _QUANTIZED_ROWS, [("llama3-8b mlp", k, n, True)]
    )
    for (label, name, block, row_format), (group, rows), (weight, k, n, gated) in products:
        label = f"gated-{label}" if gated else label
        for m in rows:
            spec = QuantizedSpec(
                m=m,
                k=k,
                n=n,
                dtype_lhs=dtype,
                dtype_rhs=name,
                dtype_out=dtype,
                block=k if block is None else block,
                quantize_lhs=row_format,
                gated=gated,
                activation="silu" if gated else "",
            )
            yield Case(suite="quantized", group=f"{label} {group}", name=f"{label} {weight} {m}", spec=spec)


SUITES: dict[str, Callable[[str, PrecisionName], Iterator[Case]]] = {
    "square": _square,
    "llm": _llm,
    "fused": _fused,
    "edges": _edges,
    "layers": _layers,
    "moe": lambda dtype, _precision: moe(dtype),
    "moe-layer": lambda dtype, _precision: moe_layers(dtype),
    "quantized": _quantized,
    "sparse": lambda dtype, _precision: sparse(dtype),
    "loss": lambda dtype, _precision: losses(dtype),
    SHARDED: lambda dtype, _precision: sharded(dtype),
}
_CONTESTS: dict[str, Contest] = {
    "layers": LayersContest(),
    "loss": LossContest(),
    "moe": MoeContest(),
    "moe-layer": MoeLayerContest(),
    "sparse": PatternContest(),
    SHARDED: ShardedContest(),
}
