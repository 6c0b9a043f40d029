"""A training step: loss, gradients and AdamW, with the whole state in float32."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

import systolic
from systolic import Step

from .config import Config
from .layers import forward, project, vocabulary_weight
from .models import configured
from .sharding import Sharding, placed
from .tokamax_kernels import for_another_machine

# Names in the name stacks of operations: the rows of a step's table.
PARTS = ("attention", "mlp", "router", "experts", "loss", "embedding", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """The optimizer's settings."""

    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    largest_norm: float = 1.0  # of all gradients together; longer ones are scaled down to it


def init(key: jax.Array, config: Config) -> Any:
    """Draw weights so that a product's result has the size of its input; norms begin at 0."""
    c = config
    outer = {"embedding": ((c.vocabulary, c.width), c.width)}
    outer |= {} if c.tied else {"logits": ((c.width, c.vocabulary), c.width)}
    if c.layer_features:
        features = c.layers * c.layer_features
        outer["layer_embeddings"] = (c.vocabulary, features), c.layer_features
        outer["layer_projection"] = (c.width, features), c.width
    keys = iter(jax.random.split(key, 64))

    def drawn(shape: tuple[int, ...], fan_in: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) / math.sqrt(fan_in)

    def stack(layer: Config, deep: int, name: str) -> Any:
        matrices = _matrices(layer, name)
        weights = {name: drawn((deep, *shape), fan_in) for name, (shape, fan_in) in matrices.items()}
        return weights | {name: jnp.zeros((deep, features)) for name, features in _norms(layer, name).items()}

    def blocks(deep: int, name: str) -> Any:
        """Return the stack of all layers; where layers of a block differ, one stack for each kind."""
        stacks = [stack(layer, deep // c.full_every * count, name) for layer, count in c.block]
        return stacks if len(stacks) > 1 else stacks[0]

    weights = {name: drawn(*shape_and_inputs) for name, shape_and_inputs in outer.items()}
    weights |= {"norm": jnp.zeros(c.width)}
    weights |= {"layer_projection_norm": jnp.zeros(c.layer_features)} if c.layer_features else {}
    return weights | {name: blocks(deep, name) for name, deep in c.stacks.items()}


def _norms(c: Config, stack: str) -> dict[str, int]:
    """Return the features of each norm of a layer, and of its scale."""
    norms = dict.fromkeys(("attention_norm",) if c.parallel else ("attention_norm", "mlp_norm"), c.width)
    norms |= dict.fromkeys(("attention_out_norm", "mlp_out_norm"), c.width) if c.post_norms else {}
    keys = () if stack == "kv_shared_layers" else ("key_norm",)
    norms |= dict.fromkeys(("query_norm", *keys), c.head_dim) if c.qk_norm else {}
    norms |= {"layer_out_norm": c.width} if c.layer_features else {}
    norms |= {"layer_scale": 1} if c.layer_scale else {}
    return norms | ({"kv_norm": c.kv_rank} if c.kv_rank is not None else {})


def _matrices(c: Config, stack: str) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return the shape of each matrix of a layer, and the number of input features per output feature."""
    experts = 0 if stack == "dense_layers" else c.experts
    matrices: dict[str, tuple[tuple[int, ...], int]] = {
        "query": ((c.width, c.heads, c.key_dim), c.width),
        "out": ((c.heads, c.head_dim, c.width), c.heads * c.head_dim),
    }
    if c.kv_rank is None:
        keys = () if stack == "kv_shared_layers" else ("key", "value")
        matrices |= dict.fromkeys(keys, ((c.width, c.kv_heads, c.head_dim), c.width))
    else:
        matrices["kv_down"] = (c.width, c.kv_rank + c.rope_dim), c.width
        matrices["kv_up"] = (c.kv_rank, c.heads, 2 * c.head_dim), c.kv_rank
    inner = ("gate", "up") if c.gated else ("up",)
    width = c.shared_experts * c.expert_width if experts else c.mlp_width
    if width:
        matrices |= dict.fromkeys(inner, ((c.width, width), c.width)) | {"down": ((width, c.width), width)}
    if experts:
        matrices["router"] = (c.width, experts), c.width
        matrices |= {f"expert_{name}": ((experts, c.width, c.expert_width), c.width) for name in ("gate", "up")}
        matrices["expert_down"] = (experts, c.expert_width, c.width), c.expert_width
    if c.layer_features:
        matrices["layer_gate"] = (c.width, c.layer_features), c.width
        matrices["layer_up"] = (c.layer_features, c.width), c.layer_features
    return matrices


def loss(parameters: Any, batch: Any, config: Config, sharding: Sharding) -> jax.Array:
    """Return the mean cross entropy of the next tokens."""
    x, _ = forward(parameters, batch["tokens"], config, sharding)
    with jax.named_scope("loss"):
        return mean_loss(x, batch["targets"], vocabulary_weight(parameters), config, sharding)


def mean_loss(x: jax.Array, targets: jax.Array, weight: jax.Array, config: Config, sharding: Sharding) -> jax.Array:
    """Return the mean cross entropy of the tokens whose last values are x."""
    if config.loss == "plain" and config.loss_chunks == 1:
        return jnp.mean(cross_entropy(x, targets, weight, config, sharding))
    # The kernel, and all chunks as in MaxText, use the same gathered weights.
    weight = sharding.constrain(weight.astype(x.dtype), None, "vocabulary")
    if config.loss == "plain":
        return jnp.mean(_by_chunks(x, targets, weight, config, sharding))
    kernel = functools.partial(
        systolic.linear_cross_entropy, ignore_index=None, logits=config.logits, soft_cap=config.soft_cap
    )
    cuts = (("batch", "sequence", None), (None, "vocabulary"), ("batch", "sequence"))
    return sharding.on_types(kernel, tuple(sharding.spec(*names) for names in cuts))(x, weight, targets)


def _by_chunks(x: jax.Array, targets: jax.Array, weight: jax.Array, config: Config, sharding: Sharding) -> jax.Array:
    """Return the loss of each token; logits exist for one chunk of the sequence at a time."""

    @jax.checkpoint
    def chunk(operands: tuple[jax.Array, jax.Array]) -> jax.Array:
        return cross_entropy(*operands, weight, config, sharding)

    return jax.lax.map(chunk, (_cut(x, config.loss_chunks), _cut(targets, config.loss_chunks)))


def _cut(x: jax.Array, chunks: int) -> jax.Array:
    """Return chunks of the sequence, stacked: (chunks, batch, sequence / chunks, …)."""
    return x.reshape(x.shape[0], chunks, -1, *x.shape[2:]).swapaxes(0, 1)


def cross_entropy(x: jax.Array, targets: jax.Array, weight: jax.Array, config: Config, sharding: Sharding) -> jax.Array:
    """Return the loss of each token: the logarithm of the sum of all exponentials, less the logit of the next one."""
    logits = project(x, weight, "bsd,dv->bsv")
    if config.soft_cap is not None:
        logits = config.soft_cap * jnp.tanh(logits / config.soft_cap)
    logits = sharding.constrain(logits, "batch", "sequence", "vocabulary").astype(jnp.float32)
    target_logits = jnp.sum(jax.nn.one_hot(targets, config.vocabulary) * logits, axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - target_logits


def update(state: Any, gradients: Any, adamw: AdamW) -> Any:
    """Apply AdamW; see Loshchilov and Hutter, "Decoupled weight decay regularization" (2019)."""
    count = state["count"] + 1
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda g: g * jnp.minimum(1.0, adamw.largest_norm / norm), gradients)
    first = jax.tree.map(lambda m, g: adamw.beta1 * m + (1 - adamw.beta1) * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: adamw.beta2 * v + (1 - adamw.beta2) * g * g, state["second"], gradients)

    def moved(weight: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        step = m / (1 - adamw.beta1**count) / (jnp.sqrt(v / (1 - adamw.beta2**count)) + adamw.epsilon)
        return weight - adamw.learning_rate * (step + adamw.weight_decay * weight)

    parameters = jax.tree.map(moved, state["parameters"], first, second)
    return {"parameters": parameters, "first": first, "second": second, "count": count}


def train_step(state: Any, batch: Any, *, config: Config, sharding: Sharding, adamw: AdamW) -> tuple[Any, jax.Array]:
    """Return the state after a step, and the loss before it."""
    with for_another_machine(config):
        value, gradients = jax.value_and_grad(loss)(state["parameters"], batch, config, sharding)
    with jax.named_scope("optimizer"):
        return update(state, gradients, adamw), value


def begin(key: jax.Array, config: Config) -> Any:
    """Return the state before the first step."""
    parameters = init(key, config)
    first, second = (jax.tree.map(jnp.zeros_like, parameters) for _ in range(2))
    return {"parameters": parameters, "first": first, "second": second, "count": jnp.zeros((), jnp.int32)}


def state_shardings(config: Config, sharding: Sharding) -> Any:
    """Return the shardings of the state: moments are cut like their weights."""
    state = jax.eval_shape(functools.partial(begin, config=config), jax.random.key(0))
    cut = sharding.of_weights(state["parameters"])
    return {"parameters": cut, "first": cut, "second": cut, "count": sharding.of()}


def train_function(config: Config, sharding: Sharding, adamw: AdamW = AdamW()) -> Any:
    """Return the jitted step, which reuses the memory of the old state for the new one."""
    step = functools.partial(train_step, config=config, sharding=sharding, adamw=adamw)
    if sharding.mesh is None:
        return jax.jit(step, donate_argnums=0)
    return jax.jit(step, donate_argnums=0, out_shardings=(state_shardings(config, sharding), sharding.of()))


def train(
    mesh: Mesh | None = None, *, config: str | Config = "llama3.1-8b", batch: int = 1, seq: int = 2048, **changes: Any
) -> Step:
    """Return a training step of a published model, for `systolic step`.

    Args:
      mesh: with any of the axes `data`, `fsdp`, `tensor` and `expert`; None: one device.
      config: a name of `models.CONFIGS`, or a configuration.
      batch: sequences per device; all of them together are cut along the axes `data`, `fsdp` and `expert`.
      seq: tokens per sequence.
      changes: changed fields of the configuration, such as `layers=2` or `remat="minimal"`.
    """
    step_config = configured(config, **changes)
    sharding = Sharding(mesh)
    sequences = batch * sharding.devices
    state = jax.eval_shape(functools.partial(begin, config=step_config), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((sequences, seq), jnp.int32, sharding=sharding.of("batch", "sequence"))
    count = sequences * seq
    return Step(
        fn=train_function(step_config, sharding),
        args=(placed(state, state_shardings(step_config, sharding)), {"tokens": tokens, "targets": tokens}),
        tokens=count,
        # The backward pass multiplies twice as much as the forward pass; recomputation does not count.
        flops=3 * step_config.forward_flops(count, seq, causal=False),
        flops_causal=3 * step_config.forward_flops(count, seq, causal=True),
        parts=PARTS,
    )
