"""Recipes that repeat the published steps of `data/published_steps.csv`: model, mesh, flags, and differences.

Parameters come from the recipe that a row names; the others from MaxText's base.yml of that time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Groups of flags, as AI-Hypercomputer/maxtext benchmarks/xla_flags_library.py names them.
VMEM_LIMIT = {"xla_tpu_scoped_vmem_limit_kib": "98304"}
ALL_GATHER_FUSION = {
    "xla_tpu_enable_async_collective_fusion": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
    "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
    "xla_tpu_overlap_compute_collective_tc": "true",
    "xla_enable_async_all_gather": "true",
}
DATA_PARALLEL_OVERLAP = {
    "xla_tpu_enable_data_parallel_all_reduce_opt": "true",
    "xla_tpu_data_parallel_opt_different_sized_ops": "true",
}
NO_BUNDLE_COSTS = {"xla_tpu_use_bundle_aware_cost_model_for_fusions": "false"}

_FUSED_2048 = {
    **dict.fromkeys(("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv"), 2048),
    "block_kv_dkv_compute": 2048,
    "use_fused_bwd_kernel": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One published step.

    Attributes:
      chip, op: of the row; if several rows have both, `topology_note` begins the row's topology.
      topology: chips of the slice along each axis.
      mesh: axes with their sizes.
      parameters: of `examples/transformer:train`.
      flags: of the compiler.
      rate_tflops: of a chip, for a row without a time: the model's operations, attention in full, over the time.
      differs: known differences from the measured step.
      unsupported: the reason why it is not predicted; "" if it is.
    """

    chip: str
    op: str
    topology_note: str = ""
    topology: str = ""
    mesh: Mapping[str, int] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    rate_tflops: float | None = None
    differs: str = ""
    unsupported: str = ""


_OFFLOADED = "offload:query+key+value"

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
        differs="older compiler; its scoped VMEM limit is not known and left as it is; layers alike are a loop",
    ),
    Recipe(
        chip="v6e",
        op="llama3.1-70b train step",
        topology="8x8",
        mesh={"fsdp": 64},
        parameters={"config": "llama3.1-70b", "batch": 2, "seq": 8192, "remat": _OFFLOADED, "blocks": _FUSED_2048},
        flags={**VMEM_LIMIT, **ALL_GATHER_FUSION, **DATA_PARALLEL_OVERLAP},
        differs="older compiler (jax 0.6.1)",
    ),
    Recipe(
        chip="v6e",
        op="llama3.1-8b train step",
        topology_note="v6e-64",
        topology="8x8",
        mesh={"fsdp": 64},
        parameters={"config": "llama3.1-8b", "batch": 5, "seq": 8192, "remat": _OFFLOADED, "blocks": _FUSED_2048},
        flags={**VMEM_LIMIT, **ALL_GATHER_FUSION, **DATA_PARALLEL_OVERLAP},
        differs="older compiler (jax 0.6.1)",
    ),
    Recipe(
        chip="v6e",
        op="llama3.1-8b train step",
        topology_note="v6e-8",
        topology="2x4",
        mesh={"fsdp": 8},
        parameters={"config": "llama3.1-8b", "batch": 3, "seq": 8192, "remat": _OFFLOADED, "blocks": _FUSED_2048},
        flags={**VMEM_LIMIT, **ALL_GATHER_FUSION, **DATA_PARALLEL_OVERLAP},
        differs="older compiler (jax 0.6.1)",
    ),
    Recipe(
        chip="v7x",
        op="gemma4-4b bf16 train step",
        unsupported="the example has no embeddings of each layer",
    ),
    Recipe(
        chip="v7x",
        op="llama3.1-405b bf16 train step",
        topology="4x8x8",
        mesh={"fsdp": 512},
        parameters={"config": "llama3.1-405b", "batch": 3, "seq": 8192, "remat": "offload:down", "loss_chunks": 4},
        differs="keys and values stay on the device in the recipe; moments of 16 bits",
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
        flags={"xla_tpu_scoped_vmem_limit_kib": "61440"},
        differs="older compiler (jax 0.8.2); collectives on SparseCores and first moments of 16 bits in the recipe",
    ),
    Recipe(
        chip="v7x",
        op="qwen3-235b-a22b bf16 train step",
        unsupported="not tried yet: 128 experts on 512 devices",
    ),
    Recipe(
        chip="v5p",
        op="deepseek2-16b train step",
        topology="2x2x1",
        mesh={"fsdp": 4},
        parameters={"config": "deepseek2-16b", "batch": 24, "seq": 2048, "remat": "full"},
        differs="older compiler (jax 0.7.2); tokens of each expert drawn at random, evenly",
    ),
    Recipe(
        chip="v5e",
        op="maxtext scale 16b",
        topology="16x16",
        mesh={"fsdp": 256},
        parameters={"config": "maxtext-16b", "batch": 6, "seq": 2048, "remat": "full"},
        flags={**ALL_GATHER_FUSION, **DATA_PARALLEL_OVERLAP},
        rate_tflops=120.0,
        differs="older compiler",
    ),
    Recipe(
        chip="v5p",
        op="maxtext scale 32b",
        topology="4x4x4",
        mesh={"fsdp": 16, "tensor": 4},
        parameters={"config": "maxtext-32b", "batch": 6, "seq": 2048, "remat": "minimal"},
        rate_tflops=328.0,
        differs="older compiler, whose flags are not known",
    ),
    Recipe(
        chip="v4",
        op="22B emb6144 heads24 mlp24576 layers48",
        topology="4x4x4",
        mesh={"fsdp": 64},
        parameters={"config": "maxtext-22b", "batch": 13, "seq": 2048, "remat": "full"},
        rate_tflops=156.0,
        differs="older compiler, whose flags are not known; that heads have 256 features follows from its 22 billion",
    ),
)


def recipe_of(row: Mapping[str, str]) -> Recipe | None:
    """Return the recipe of a row of the file, or None if none is listed."""
    recipes = [recipe for recipe in RECIPES if (recipe.chip, recipe.op) == (row["chip"], row["op"])]
    return next((recipe for recipe in recipes if row["topology"].split(" ")[0].startswith(recipe.topology_note)), None)
