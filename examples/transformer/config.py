"""The configuration of a model: its sizes, and the algorithms of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A decoder: embedding, layers of attention and MLP, and a projection to the vocabulary.

    Attributes:
      mlp_width: of the MLP; in a model with experts, of the first `dense_layers` layers, which have no experts.
      experts: in each layer; a token goes to `experts_per_token` of them. 0: an MLP in their place.
      shared_experts: that every token goes to; together they are one MLP.
      expert_width: of one of them.
      grouped: what computes the experts: "moe", which is `systolic.moe`; or products of rows that JAX sorts and adds
        up, by "megablox", JAX's own Pallas kernel with `expert_tiles`, "systolic", or "plain", which runs anywhere.
      kv_rank: features of a token that keys and values of all heads are made from (latent attention); None: from
        all. `rope_dim` features are rotated then, the same for all heads' keys, after `head_dim` that are not.
      gated: True if the MLP is f(x @ gate) * (x @ up), with two matrices before the last one; else f(x @ up).
      activation: f, a function of `jax.nn`.
      window: the number of tokens that a token sees, itself and those before it; None: all of them.
      full_every: layers of a block; its last one sees all tokens, only the others have the window (Gemma 3). Such a
        block of layers is one round of the loop. 1: all layers are alike.
      window_theta: of rotated positions in layers with a window, if some layers have none.
      qk_norm: True if queries and keys are normed, head by head (Gemma 3, Qwen 3).
      parallel: True if the MLP reads the same normed values as attention, and both results are added at the end.
      post_norms: True if the results of attention and MLP are normed, too, before they are added.
      tied: True if the embedding's table is the projection to the vocabulary, too.
      attention: "splash" or "flash", JAX's own Pallas kernels for TPUs, or "plain", which runs anywhere. "flash" is the
        older kernel, with the blocks that MaxText gave it, and takes no window and no shared keys.
      blocks: sizes of the blocks of splash attention, as its `BlockSizes` has them.
      remat: values that the backward pass does not compute again, see `layers.REMAT`: "none", "full" (the input of
        each layer alone), "minimal" (all projections), or names of projections, such as "query+key+value"; after
        "offload:" they are kept in the host's memory.
      one_hot: True if tokens are looked up by a product with one-hot vectors; else by a gather.
      loss: "systolic", whose kernel computes the loss without logits in memory, or "plain".
      logits: bytes of logits a device that may stay in memory for the gradients; also as
        `systolic.linear_cross_entropy` takes it.
      loss_chunks: parts that the sequence is cut into for the plain loss, so that not all logits are in memory at once.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_width: int = 0
    dense_layers: int = 0
    grouped: str = "megablox"
    expert_tiles: tuple[int, int, int] = (512, 1024, 1024)  # rows, features, columns, as MaxText's base.yml has them
    kv_rank: int | None = None
    rope_dim: int = 0
    gated: bool = True
    activation: str = "silu"
    window: int | None = None
    full_every: int = 1
    window_theta: float = 10_000.0
    qk_norm: bool = False
    parallel: bool = False
    post_norms: bool = False
    tied: bool = False
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    attention: str = "splash"
    blocks: Mapping[str, int | bool] = field(default_factory=dict)
    remat: str = "full"
    one_hot: bool = True
    loss: str = "systolic"
    logits: Literal["recompute", "keep"] | int = 2**30
    loss_chunks: int = 1

    def __post_init__(self) -> None:
        period = self.full_every
        for name, count in (("layers", self.layers), ("dense_layers", self.dense_layers)):
            if count % period:
                raise ValueError(
                    f"{name}={count} is not a multiple of full_every={period}: layers are computed in blocks of so "
                    f"many; take {name}={count - count % period or period}"
                )

    @property
    def block(self) -> tuple[tuple[Config, int], ...]:
        """Return the layer configurations of a block with their counts: layers with a window, then the one without."""
        if self.full_every == 1:
            return ((self, 1),)
        local = replace(self, full_every=1, rope_theta=self.window_theta)
        return ((local, self.full_every - 1), (replace(self, full_every=1, window=None), 1))

    @property
    def key_dim(self) -> int:
        """Return the features of a head's queries and keys."""
        return self.head_dim + (self.rope_dim if self.kv_rank is not None else 0)

    @property
    def matrix_parameters(self) -> int:
        """Return the number of weights that multiply a token: all but the embedding, norms, and unused experts."""
        attention = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        if self.kv_rank is not None:
            attention = self.width * self.heads * (self.key_dim + self.head_dim)
            attention += self.width * (self.kv_rank + self.rope_dim) + 2 * self.kv_rank * self.heads * self.head_dim
        matrices = 3 if self.gated else 2
        mlp = self.width * self.mlp_width * matrices
        layers = self.layers * (attention + mlp)
        if self.experts:
            chosen = self.width * self.expert_width * matrices * (self.experts_per_token + self.shared_experts)
            layers += (self.layers - self.dense_layers) * (chosen + self.width * self.experts - mlp)
        return layers + self.width * self.vocabulary

    def forward_flops(self, tokens: int, seq: int, *, causal: bool) -> float:
        """Return the operations of a forward pass over sequences of `seq` tokens, by the usual count.

        Two for each weight and token, and for each token and head two products with the keys and values that it sees:
        `seq` of them, half of these under a causal mask, or the tokens of a window, which is not yet full for
        the first tokens.
        """
        windows = [(min(seq, layer.window or seq), count) for layer, count in self.block]
        seen = sum(count * window * (1 - window / (2 * seq) if causal else 1.0) for window, count in windows)
        attention = 2 * self.layers // self.full_every * self.heads * (self.key_dim + self.head_dim) * seen
        return tokens * (2 * self.matrix_parameters + attention)


def _maxtext(width: int, layers: int, heads: int, mlp_width: int) -> Config:
    """Return a model of MaxText's default decoder until February 2024, before commit 3b2ac8113."""
    return Config(
        vocabulary=32_768,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=256,
        mlp_width=mlp_width,
        gated=False,
        activation="relu",
        norm_epsilon=1e-6,
        **dict.fromkeys(("parallel", "qk_norm", "tied"), True),
    )


def _scaled_maxtext(scale: int) -> Config:
    """Apply MaxText's `global_parameter_scale` to its base.yml of 2023-09 to 2024-02.

    Powers of two go to heads and MLP, width, and layers in turn.
    """
    log = scale.bit_length() - 1
    heads, width, layers = (2 ** ((log + step) // 3) for step in (2, 1, 0))
    return _maxtext(2560 * width, 16 * layers, 8 * heads, 8192 * heads)


_LLAMA = {"vocabulary": 128_256, "kv_heads": 8, "head_dim": 128, "rope_theta": 500_000.0}
_PLAIN_MLP: dict[str, Any] = {"gated": False, "activation": "gelu"}
# Qwen 3 with experts, from MaxText's qwen3-30b-a3b.yml and qwen3-235b-a22b.yml. It divides the shares of a token's
# experts by their sum, which takes no time and is left out.
_QWEN3_EXPERTS: dict[str, Any] = {
    "vocabulary": 151_936,
    "kv_heads": 4,
    "head_dim": 128,
    "experts": 128,
    "experts_per_token": 8,
    "qk_norm": True,
    "norm_epsilon": 1e-6,
}
_GEMMA3: dict[str, Any] = {
    "activation": "gelu",
    "window": 1024,
    "full_every": 6,
    "rope_theta": 1_000_000.0,
    "norm_epsilon": 1e-6,
    **dict.fromkeys(("qk_norm", "post_norms", "tied"), True),
}

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
    "tiny-moe": Config(
        vocabulary=64,
        width=32,
        layers=3,
        heads=4,
        kv_heads=4,
        head_dim=8,
        mlp_width=64,
        experts=8,
        experts_per_token=2,
        shared_experts=1,
        expert_width=16,
        dense_layers=1,
        kv_rank=16,
        rope_dim=4,
        attention="plain",
        grouped="plain",
    ),
    "tiny-gemma": Config(
        vocabulary=64,
        width=32,
        layers=4,
        heads=4,
        kv_heads=2,
        head_dim=8,
        mlp_width=64,
        attention="plain",
        **{**_GEMMA3, "window": 5, "full_every": 2},
    ),
    "llama3.1-8b": Config(width=4096, layers=32, heads=32, mlp_width=14_336, **_LLAMA),
    "llama3.1-70b": Config(width=8192, layers=80, heads=64, mlp_width=28_672, **_LLAMA),
    "llama3.1-405b": Config(width=16_384, layers=126, heads=128, mlp_width=53_248, **_LLAMA),
    "mistral-7b": Config(
        vocabulary=32_000, width=4096, layers=32, heads=32, kv_heads=8, head_dim=128, mlp_width=14_336
    ),
    "maxtext-16b": _maxtext(6144, 36, 24, 24_576),
    "maxtext-22b": _maxtext(6144, 48, 24, 24_576),
    "maxtext-32b": _scaled_maxtext(32),
    "maxtext-64b": _scaled_maxtext(64),
    # DeepSeek-V2-Lite.
    "deepseek2-16b": Config(
        vocabulary=102_400,
        width=2048,
        layers=27,
        heads=16,
        kv_heads=16,
        head_dim=128,
        mlp_width=10_944,
        experts=64,
        experts_per_token=6,
        shared_experts=2,
        expert_width=1408,
        dense_layers=1,
        kv_rank=512,
        rope_dim=64,
        norm_epsilon=1e-6,
    ),
    "qwen3-30b-a3b": Config(
        width=2048, layers=48, heads=32, mlp_width=768, expert_width=768, rope_theta=1e7, **_QWEN3_EXPERTS
    ),
    "qwen3-235b-a22b": Config(
        width=4096, layers=94, heads=64, mlp_width=1536, expert_width=1536, rope_theta=5e6, **_QWEN3_EXPERTS
    ),
    "gemma3-12b": Config(
        vocabulary=262_144, width=3840, layers=48, heads=16, kv_heads=8, head_dim=256, mlp_width=15_360, **_GEMMA3
    ),
    # Their layer norms and learned positions cost what RMS norms and rotated ones do.
    "gpt3-175b": Config(
        vocabulary=50_304, width=12_288, layers=96, heads=96, kv_heads=96, head_dim=128, mlp_width=49_152, **_PLAIN_MLP
    ),
}


def configured(name: str | Config, **changes: Any) -> Config:
    """Return a published model by its name, optionally with changed fields, such as `layers=2`."""
    if isinstance(name, Config):
        return replace(name, **changes)
    if name not in CONFIGS:
        raise ValueError(f"no model is named {name!r}; there are {', '.join(CONFIGS)}")
    return replace(CONFIGS[name], **changes)
