"""Published models by name, and small ones for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .config import Config


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

_GEMMA4: dict[str, Any] = _GEMMA3 | {
    "window": 512,
    "rotated": 0.25,
    "soft_cap": 30.0,
    **dict.fromkeys(("value_norm", "layer_scale"), True),
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
    "tiny-gemma4": Config(
        vocabulary=64,
        width=32,
        layers=6,
        heads=4,
        kv_heads=2,
        head_dim=16,
        window_head_dim=8,
        kv_shared_layers=2,
        layer_features=4,
        mlp_width=64,
        attention="plain",
        **{**_GEMMA4, "window": 5, "full_every": 2},
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
    # The decoder of Gemma 4 E4B, from MaxText's gemma4-e4b.yml.
    "gemma4-4b": Config(
        vocabulary=262_144,
        width=2560,
        layers=42,
        heads=8,
        kv_heads=2,
        head_dim=512,
        window_head_dim=256,
        kv_shared_layers=18,
        layer_features=256,
        mlp_width=10_240,
        **_GEMMA4,
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
