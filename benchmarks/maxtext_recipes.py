"""Recipes of published steps that MaxText's own step predicts, too; see `step_recipes`.

Parameters are those of `examples/maxtext_step.py`.
"""

from __future__ import annotations

from step_recipe import (
    MAXTEXT,
    NO_COLLECTIVE_MATMUL,
    TPU_RECIPES,
    TRILLIUM,
    V5P_2023,
    Recipe,
)

_OFFLOADED = ("decoder_layer_input", "out_proj", "query_proj", "key_proj", "value_proj")
_BLOCKS = tuple(
    f"sa_block_{block}" for block in ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
)

MAXTEXT_RECIPES = (
    Recipe(
        chip="v6e",
        op="llama3.1-8b train step",
        topology_note="v6e-8",
        topology="2x4",
        mesh={"fsdp": 8},
        parameters={
            "config": "llama3.1-8b",
            "batch": 3,
            "seq": 8192,
            "use_iota_embed": True,
            "remat_policy": "custom",
            **dict.fromkeys(_OFFLOADED, "offload"),
            **dict.fromkeys(_BLOCKS, 2048),
            "sa_use_fused_bwd_kernel": True,
        },
        is_maxtext=True,
        # libtpu 0.0.50.1 refuses to fuse all-gathers on v6e.
        flags={**TRILLIUM, **NO_COLLECTIVE_MATMUL, "xla_tpu_enable_async_collective_fusion": "false"},
        source=f"{TPU_RECIPES}/trillium/Llama3.1-8B-MaxText/v6e-8/README.md",
        differs="newer MaxText (0.2.5) and compiler (jax 0.6.1 in the recipe), which fuses no all-gathers on v6e; "
        "all-reduces on SparseCores in the recipe",
    ),
    Recipe(
        chip="v5p",
        op="deepseek2-16b train step",
        topology="2x2x1",
        mesh={"fsdp": 4},
        parameters={"config": "deepseek2-16b", "batch": 24, "seq": 2048},
        is_maxtext=True,
        # How libtpu 0.0.50.1 hands programs to v5p's SparseCores is not known.
        flags={
            "xla_tpu_offload_gather_to_sparsecore": "false",
            "xla_tpu_enable_offloading_scatter_to_sparsecore": "false",
        },
        source="maxtext==0.2.5:maxtext/configs/base.yml, models/deepseek2-16b.yml",
        differs="newer MaxText (0.2.5) and compiler, which is told to gather rows without SparseCores; tokens of each "
        "expert drawn at random, evenly",
    ),
    Recipe(
        chip="v5p",
        op="maxtext scale 32b",
        topology="4x4x4",
        mesh={"fsdp": 16, "tensor": 4},
        parameters={
            "config": "default",
            "batch": 8,
            "seq": 2048,
            "global_parameter_scale": 32,
            "use_iota_embed": True,
            "remat_policy": "minimal",
            # The model of base.yml at the recipe's commit: attention and MLP read the same normed values.
            "decoder_block": "default",
            "base_emb_dim": 2560,
            "base_num_query_heads": 8,
            "base_num_kv_heads": 8,
            "base_mlp_dim": 8192,
            "head_dim": 256,
            "mlp_activations": ["relu"],
            "logits_via_embedding": True,
            "vocab_size": 32_768,
        },
        is_maxtext=True,
        # libtpu 0.0.50.1 fuses all-gathers on v5e alone.
        flags={**V5P_2023, "xla_tpu_enable_async_collective_fusion": "false"},
        rate_tflops=328.0,
        attention_counted=0.5,
        source=f"{MAXTEXT}@76bd53b0f:MaxText/configs/v5p/32b.sh",
        differs="newer MaxText (0.2.5: splash attention in blocks of 512) and compiler",
    ),
)
