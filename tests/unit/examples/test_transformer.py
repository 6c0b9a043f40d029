"""The transformer of examples/: it trains, and none of the ways to compute it changes what it computes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from transformer.config import Config
from transformer.layers import embed, forward, layer, layer_inputs, rms_norm, rotate, with_layer_inputs
from transformer.models import CONFIGS, configured
from transformer.serving import decode, decode_step, prefill_step
from transformer.sharding import Sharding
from transformer.step import AdamW, begin, cross_entropy, init, loss, train, train_function

import systolic

ALONE = Sharding(None)
TINY = configured("tiny")


def batch_of(config: Config, sequences: int = 4, length: int = 32) -> dict[str, jax.Array]:
    tokens = jax.random.randint(jax.random.key(1), (sequences, length + 1), 0, config.vocabulary)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["tiny", "tiny-gemma", pytest.param("tiny-gemma4", marks=pytest.mark.slow)])
def test_the_loss_falls(name: str) -> None:
    config = configured(name)
    step = train_function(config, ALONE, AdamW(learning_rate=1e-2))
    state, batch = jax.jit(functools.partial(begin, config=config))(jax.random.key(0)), batch_of(config)
    losses = []
    for _ in range(16):
        state, value = step(state, batch)
        losses.append(float(value))
    # Before the first step it guesses among all tokens, about evenly.
    assert abs(losses[0] - np.log(config.vocabulary)) < 1
    assert losses[-1] < losses[0] / 4
    assert int(state["count"]) == 16


@functools.cache
def parameters_of() -> Any:
    return jax.jit(functools.partial(init, config=TINY))(jax.random.key(0))


@functools.cache
def gradients(**changes: Any) -> list[jax.Array]:
    function = functools.partial(loss, config=configured("tiny", **changes), sharding=ALONE)
    return jax.tree.leaves(jax.jit(jax.grad(function))(parameters_of(), batch_of(TINY)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "plain"},
        pytest.param(
            {"remat": "none", "loss": "plain", "loss_chunks": 4, "one_hot": False}, marks=pytest.mark.exhaustive
        ),
        pytest.param({"remat": "query+key"}, marks=pytest.mark.slow),
        pytest.param({"remat": "minimal"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_ways_to_compute_it_give_the_same_gradients(changes: dict[str, object]) -> None:
    for mine, other in zip(gradients(**changes), gradients(), strict=True):
        scale = float(jnp.max(jnp.abs(other)))
        np.testing.assert_allclose(mine, other, atol=2**-5 * scale)  # products are rounded to bfloat16


@pytest.mark.sampled(1)
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param("tiny", {}, marks=pytest.mark.slow),
        ("tiny", {"window": 5, "gated": False}),
        ("tiny-gemma", {}),
        ("tiny", dict.fromkeys(("parallel", "qk_norm", "tied"), True)),
    ],
    ids=str,
)
def test_decoding_continues_what_a_longer_prompt_would_give(name: str, changes: dict[str, object]) -> None:
    config = configured(name, **changes)
    parameters = jax.jit(functools.partial(init, config=config))(jax.random.key(0))
    tokens = batch_of(config, length=11)["tokens"]
    prefill = jax.jit(functools.partial(prefill_step, config=config, sharding=ALONE))
    decode = jax.jit(functools.partial(decode_step, config=config, sharding=ALONE))
    first, cache = prefill(parameters, tokens)
    longer = jnp.concatenate([tokens, first], axis=1)
    wanted, wanted_cache = prefill(parameters, longer)
    room = jax.tree.map(lambda each: jnp.pad(each, ((0, 0), (0, 0), (0, 5), (0, 0), (0, 0))), cache)
    position = jnp.int32(tokens.shape[1])
    found, after = decode(parameters, room, first, position)
    np.testing.assert_array_equal(found, wanted)
    for mine, other in zip(after, wanted_cache, strict=True):
        np.testing.assert_allclose(
            np.asarray(mine[:, :, : longer.shape[1]], np.float32), np.asarray(other, np.float32), atol=2**-5
        )


def test_tokens_do_not_see_later_ones() -> None:
    parameters, tokens = parameters_of(), batch_of(TINY)["tokens"]
    changed = tokens.at[:, 20:].set(0)
    layers = jax.jit(lambda each: forward(parameters, each, TINY, ALONE)[0])
    before, after = layers(tokens), layers(changed)
    np.testing.assert_array_equal(before[:, :20], after[:, :20])
    assert not np.array_equal(before[:, 20:], after[:, 20:])


@pytest.mark.exhaustive
def test_how_far_tokens_see_is_how_far_their_values_reach() -> None:
    """Three layers with a window of 5 reach 12 tokens on; the fourth, which sees all, is what reaches further."""
    config = configured("tiny-gemma", full_every=4)
    parameters = jax.jit(functools.partial(init, config=config))(jax.random.key(0))
    tokens = batch_of(config)["tokens"]

    def reached(weights: Any) -> list[int]:
        layers = jax.jit(lambda each: forward(weights, each, config, ALONE)[0])
        change = jnp.abs(layers(tokens) - layers(tokens.at[:, 4].add(1))).astype(jnp.float32)
        return np.flatnonzero(np.asarray(jnp.max(change, axis=(0, 2)))).tolist()

    assert reached(parameters)[-1] == 31
    last = parameters["layers"][-1]
    last["out"] = jnp.zeros_like(last["out"])
    assert reached(parameters) == list(range(4, 4 + 3 * 4 + 1))


@pytest.mark.exhaustive
def test_layers_take_their_rows_and_the_keys_of_the_last_layers_of_their_kind() -> None:
    """Six layers, in turn with a window and without; the last two take the keys of the third and the fourth."""
    config = configured("tiny-gemma4")
    parameters = jax.jit(functools.partial(init, config=config))(jax.random.key(0))
    tokens = batch_of(config)["tokens"]
    # Compiled one by one, layers are rounded as in a loop.
    kinds = [jax.jit(functools.partial(layer, config=own, sharding=ALONE)) for own, _ in config.block]
    x = jax.jit(lambda table: embed(tokens, table, config))(parameters["embedding"])
    inputs = jax.jit(lambda x, each: layer_inputs(tokens, x, each, config))(x, parameters)
    caches = []
    for number in range(6):
        stack, row = ("layers", number // 2) if number < 4 else ("kv_shared_layers", 0)
        weights = {name: each[row] for name, each in parameters[stack][number % 2].items()}
        shared = None if number < 4 else caches[number - 2]
        x, cache = kinds[number % 2](x, weights | {"layer_input": inputs[number]}, shared=shared)
        caches.append(cache)
    wanted = np.asarray(rms_norm(x, parameters["norm"], config.norm_epsilon), np.float32)
    found = jax.jit(lambda each: forward(each, tokens, config, ALONE)[0])(parameters)
    np.testing.assert_allclose(np.asarray(found, np.float32), wanted, rtol=0, atol=2**-6 * np.abs(wanted).max())


def test_inputs_of_layers_are_their_rows_and_projections() -> None:
    config, random = configured("tiny-gemma4"), np.random.default_rng(0)
    shape = (4, 8, config.layers, config.layer_features)
    columns = config.layers * config.layer_features
    table, projection = random.standard_normal((config.vocabulary, columns)), random.standard_normal((32, columns))
    x, tokens = random.standard_normal((4, 8, 32)), random.integers(0, config.vocabulary, (4, 8))
    projected = (x @ projection).reshape(shape) / np.sqrt(config.width)
    projected /= np.sqrt(np.mean(projected**2, axis=-1, keepdims=True) + config.norm_epsilon)
    rows = table[tokens].reshape(shape) * np.sqrt(config.layer_features)
    wanted = np.moveaxis((rows + projected) / np.sqrt(2), 2, 0)
    weights = {"layer_embeddings": table, "layer_projection": projection, "layer_projection_norm": np.zeros(shape[-1])}
    weights = jax.tree.map(lambda each: jnp.asarray(each, jnp.float32), weights)
    found = jax.jit(functools.partial(layer_inputs, config=config))(tokens, jnp.asarray(x, jnp.float32), weights)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_inputs_of_layers_reach_them_in_order() -> None:
    stacks = {"layers": [{}, {}], "kv_shared_layers": [{}, {}]}
    marked = with_layer_inputs(stacks, jnp.arange(6), configured("tiny-gemma4"))
    found = [each["layer_input"].tolist() for each in [*marked["layers"], *marked["kv_shared_layers"]]]
    assert found == [[0, 2], [1, 3], [4], [5]]


def test_only_a_share_of_features_is_rotated() -> None:
    x = jax.random.normal(jax.random.key(0), (1, 6, 2, 16))
    positions = jnp.arange(6)
    found = rotate(x, positions, 100.0, 0.25)
    np.testing.assert_array_equal(found[..., 4:], x[..., 4:])
    np.testing.assert_array_equal(found[..., :4], rotate(x[..., :4], positions, 100.0))


def test_capped_logits_have_their_loss() -> None:
    random = np.random.default_rng(0)
    x, weight = (random.standard_normal(shape) for shape in ((2, 3, 8), (8, TINY.vocabulary)))
    targets = random.integers(0, TINY.vocabulary, (2, 3))
    logits = 2 * np.tanh(x @ weight / 2)
    wanted = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    operands = jnp.asarray(x, jnp.float32), jnp.asarray(targets), jnp.asarray(weight, jnp.float32)
    found = cross_entropy(*operands, configured(TINY, soft_cap=2.0), ALONE)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_models_whose_layers_have_different_caches_are_not_served() -> None:
    with pytest.raises(ValueError, match="kv_shared_layers"):
        decode(config="tiny-gemma4")


def test_operations_of_a_window_are_those_of_the_tokens_it_shows() -> None:
    config = configured("tiny-gemma", window=128, full_every=4)
    windows, seq = (128, 128, 128, 4096), 4096
    at = np.arange(seq)
    features = 4 * config.heads * config.head_dim
    for causal, seen in ((False, sum(windows)), (True, sum(np.minimum(at + 1, each).mean() for each in windows))):
        found = config.forward_flops(seq, seq, causal=causal) / seq - 2 * config.matrix_parameters
        assert found == pytest.approx(features * seen, rel=2e-3)  # the count takes half a token less


def test_layers_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"layers=8 is not a multiple of full_every=6: .* layers=6"):
        configured("gemma3-12b", layers=8)


# Weights of the published models, in billions, by their own papers and configurations.
SIZES = {
    "llama3.1-8b": 8.03,
    "llama3.1-70b": 70.6,
    "llama3.1-405b": 405.9,
    "mistral-7b": 7.24,
    "maxtext-16b": 16.5,
    "maxtext-32b": 32.5,
    "gemma3-12b": 11.8,
    "gpt3-175b": 175.2,
    "maxtext-22b": 21.9,
    "deepseek2-16b": 15.7,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235.1,
    "gemma4-4b": 7.5,  # without the encoders of images and sound
}


@pytest.mark.parametrize("name", sorted(SIZES))
def test_published_models_have_their_sizes(name: str) -> None:
    config = CONFIGS[name]
    weights = jax.eval_shape(functools.partial(init, config=config), jax.random.key(0))
    count = sum(each.size for each in jax.tree.leaves(weights))
    assert count / 1e9 == pytest.approx(SIZES[name], rel=0.01)
    named = jax.tree_util.tree_leaves_with_path(weights)
    norms = sum(each.size for path, each in named if path[-1].key.endswith(("norm", "layer_scale")))
    others = config.experts - config.experts_per_token  # with whose weights a token is not multiplied
    others *= (config.layers - config.dense_layers) * 3 * config.width * config.expert_width
    table = 0 if config.tied else config.vocabulary * config.width
    table += config.vocabulary * config.layers * config.layer_features
    assert count == config.matrix_parameters + others + table + norms


def test_a_step_over_a_slice_says_what_it_is() -> None:
    mesh = systolic.slice_mesh("v6e", "2x4", fsdp=4, tensor=2)
    step = train(mesh, config="llama3.1-8b", batch=3, seq=8192)
    assert step.tokens == 8 * 3 * 8192
    # Six operations a weight and token; attention is 4 · 8192 · 4096 a layer and token, forwards.
    full = 6 * CONFIGS["llama3.1-8b"].matrix_parameters + 3 * 4 * 32 * 4096 * 8192
    assert step.flops == pytest.approx(step.tokens * full)
    assert step.flops - step.flops_causal == pytest.approx(step.tokens * 3 * 4 * 32 * 4096 * 8192 / 2)
    state = step.args[0]
    gate = state["first"]["layers"]["gate"]
    assert gate.sharding.shard_shape(gate.shape) == (32, 4096 // 4, 14_336 // 2)
    assert step.args[1]["tokens"].sharding.shard_shape((24, 8192)) == (6, 8192)


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(ValueError, match="mistral-7b"):
        configured("llama-9")
