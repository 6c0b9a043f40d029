"""The configuration of a model: its sizes, and the algorithms of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A decoder: embedding, layers of attention and MLP, and a projection to the vocabulary.

    Attributes:
      mlp_width: of the MLP; in a model with experts, of the first `dense_layers` layers, which have no experts.
      experts: in each layer; a token goes to `experts_per_token` of them. 0: an MLP in their place.
      shared_experts: that every token goes to; together they are one MLP.
      expert_width: of one of them.
      grouped: what computes the experts: "moe", which is `systolic.moe`; or products of rows that JAX sorts and adds
        up, by "megablox", JAX's own Pallas kernel with `expert_tiles`, by the kernel of "tokamax" or "systolic", or
        "plain", which runs anywhere.
      kv_rank: features of a token that keys and values of all heads are made from (latent attention); None: from
        all. `rope_dim` features are rotated then, the same for all heads' keys, after `head_dim` that are not.
      gated: True if the MLP is f(x @ gate) * (x @ up), with two matrices before the last one; else f(x @ up).
      activation: f, a function of `jax.nn`.
      window: the number of tokens that a token sees, itself and those before it; None: all of them.
      full_every: layers of a block; its last one sees all tokens, only the others have the window (Gemma 3). Such a
        block of layers is one round of the loop. 1: all layers are alike.
      window_theta: of rotated positions in layers with a window, if some layers have none.
      window_head_dim: `head_dim` of layers with a window, if some layers have none; None: the same (Gemma 4).
      rotated: the share of a head's features that are rotated; in layers with a window, if some have none, all are.
      kv_shared_layers: the last layers, which have no keys and values, but take those of the last layer before them
        that has the same window (Gemma 4).
      layer_features: of the embeddings of each layer (Gemma 4): a token has a row for each layer, to which a
        projection of its embedding is added; after the MLP each layer's row is gated and added. 0: none.
      layer_scale: True if the result of each layer is multiplied by a learned number.
      qk_norm: True if queries and keys are normed, head by head (Gemma 3, Qwen 3).
      value_norm: True if values are normed, too, without learned factors.
      parallel: True if the MLP reads the same normed values as attention, and both results are added at the end.
      post_norms: True if the results of attention and MLP are normed, too, before they are added.
      tied: True if the embedding's table is the projection to the vocabulary, too.
      soft_cap: logits are `soft_cap · tanh(logits / soft_cap)`; None: they are as they are.
      attention: "splash" or "flash", JAX's own Pallas kernels for TPUs, "tokamax", whose kernel came from "splash", or
        "plain", which runs anywhere. "flash" is the older kernel, with the blocks that MaxText gave it, and takes no
        window and no shared keys.
      blocks: sizes of the blocks of splash attention, as its `BlockSizes` has them, and its layouts, such as
        `k_layout="SEQ_MINOR"`.
      remat: values that the backward pass does not compute again, see `layers.REMAT`: "none", "full" (the input of
        each layer alone), "minimal" (all projections), or names of projections, such as "query+key+value"; after
        "offload:" they are kept in the host's memory, with "input" each layer's input, too.
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
    window_head_dim: int | None = None
    rotated: float = 1.0
    kv_shared_layers: int = 0
    layer_features: int = 0
    layer_scale: bool = False
    qk_norm: bool = False
    value_norm: bool = False
    parallel: bool = False
    post_norms: bool = False
    tied: bool = False
    soft_cap: float | None = None
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    attention: str = "splash"
    blocks: Mapping[str, int | bool | str] = field(default_factory=dict)
    remat: str = "full"
    one_hot: bool = True
    loss: str = "systolic"
    logits: Literal["recompute", "keep"] | int = 2**30
    loss_chunks: int = 1

    def __post_init__(self) -> None:
        period = self.full_every
        for name in ("layers", "dense_layers", "kv_shared_layers"):
            count = getattr(self, name)
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
        local = replace(
            self,
            full_every=1,
            rope_theta=self.window_theta,
            head_dim=self.window_head_dim or self.head_dim,
            rotated=1.0,
        )
        return ((local, self.full_every - 1), (replace(self, full_every=1, window=None), 1))

    @property
    def kind(self) -> str:
        """Return the kind of layers with this configuration: a model has at most one kind of each name."""
        return "full" if self.window is None else "window"

    @property
    def stacks(self) -> Mapping[str, int]:
        """Return the number of layers of each stack of weights, in the order of the layers."""
        dense, sharing = self.dense_layers if self.experts else 0, self.kv_shared_layers
        stacks = {"dense_layers": dense, "layers": self.layers - dense - sharing, "kv_shared_layers": sharing}
        return {name: layers for name, layers in stacks.items() if layers}

    @property
    def key_dim(self) -> int:
        """Return the features of a head's queries and keys."""
        return self.head_dim + (self.rope_dim if self.kv_rank is not None else 0)

    @property
    def matrix_parameters(self) -> int:
        """Return the number of weights that multiply a token: all but the embedding, norms, and unused experts."""
        blocks, with_keys = self.layers // self.full_every, (self.layers - self.kv_shared_layers) // self.full_every
        head_features = sum(count * layer.head_dim for layer, count in self.block)
        layers = 2 * self.width * head_features * (blocks * self.heads + with_keys * self.kv_heads)
        if self.kv_rank is not None:
            attention = self.width * self.heads * (self.key_dim + self.head_dim)
            attention += self.width * (self.kv_rank + self.rope_dim) + 2 * self.kv_rank * self.heads * self.head_dim
            layers = self.layers * attention
        matrices = 3 if self.gated else 2
        mlp = self.width * self.mlp_width * matrices
        layers += self.layers * (mlp + 3 * self.width * self.layer_features)
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
        attention = 0.0
        for layer, count in self.block:
            window = min(seq, layer.window or seq)
            seen = window * (1 - window / (2 * seq) if causal else 1.0)
            attention += count * seen * (layer.key_dim + layer.head_dim)
        attention *= 2 * self.heads * self.layers // self.full_every
        return tokens * (2 * self.matrix_parameters + attention)
