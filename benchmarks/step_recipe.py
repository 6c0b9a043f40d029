"""A recipe that repeats a published step, and the groups of compiler flags that recipes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
REDUCE_SCATTER_LAYOUT = {
    "xla_tpu_use_minor_sharding_for_major_trivial_input": "true",
    "xla_tpu_relayout_group_size_threshold_for_reduce_scatter": "1",
    "xla_tpu_assign_all_reduce_scatter_layout": "true",
}
HOST_OFFLOAD = {
    "xla_tpu_enable_all_experimental_scheduler_features": "true",
    "xla_tpu_enable_scheduler_memory_pressure_tracking": "true",
    "xla_tpu_host_transfer_overlap_limit": "24",
    "xla_tpu_aggressive_opt_barrier_removal": "ENABLED",
    "xla_lhs_prioritize_async_depth_over_stall": "ENABLED",
    "xla_tpu_enable_ag_backward_pipelining": "true",
    "xla_should_allow_loop_variant_parameter_in_chain": "ENABLED",
    "xla_should_add_loop_invariant_op_in_chain": "ENABLED",
    "xla_max_concurrent_host_send_recv": "100",
    "xla_tpu_scheduler_percent_shared_memory_limit": "100",
    "xla_latency_hiding_scheduler_rerun": "2",
}
# That the recipes of v7x share: XLA's collectives run on SparseCores.
SPARSE_CORE_COLLECTIVES = {
    "xla_tpu_bf16_emission_mode": "NATIVE_EMISSION",
    "xla_tpu_enable_sparse_core_reduce_scatter_v2": "true",
    **{
        f"xla_tpu_enable_sparse_core_collective_offload_{kind}": "true"
        for kind in ("all_gather", "2d_all_gather", "3d_all_gather", "all_reduce", "reduce_scatter")
    },
    "xla_tpu_use_single_sparse_core_for_all_gather_offload": "true",
    "xla_tpu_enable_all_gather_offload_tracing": "true",
    "xla_tpu_use_tc_device_shape_on_sc": "true",
    "xla_sc_disable_megacore_partitioning": "true",
    "xla_enable_async_all_gather": "true",
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
}
NO_COLLECTIVE_MATMUL = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}
NO_BUNDLE_COSTS = {"xla_tpu_use_bundle_aware_cost_model_for_fusions": "false"}
TRILLIUM = {**VMEM_LIMIT, **REDUCE_SCATTER_LAYOUT, **DATA_PARALLEL_OVERLAP, **ALL_GATHER_FUSION, **HOST_OFFLOAD}
# LIBTPU_INIT_ARGS of MaxText/configs/v5p/32b.sh at commit 76bd53b0f; all-gathers are not fused there.
V5P_2023 = {
    "xla_tpu_megacore_fusion_allow_ags": "false",
    "xla_enable_async_collective_permute": "true",
    "xla_tpu_enable_ag_backward_pipelining": "true",
    **DATA_PARALLEL_OVERLAP,
    "xla_tpu_enable_async_collective_fusion": "true",
    "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
    "xla_tpu_overlap_compute_collective_tc": "true",
    "xla_enable_async_all_gather": "true",
}


# Where recipes are published, at a commit that their source names.
TPU_RECIPES = "AI-Hypercomputer/tpu-recipes@c8cfe2f:training"
MAXTEXT = "AI-Hypercomputer/maxtext"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One published step.

    Attributes:
      chip, op: of the row; if several rows have both, `topology_note` begins the row's topology.
      topology: chips of the slice along each axis.
      mesh: axes with their sizes.
      parameters: of `examples/transformer:train`, or of `examples/maxtext_step.py:train`.
      is_maxtext: True if the step is MaxText's own code, of the release that `maxtext_step.py` names.
      flags: of the compiler.
      rate_tflops: of a chip, for a row without a time: the model's operations over the time.
      attention_counted: the share of attention's operations in that rate, by MaxText's formula of that commit: 1 in
        full, 1/2 under a causal mask, 0 not counted.
      source: repository, commit and file of parameters and flags.
      differs: known differences from the measured step.
    """

    chip: str
    op: str
    topology_note: str = ""
    topology: str = ""
    mesh: Mapping[str, int] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_maxtext: bool = False
    flags: Mapping[str, str] = field(default_factory=dict)
    rate_tflops: float | None = None
    attention_counted: float = 1.0
    source: str = ""
    differs: str = ""


def recipe_of(row: Mapping[str, str], listed: Sequence[Recipe]) -> Recipe | None:
    """Return the recipe of a row of the published file, or None if none is listed."""
    recipes = [recipe for recipe in listed if (recipe.chip, recipe.op) == (row["chip"], row["op"])]
    return next((recipe for recipe in recipes if row["topology"].split(" ")[0].startswith(recipe.topology_note)), None)
