"""TPU7x (Ironwood)."""

from dataclasses import replace

from systolic.chips import sources
from systolic.chips.arithmetic import DotOperands
from systolic.chips.chip import Chip, ClockState, MachineModel, NotOffered, SparseCoreModel, StepEstimate
from systolic.chips.sourced import sourced, with_sources
from systolic.chips.sources import DOCS, LISTING, TUNING_CACHE
from systolic.chips.v5p import V5P_LINKS

_COMPILER = sources.compiler("tpu7x:2x2x1")
_PEAK = (
    "published peak: 2307 Tflop/s = 2 cores x 2 MXU x 256 x 256 x 2 x 2 rows a cycle x 2.2 GHz; the clock of 1.87 GHz "
    "is what published device times of large products show"
)
_DEFAULT_STATE = ClockState(
    name="p3",
    clock_hz=1.87e9,
    flags={},
    source=f"xla_tpu_dvfs_p_state is 3 where a program is compiled without it; {_PEAK}",
)
_HIGHEST_STATE = ClockState(
    name="p7",
    clock_hz=2.17e9,
    flags={"xla_tpu_dvfs_p_state": "7"},
    source="xla_tpu_dvfs_p_state=7, the highest: 1.161 × the clock of p3, as published rates of XLA's 16384³ are (1103 "
    "Tflop/s with it and scoped_vmem_limit_kib=65536, 950 without flags); with both flags XLA's 8192³ is simulated in "
    "1019.8 µs, published 1016.9 (gpu-tpu-pedia, results_v7_trace.csv), which would fit 2.176 GHz",
)
_HOST_LINK = (
    "half of a chip's 64 GB/s, with which libtpu 0.0.42.1 and 0.0.50.1 schedule copies to the host "
    "(benchmarks/host_link.py); for v4 and v6e they have 16 and 32 GB/s, as jax-ml/scaling-book"
)
_REFIT = (
    "with that bandwidth, fitted to half of 30 published device times of a ragged kernel (tokamax tuning cache), and "
    "rounded; the other half is 2.2 % off (median), and XLA's products, which were not fitted to, by up to 4.1 %"
)

V7X = with_sources(
    Chip(
        name=sourced("v7x", DOCS),
        aliases=sourced(("tpu7x", "ironwood"), DOCS),
        title=sourced("TPU7x (Ironwood)", DOCS),
        device_kind=sourced("TPU7x", _COMPILER),
        topology=sourced("tpu7x:2x2x1", _COMPILER),
        ring_topology=sourced("tpu7x:2x2x1", sources.RING),
        topology_config=sourced(None, _COMPILER),
        cores_per_chip=sourced(2, DOCS),
        cores_per_device=sourced(1, DOCS),
        hbm_bytes_per_chip=sourced(192 * 2**30, DOCS),
        hbm_bytes_per_s_per_chip=sourced(7380e9, DOCS),
        ici_bytes_per_s_per_chip=sourced(1200e9, DOCS),
        ici_links_per_chip=sourced(6, sources.TORUS_3D),
        host_bytes_per_s=sourced(32e9, _HOST_LINK),
        vmem_bytes_per_core=sourced(64 * 2**20, _COMPILER),
        usable_vmem_bytes_per_core=sourced(64 * 2**20, _COMPILER),
        scoped_vmem_bytes=sourced(32 * 2**20, _COMPILER),
        usable_smem_bytes_per_core=sourced(2**20 - 2 * 2**10, sources.smem("tpu7x:2x2x1")),
        peak_ops_per_s_per_chip=sourced(
            {"float32": 2307e12, "bfloat16": 2307e12, "float8_e4m3fn": 4614e12, "float8_e5m2": 4614e12}, DOCS
        ),
        peak_clock_hz=sourced(2.2e9, _PEAK),
        emulated_dtypes=sourced({"int8": "bfloat16"}, LISTING),
        dot_operands=sourced(
            DotOperands(
                floats=frozenset({"float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"}),
                integers=frozenset({"int4", "int8", "int32"}),
                integer_pairs=frozenset({"int4", "int8"}),
                converts=True,
                exact_partners=frozenset({"float32", "int32"}),
            ),
            sources.DOTS,
        ),
        vector_bfloat16=sourced(True, sources.VECTOR_BFLOAT16),
        unpacks_bytes=sourced(True, sources.UNPACKS_BYTES),
        moves_arguments=sourced(True, sources.MOVED_ARGUMENTS),
        machine=MachineModel(
            clock_hz=sourced(_DEFAULT_STATE.clock_hz, _DEFAULT_STATE.source),
            mxu_count=sourced(2, _PEAK),
            mxu_rows=sourced(256, LISTING),
            mxu_columns=sourced(256, LISTING),
            mxu_rows_per_cycle=sourced({"f32": 2.0, "bf16": 2.0, "f8": 4.0}, _PEAK),
            result_latency_cycles=sourced(54, sources.POPS),
            weight_push_cycles=sourced(0.5, _REFIT),
            matmul_queue_depth=sourced(4, TUNING_CACHE),
            lane_move_cycles=sourced(4, sources.LANE_MOVES),
            hbm_bytes_per_s=sourced(
                3.24e12,
                "the slope of published copies between 34 and 134 MB, p7 (accelerator-microbenchmarks, hbm.md): 3.2 "
                "TB/s read and written, which the row of 2.1 GB, not used, meets within 1 %",
            ),
            hbm_run_cycles=sourced(0.0, sources.NO_ROWS),
            hbm_turn_cost=sourced(0.0, "not fitted: the bandwidth is that of copies"),
            hbm_slow_period_s=sourced(0.0, sources.NEVER_SLOW),
            hbm_slow_load=sourced(1.0, sources.NEVER_SLOW),
            hbm_slow_s=sourced(0.0, sources.NEVER_SLOW),
            hbm_slow_share=sourced(1.0, sources.NEVER_SLOW),
            dma_latency_cycles=sourced(2200, _REFIT),
            dma_issue_cycles=sourced(0, TUNING_CACHE),
            dma_wait_cycles=sourced(0, TUNING_CACHE),
            branch_delay_slots=sourced(6, LISTING),
            granule_bytes=sourced(32, LISTING),
            hbm_address_bytes=sourced(32, LISTING),
            hbm_pointer_bytes=sourced(32, LISTING),
            vmem_address_bytes=sourced(32, LISTING),
        ),
        sparse_core=SparseCoreModel(
            cores_per_device=sourced(2, sources.JAX_TABLE),
            tiles_per_core=sourced(16, sources.JAX_TABLE),
            lanes=sourced(16, sources.JAX_TABLE),
            clock_hz=sourced(1.87e9, sources.SPARSE_CLOCK),
            stream_bytes_per_s=sourced(
                72.6e9,
                "fitted to one published time, 4.05 ms for 4,194,304 rows of 512 bytes by the 16 tiles of each core "
                "(JAX's pages on SparseCores), with the other constants as they are; it is 33 bytes a cycle of the "
                "peak clock",
            ),
            stream_latency_cycles=sourced(1950, sources.SPARSE_LATENCY),
            index_cycles=sourced(1.0, sources.SPARSE_INDICES),
        ),
        links=replace(
            V5P_LINKS,
            bytes_per_s=sourced(90e9, sources.LINK_RATE),
            hop_s=sourced(
                1.2e-6,
                "fitted to published all-gathers of 256 KiB and 1 MiB a device over 4 chips, which take 4 hops one "
                "after the other, and rounded; those of 4 to 64 MiB, and a sum over 32 devices with 40 hops one "
                "after the other, were known but not fitted to",
            ),
            die_bytes_per_s=sourced(
                540e9, "Google Cloud TPU documentation, TPU7x: six times as fast as a link between chips"
            ),
            die_hop_s=sourced(0.6e-6, "not known: that between chips of v5p and v6e"),
        ),
        step_estimate=sourced(
            StepEstimate(
                fill_cycles=142,
                drain_cycles_per_row=0.136,
                step_cycles=50,
                weight_cycles=32,
                weight_gap_cycles=12.6,
                bundles_per_cycle=0.46,
                bundles_per_register=0.7,
                bundles_per_made_register=1.8,
                highest_bundles=2.2,
                most_summed_rows=1024,
                unsummed_bundles=1.65,
            ),
            sources.PROFILED_STEP_ESTIMATE,
        ),
        code_costs=sources.CODE_COSTS,
        cloud=sourced(
            NotOffered(
                reason="Google Cloud gives TPU7x by Compute Engine and GKE only, not by the Cloud TPU API",
                instructions_url="https://cloud.google.com/compute/docs/tpus",
            ),
            'https://cloud.google.com/tpu/docs/create-tpu-vm: "The Cloud TPU API is not supported on TPU7x and later '
            'TPU versions."',
        ),
        clock_states=(_DEFAULT_STATE, _HIGHEST_STATE),
    )
)
