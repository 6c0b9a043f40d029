"""Whole layers of experts, from the router's logits to the sum of what each token's experts return."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from systolic.bench.cases import Case
from systolic.ops.moe.spec import MoeSpec

# Hidden size, intermediate size of an expert, experts, and experts of a token, of the models' published config.json.
LAYERS: tuple[tuple[str, int, int, int, int], ...] = (
    ("mixtral-8x7b", 4096, 14336, 8, 2),
    ("qwen3-30b", 2048, 768, 128, 8),
    ("qwen3-235b", 4096, 1536, 128, 8),
    ("gpt-oss-120b", 2880, 2880, 128, 4),
    ("deepseek-v3", 7168, 2048, 256, 8),
)
TOKENS = (128, 2048, 8192)
_FEW_TOKENS = 512  # up to which HBM binds: each expert multiplies a few rows by all of its weights


def moe_layers(dtype: str) -> Iterator[Case]:
    """Yield each layer with each number of tokens, for floats of 16 and 32 bits."""
    if dtype not in ("bfloat16", "float32"):
        return
    for (model, k, n, experts, top_k), m in itertools.product(LAYERS, TOKENS):
        group = f"layer of {'few' if m <= _FEW_TOKENS else 'many'} tokens"
        spec = MoeSpec(m=m, k=k, n=n, experts=experts, top_k=top_k, dtype=dtype)
        yield Case(suite="moe-layer", group=group, name=f"{model} layer {m}", spec=spec, series=f"{model} layer")
