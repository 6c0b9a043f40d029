"""Whole layers of experts, from the router's logits to the sum of what each token's experts return."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from systolic.bench.cases import Case
from systolic.spec import OneDtype, dtype_bytes

# Hidden size, intermediate size of an expert, experts, and experts of a token, of the models' published config.json.
LAYERS: tuple[tuple[str, int, int, int, int], ...] = (
    ("mixtral-8x7b", 4096, 14336, 8, 2),
    ("qwen3-30b", 2048, 768, 128, 8),
    ("qwen3-235b", 4096, 1536, 128, 8),
    ("gpt-oss-120b", 2880, 2880, 128, 4),
)
TOKENS = (128, 2048, 8192)
_FEW_TOKENS = 512  # up to which HBM binds: each expert multiplies a few rows by all of its weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeLayerSpec(OneDtype):
    """`Σ weight · (silu(x @ gate[e]) · (x @ up[e])) @ down[e]` over the `top_k` experts e of each token."""

    m: int  # tokens
    k: int  # features
    n: int  # features between the two products of an expert
    experts: int
    top_k: int
    dtype: str

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products of experts."""
        return 3 * 2 * self.m * self.top_k * self.k * self.n

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes of all experts' weights, of tokens, of the router's logits and of the result, once."""
        elements = 3 * self.experts * self.k * self.n + 2 * self.m * self.k
        return elements * dtype_bytes(self.dtype) + self.m * self.experts * dtype_bytes("float32")


def moe_layers(dtype: str) -> Iterator[Case]:
    """Yield each layer with each number of tokens, for floats of 16 and 32 bits."""
    if dtype not in ("bfloat16", "float32"):
        return
    for (model, k, n, experts, top_k), m in itertools.product(LAYERS, TOKENS):
        group = f"layer of {'few' if m <= _FEW_TOKENS else 'many'} tokens"
        spec = MoeLayerSpec(m=m, k=k, n=n, experts=experts, top_k=top_k, dtype=dtype)
        yield Case(suite="moe-layer", group=group, name=f"{model} layer {m}", spec=spec, series=f"{model} layer")
