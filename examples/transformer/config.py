"""What a model is: its sizes, and how its layers are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A decoder: embedding, layers of attention and MLP, and a projection to the vocabulary.

    Attributes:
      gated: whether the MLP is silu(x @ gate) * (x @ up), with two matrices before the last one; else gelu(x @ up).
      window: how far back a token sees; None: to the beginning.
      attention: "splash", JAX's own Pallas kernel for TPUs, or "plain", which runs anywhere.
      blocks: sizes of the blocks of splash attention, as its `BlockSizes` has them.
      remat: what the backward pass finds and does not compute again, see `layers.REMAT`: "none", "full" (the input of
        each layer alone), "minimal" (all projections), or names of projections, such as "query+key+value"; behind
        "offload:" they are kept in the host's memory.
      one_hot: whether tokens are looked up by a product with one-hot vectors; else by a gather.
      loss_chunks: into how many parts the sequence is cut for the loss, so that not all logits are in memory at once.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    gated: bool = True
    window: int | None = None
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    attention: str = "splash"
    blocks: Mapping[str, int | bool] = field(default_factory=dict)
    remat: str = "full"
    one_hot: bool = True
    loss_chunks: int = 1

    @property
    def matrix_parameters(self) -> int:
        """Weights that each token is multiplied with: all but the embedding's table and the norms."""
        attention = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        mlp = self.width * self.mlp_width * (3 if self.gated else 2)
        return self.layers * (attention + mlp) + self.width * self.vocabulary

    def forward_flops(self, tokens: int, seq: int, *, causal: bool) -> float:
        """Operations of a forward pass over sequences of `seq` tokens, by the usual count.

        Two for each weight and token, and for each token and head two products with `seq` keys and values, of which a
        causal mask leaves half.
        """
        seen = min(seq, self.window or seq)
        attention = 4 * self.layers * self.heads * self.head_dim * seen * (0.5 if causal else 1.0)
        return tokens * (2 * self.matrix_parameters + attention)


def _maxtext(scale: int) -> Config:
    """MaxText's base.yml with `global_parameter_scale`, whose powers of two go to heads, width and layers in turn."""
    log = scale.bit_length() - 1
    heads, width, layers = (2 ** ((log + more) // 3) for more in (2, 1, 0))
    return Config(
        vocabulary=32_000,
        width=2048 * width,
        layers=16 * layers,
        heads=16 * heads,
        kv_heads=16 * heads,
        head_dim=128,
        mlp_width=7168 * heads,
    )


_LLAMA = {"vocabulary": 128_256, "kv_heads": 8, "head_dim": 128, "rope_theta": 500_000.0}

CONFIGS: Mapping[str, Config] = {
    "tiny": Config(
        vocabulary=64,
        width=32,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=8,
        mlp_width=64,
        attention="plain",
    ),
    "llama3.1-8b": Config(width=4096, layers=32, heads=32, mlp_width=14_336, **_LLAMA),
    "llama3.1-70b": Config(width=8192, layers=80, heads=64, mlp_width=28_672, **_LLAMA),
    "llama3.1-405b": Config(width=16_384, layers=126, heads=128, mlp_width=53_248, **_LLAMA),
    "mistral-7b": Config(
        vocabulary=32_000, width=4096, layers=32, heads=32, kv_heads=8, head_dim=128, mlp_width=14_336
    ),
    "maxtext-16b": _maxtext(16),
    "maxtext-32b": _maxtext(32),
    "maxtext-64b": _maxtext(64),
    # Their layer norms and learned positions cost what RMS norms and rotated ones do.
    "gpt3-175b": Config(
        vocabulary=50_304, width=12_288, layers=96, heads=96, kv_heads=96, head_dim=128, mlp_width=49_152, gated=False
    ),
    "maxtext-22b": Config(
        vocabulary=32_000, width=6144, layers=48, heads=24, kv_heads=24, head_dim=256, mlp_width=24_576, gated=False
    ),
}


def configured(name: str | Config, **changes: Any) -> Config:
    """A published model by its name, perhaps with other sizes, such as `layers=2`."""
    if isinstance(name, Config):
        return replace(name, **changes)
    if name not in CONFIGS:
        raise ValueError(f"no model is named {name!r}; there are {', '.join(CONFIGS)}")
    return replace(CONFIGS[name], **changes)
