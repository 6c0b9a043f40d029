"""TPU v5e."""

from systolic.chips import sources
from systolic.chips.arithmetic import DotOperands
from systolic.chips.chip import Chip, MachineModel, StepEstimate
from systolic.chips.links import Links
from systolic.chips.sourced import sourced, with_sources
from systolic.chips.sources import DOCS, LISTING

_COMPILER = sources.compiler("v5e:2x2")
_PEAK = "published peak: 197 Tflop/s = 4 MXU x 128 x 128 x 2 x 1.5 GHz; int8 at twice that"
_FIT = f"{sources.TUNING_CACHE}; the latency to published wall clock of dense 128³ tiles (JAX's matmul notebook)"

V5E_LINKS = Links(
    dimensions=sourced(2, DOCS),
    bytes_per_s=sourced(45e9, sources.LINK_RATE),
    hop_s=sourced(0.6e-6, "not fitted, no published rows: that of v5p and v6e"),
    wrap_extent=sourced(16, sources.WRAP_OF_16),
    wraps_alone=sourced(True, sources.WRAP_OF_16),
    signal_chip_bit=sourced(17, LISTING),
    copy_remote_bit=sourced(14, LISTING),
    route_entries=sourced(16, "seen in listings: up to 16 chips go by number, 4x8 to 16x16 by four bits of a table"),
    die_bytes_per_s=sourced(None, sources.CHIP_IS_ONE_DEVICE),
    die_hop_s=sourced(None, sources.CHIP_IS_ONE_DEVICE),
)
V5E = with_sources(
    Chip(
        name=sourced("v5e", DOCS),
        aliases=sourced(("v5litepod",), DOCS),
        title=sourced("TPU v5e", DOCS),
        device_kind=sourced("TPU v5 lite", _COMPILER),
        topology=sourced("v5e:2x2", _COMPILER),
        ring_topology=sourced("v5e:2x4", sources.RING),
        topology_config=sourced(None, _COMPILER),
        cores_per_chip=sourced(1, DOCS),
        cores_per_device=sourced(1, DOCS),
        hbm_bytes_per_chip=sourced(16 * 2**30, DOCS),
        hbm_bytes_per_s_per_chip=sourced(819e9, DOCS),
        ici_bytes_per_s_per_chip=sourced(400e9, DOCS),
        ici_links_per_chip=sourced(4, sources.TORUS_2D),
        host_bytes_per_s=sourced(15e9, "jax-ml/scaling-book, tpus.md: typically 1.5e10 bytes a second and chip"),
        vmem_bytes_per_core=sourced(128 * 2**20, _COMPILER),
        usable_vmem_bytes_per_core=sourced(128 * 2**20, _COMPILER),
        scoped_vmem_bytes=sourced(16 * 2**20, _COMPILER),
        usable_smem_bytes_per_core=sourced(2**20 - 2 * 2**10, sources.smem("v5e:2x2")),
        peak_ops_per_s_per_chip=sourced(
            {"float32": 197e12, "bfloat16": 197e12, "int8": 394e12, "float8_e5m2": 197e12},
            f"{DOCS}; float8_e5m2, which is native, at the rate of bfloat16: {LISTING}",
        ),
        peak_clock_hz=sourced(1.5e9, _PEAK),
        emulated_dtypes=sourced({"float8_e4m3fn": "bfloat16"}, LISTING),
        dot_operands=sourced(
            DotOperands(
                floats=frozenset({"float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"}),
                integers=frozenset({"int4", "int8", "int16", "int32"}),
                integer_pairs=frozenset({"int4", "int8"}),
                converts=False,
                exact_partners=frozenset({"int4", "int8", "int16", "int32", "float32"}),
            ),
            sources.DOTS,
        ),
        vector_bfloat16=sourced(False, sources.NO_VECTOR_BFLOAT16),
        unpacks_bytes=sourced(True, sources.UNPACKS_BYTES),
        moves_arguments=sourced(False, sources.MOVED_ARGUMENTS),
        machine=MachineModel(
            clock_hz=sourced(1.5e9, _PEAK),
            mxu_count=sourced(4, _PEAK),
            mxu_rows=sourced(128, LISTING),
            mxu_columns=sourced(128, LISTING),
            mxu_rows_per_cycle=sourced(
                {"f32": 1.0, "bf16": 1.0, "s8": 2.0, "s4": 4.0, "f8": 1.0},
                f"{_PEAK}; int4 at twice int8: {sources.INT4}",
            ),
            result_latency_cycles=sourced(38, sources.POPS),
            weight_push_cycles=sourced(0.0, "not fitted: `systolic validate` prints how near its times come without"),
            matmul_queue_depth=sourced(4, _FIT),
            lane_move_cycles=sourced(0, sources.NO_ROWS),
            hbm_bytes_per_s=sourced(0.70e12, _FIT),
            hbm_run_cycles=sourced(0.0, sources.NO_ROWS),
            hbm_turn_cost=sourced(0.0, sources.NO_ROWS),
            hbm_slow_period_s=sourced(0.0, sources.NO_ROWS),
            hbm_slow_load=sourced(1.0, sources.NO_ROWS),
            hbm_slow_s=sourced(0.0, sources.NO_ROWS),
            hbm_slow_share=sourced(1.0, sources.NO_ROWS),
            dma_latency_cycles=sourced(740, _FIT),
            dma_issue_cycles=sourced(0, _FIT),
            dma_wait_cycles=sourced(0, _FIT),
            branch_delay_slots=sourced(4, LISTING),
            granule_bytes=sourced(32, LISTING),
            hbm_address_bytes=sourced(32, LISTING),
            hbm_pointer_bytes=sourced(512, LISTING),
            vmem_address_bytes=sourced(32, LISTING),
        ),
        sparse_core=sourced(None, "it has none"),
        links=V5E_LINKS,
        step_estimate=sourced(
            StepEstimate(
                fill_cycles=93,
                drain_cycles_per_row=0.004,
                step_cycles=149,
                weight_cycles=64,
                weight_gap_cycles=1.5,
                bundles_per_cycle=0.86,
                bundles_per_register=0.02,
                bundles_per_made_register=0.2,
                highest_bundles=1.15,
                most_summed_rows=None,
                unsummed_bundles=1.0,
            ),
            sources.STEP_ESTIMATE,
        ),
        code_costs=sources.CODE_COSTS,
        # The API counts chips.
        cloud=sources.cloud_offer("v5litepod-1", "v2-alpha-tpuv5-lite"),
    )
)
