"""Recipes that repeat the published steps of `data/published_steps.csv`: model, mesh, flags, and differences.

Parameters and flags come from the files that `source` names, those of the commit that first published the figure;
other parameters from MaxText's base.yml of that commit.
"""

from __future__ import annotations

from step_recipe import (
    ALL_GATHER_FUSION,
    DATA_PARALLEL_OVERLAP,
    HOST_OFFLOAD,
    MAXTEXT,
    NO_BUNDLE_COSTS,
    NO_COLLECTIVE_MATMUL,
    SPARSE_CORE_COLLECTIVES,
    TPU_RECIPES,
    TRILLIUM,
    V5P_2023,
    VMEM_LIMIT,
    Recipe,
)

_FUSED_2048 = {
    **dict.fromkeys(("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv"), 2048),
    "block_kv_dkv_compute": 2048,
    "use_fused_bwd_kernel": True,
}
_OFFLOADED = "offload:input+query+key+value"
_WITH_RESULTS = "offload:input+out+query+key+value"  # and the results of attention's last projection
_BIASED = "older compiler; attention's scores are float32; positions are rotated in place of a bias on the scores"

RECIPES = (
    Recipe(
        chip="v6e",
        op="gpt3-175b train step",
        topology="16x16",
        mesh={"fsdp": 256},
        parameters={
            "config": "gpt3-175b",
            "batch": 3,
            "seq": 2048,
            "remat": "full",
            "blocks": {"block_q": 1024, "block_q_dkv": 2048, "block_q_dq": 2048},
        },
        flags={**VMEM_LIMIT, **ALL_GATHER_FUSION, **DATA_PARALLEL_OVERLAP, **NO_BUNDLE_COSTS},
        source=f"{TPU_RECIPES}/trillium/GPT3-175B-MaxText/bf16/README.md",
        differs="older compiler (jax 0.5.2); RMS norms and rotated positions in place of GPT-3's",
    ),
    Recipe(
        chip="v6e",
        op="gemma3-12b train step",
        topology="16x16",
        mesh={"fsdp": 256},
        parameters={
            "config": "gemma3-12b",
            "batch": 1,
            "seq": 32_768,
            "remat": "full",
            "loss_chunks": 16,
            "blocks": {
                **dict.fromkeys(("block_q", "block_kv", "block_kv_compute", "block_q_dq", "block_kv_dq"), 1024),
                "block_q_dkv": 512,
                "block_kv_dkv": 2048,
                "block_kv_dkv_compute": 512,
            },
        },
        # The recipe's limit is 122880. One of its products alone takes 4,839 µs with that and 4,824 with this limit, by
        # systolic simulate jax.numpy:matmul --arg "bf16[32768,3840]" --arg "bf16[3840,15360]" --chip v6e --xla-flag …
        # A gated pair takes 9,561 (libtpu 0.0.50.1) and 9,805. It was chosen by these, and because with the larger one
        # 8 of 62 products were compiled in 70 minutes of CPU time.
        flags={"xla_tpu_scoped_vmem_limit_kib": "49152"},
        source=f"{TPU_RECIPES}/trillium/Gemma3-12B-MaxText/v6e-256/README.md",
        differs="older compiler; layers alike are a loop; 48 MiB of scoped VMEM, where the recipe has 120",
    ),
    Recipe(
        chip="v6e",
        op="llama3.1-70b train step",
        topology="8x8",
        mesh={"fsdp": 64},
        parameters={"config": "llama3.1-70b", "batch": 2, "seq": 8192, "remat": _OFFLOADED, "blocks": _FUSED_2048},
        flags=TRILLIUM,
        source=f"{TPU_RECIPES}/trillium/Llama3.1-70B-MaxText/v6e-64/README.md",
        differs="older compiler (jax 0.6.1)",
    ),
    Recipe(
        chip="v6e",
        op="llama3.1-8b train step",
        topology_note="v6e-64",
        topology="8x8",
        mesh={"fsdp": 64},
        parameters={"config": "llama3.1-8b", "batch": 5, "seq": 8192, "remat": _WITH_RESULTS, "blocks": _FUSED_2048},
        flags=TRILLIUM,
        source=f"{TPU_RECIPES}/trillium/Llama3.1-8B-MaxText/v6e-64/README.md",
        differs="older compiler (jax 0.6.1); all-reduces on SparseCores in the recipe",
    ),
    Recipe(
        chip="v6e",
        op="llama3.1-8b train step",
        topology_note="v6e-8",
        topology="2x4",
        mesh={"fsdp": 8},
        parameters={"config": "llama3.1-8b", "batch": 3, "seq": 8192, "remat": _WITH_RESULTS, "blocks": _FUSED_2048},
        flags={**TRILLIUM, **NO_COLLECTIVE_MATMUL},
        source=f"{TPU_RECIPES}/trillium/Llama3.1-8B-MaxText/v6e-8/README.md",
        differs="older compiler (jax 0.6.1); all-reduces on SparseCores in the recipe",
    ),
    Recipe(
        chip="v7x",
        op="gemma4-4b bf16 train step",
        topology="4x4x4",
        mesh={"data": 4, "fsdp": 32},
        parameters={
            "config": "gemma4-4b",
            "batch": 2,
            "seq": 8192,
            "remat": "full",
            "loss_chunks": 8,
            "blocks": {
                **dict.fromkeys(("block_q", "block_kv", "block_q_dkv", "block_kv_dkv"), 1024),
                "block_kv_compute": 512,
                "block_kv_dkv_compute": 256,
                "use_fused_bwd_kernel": True,
            },
        },
        flags={
            "xla_tpu_scoped_vmem_limit_kib": "65536",
            **SPARSE_CORE_COLLECTIVES,
            "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": "true",
            "xla_tpu_enable_latency_hiding_layer_scheduler": "true",
            "xla_tpu_enable_layer_scheduler_for_dependent_collectives": "true",
            "xla_tpu_enable_sparse_core_collective_aggregator": "true",  # the layer scheduler requires it
            "xla_tpu_scheduler_percent_shared_memory_limit": "150",
        },
        source=f"{TPU_RECIPES}/ironwood/gemma4-4b/8k-bf16-tpu7x-4x4x4/xpk/run_recipe.sh",
        differs="layers alike are a loop, in which keys and values that no layer shares get gradients of zero; JAX's "
        "splash attention in place of tokamax'; queries are scaled; in the recipe scatters run on SparseCores",
    ),
    Recipe(
        chip="v7x",
        op="llama3.1-405b bf16 train step",
        topology="4x8x8",
        mesh={"fsdp": 512},
        parameters={
            "config": "llama3.1-405b",
            "batch": 3,
            "seq": 8192,
            "remat": "offload:input+down",
            "loss_chunks": 4,
            "attention": "tokamax",
            "blocks": {
                **_FUSED_2048,
                "block_kv_compute": 1024,
                "block_kv_dkv_compute": 512,
                **dict.fromkeys(("q_layout", "k_layout"), "SEQ_MINOR"),
                "use_experimental_scheduler": True,
            },
        },
        flags={
            "xla_tpu_scoped_vmem_limit_kib": "65536",
            **SPARSE_CORE_COLLECTIVES,
            "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "false",
            "xla_tpu_enable_sparse_core_offload_queuing_in_lhs": "true",
            "xla_tpu_enable_ici_ar_pipelining": "true",
        },
        source=f"{TPU_RECIPES}/ironwood/llama3.1-405b/8k-bf16-tpu7x-4x8x8/run_recipe.sh",
        differs="keys and values stay on the device in the recipe; moments of 16 bits; tokamax 0.0.17",
    ),
    Recipe(
        chip="v7x",
        op="llama3.1-70b bf16 train step",
        topology="4x4x4",
        mesh={"fsdp": 128},
        parameters={
            "config": "llama3.1-70b",
            "batch": 2,
            "seq": 8192,
            "remat": "query+key+value+context",
            "blocks": _FUSED_2048,
        },
        flags={
            "xla_tpu_scoped_vmem_limit_kib": "61440",
            "xla_tpu_bf16_emission_mode": "NATIVE_EMISSION",
            "xla_tpu_enable_sparse_core_collective_offload_all_reduce": "true",
            "xla_tpu_use_single_sparse_core_for_all_gather_offload": "true",
        },
        source=f"{TPU_RECIPES}/ironwood/llama3.1-70b/8k-bf16-tpu7x-4x4x4/xpk/run_recipe.sh",
        differs="older compiler (jax 0.8.2); JAX's splash attention in place of tokamax'; first moments of 16 bits in "
        "the recipe",
    ),
    Recipe(
        chip="v7x",
        op="qwen3-235b-a22b bf16 train step",
        topology="4x8x8",
        mesh={"fsdp": 512},
        parameters={
            "config": "qwen3-235b-a22b",
            "attention": "tokamax",
            "grouped": "tokamax",
            "batch": 16,
            "seq": 4096,
            "remat": "offload:input",
            "blocks": {
                **dict.fromkeys(("block_q", "block_kv"), 1024),
                "block_kv_compute": 512,
                **dict.fromkeys(("block_q_dkv", "block_kv_dkv"), 2048),
                "block_kv_dkv_compute": 1024,
                "use_fused_bwd_kernel": True,
                "k_layout": "SEQ_MINOR",
            },
        },
        flags={
            "xla_tpu_scoped_vmem_limit_kib": "61440",
            "xla_tpu_enable_sparse_core_collective_offload_all_gather": "true",
            "xla_tpu_enable_sparse_core_collective_offload_all_reduce": "true",
            "xla_tpu_use_single_sparse_core_for_all_gather_offload": "true",
            **HOST_OFFLOAD,
        },
        source=f"{TPU_RECIPES}/ironwood/qwen3-235b-a22b/4k-bf16-tpu7x-4x8x8/xpk/run_recipe.sh",
        differs="older compiler (jax 0.9.2); experts are chosen by top-k in place of random numbers, but as evenly; a "
        "product looks up tokens; no loss balances experts; tokamax 0.0.17 and its tiles",
    ),
    Recipe(
        chip="v5p",
        op="deepseek2-16b train step",
        topology="2x2x1",
        mesh={"fsdp": 4},
        parameters={"config": "deepseek2-16b", "batch": 24, "seq": 2048, "remat": "full", "one_hot": False},
        source=f"{MAXTEXT}@e591f30cb:src/maxtext/configs/base.yml (use_iota_embed: false), models/deepseek2-16b.yml",
        differs="older compiler (jax 0.7.2); tokens of each expert drawn at random, evenly",
    ),
    Recipe(
        chip="v5e",
        op="maxtext scale 16b",
        topology="16x16",
        mesh={"fsdp": 256},
        parameters={
            "config": "maxtext-16b",
            "batch": 6,
            "seq": 2048,
            "remat": "full",
            "attention": "plain",
            "one_hot": False,
        },
        flags={**ALL_GATHER_FUSION, **DATA_PARALLEL_OVERLAP},
        rate_tflops=120.0,
        source=f"{MAXTEXT}@ebb226da8:end_to_end/test_tflops_16b_params.sh",
        differs=_BIASED,
    ),
    Recipe(
        chip="v5p",
        op="maxtext scale 32b",
        topology="4x4x4",
        mesh={"fsdp": 16, "tensor": 4},
        parameters={"config": "maxtext-32b", "batch": 8, "seq": 2048, "remat": "minimal", "attention": "flash"},
        flags=V5P_2023,
        rate_tflops=328.0,
        attention_counted=0.5,
        source=f"{MAXTEXT}@76bd53b0f:MaxText/configs/v5p/32b.sh",
        differs="older compiler; values are normed too, and the logits' product has float32 operands",
    ),
    Recipe(
        chip="v4",
        op="22B emb6144 heads24 mlp24576 layers48",
        topology="4x4x4",
        mesh={"fsdp": 64},
        parameters={
            "config": "maxtext-22b",
            "batch": 16,
            "seq": 1024,
            "remat": "full",
            "attention": "plain",
            "one_hot": False,
        },
        flags={"xla_enable_async_all_gather": "true"},
        rate_tflops=156.0,
        attention_counted=0.0,
        source=f"{MAXTEXT}@281e04bf3:MaxText/configs/1xv4-128.sh",
        differs=f"{_BIASED}; BarnaCores carry its all-gathers, whose programs are assumed",
    ),
)
