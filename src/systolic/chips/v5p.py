"""TPU v5p: the instructions of v5e, on two cores with SparseCores and a torus of three dimensions."""

from dataclasses import replace

from systolic.chips import sources
from systolic.chips.chip import SparseCoreModel
from systolic.chips.sourced import sourced, with_sources
from systolic.chips.sources import DOCS, LISTING, TUNING_CACHE
from systolic.chips.v5e import V5E, V5E_LINKS

_COMPILER = sources.compiler("v5p:2x2x1")
_PEAK = "published peak: 459 Tflop/s = 2 cores x 4 MXU x 128 x 128 x 2 x 1.75 GHz; int8 at twice that"

V5P_LINKS = replace(
    V5E_LINKS,
    dimensions=sourced(3, DOCS),
    bytes_per_s=sourced(92.8e9, sources.FITTED_LINKS),
    hop_s=sourced(0.6e-6, sources.FITTED_LINKS),
    wrap_extent=sourced(4, sources.WRAP_OF_CUBES),
    wraps_alone=sourced(False, sources.WRAP_OF_CUBES),
    route_entries=sourced(None, LISTING),
)
V5P = with_sources(
    replace(
        V5E,
        name=sourced("v5p", DOCS),
        aliases=sourced((), DOCS),
        title=sourced("TPU v5p", DOCS),
        device_kind=sourced("TPU v5", _COMPILER),
        topology=sourced("v5p:2x2x1", _COMPILER),
        ring_topology=sourced("v5p:2x2x1", sources.RING),
        topology_config=sourced(None, _COMPILER),
        cores_per_chip=sourced(2, DOCS),
        cores_per_device=sourced(2, DOCS),
        hbm_bytes_per_chip=sourced(95 * 2**30, DOCS),
        hbm_bytes_per_s_per_chip=sourced(2765e9, DOCS),
        ici_bytes_per_s_per_chip=sourced(1200e9, DOCS),
        ici_links_per_chip=sourced(6, sources.TORUS_3D),
        vmem_bytes_per_core=sourced(64 * 2**20, _COMPILER),
        usable_vmem_bytes_per_core=sourced(64 * 2**20 - 64 * 2**10, _COMPILER),
        scoped_vmem_bytes=sourced(16 * 2**20, _COMPILER),
        usable_smem_bytes_per_core=sourced(2**20 - 2 * 2**10, sources.smem("v5p:2x2x1")),
        peak_ops_per_s_per_chip=sourced(
            {"float32": 459e12, "bfloat16": 459e12, "int8": 918e12, "float8_e5m2": 459e12},
            V5E.sources["peak_ops_per_s_per_chip"],
        ),
        peak_clock_hz=sourced(1.75e9, _PEAK),
        dot_operands=sourced(V5E.dot_operands, f"{sources.DOTS}: as on v5e"),
        unpacks_bytes=sourced(True, "as v5e, whose instructions are alike"),
        machine=replace(
            V5E.machine,
            clock_hz=sourced(1.75e9, _PEAK),
            mxu_count=sourced(4, _PEAK),
            mxu_rows_per_cycle=sourced(V5E.machine.mxu_rows_per_cycle, f"{_PEAK}; int4 at twice int8: {sources.INT4}"),
            matmul_queue_depth=sourced(4, TUNING_CACHE),
            lane_move_cycles=sourced(8, sources.LANE_MOVES),
            hbm_bytes_per_s=sourced(2.38e12, TUNING_CACHE),
            hbm_slow_period_s=sourced(0.0, sources.NEVER_SLOW),
            dma_latency_cycles=sourced(1195, TUNING_CACHE),
            dma_issue_cycles=sourced(30, TUNING_CACHE),
            dma_wait_cycles=sourced(36, TUNING_CACHE),
            hbm_pointer_bytes=sourced(32, LISTING),
        ),
        sparse_core=SparseCoreModel(
            cores_per_device=sourced(4, sources.JAX_TABLE),
            tiles_per_core=sourced(16, sources.JAX_TABLE),
            lanes=sourced(8, sources.JAX_TABLE),
            clock_hz=sourced(1.75e9, sources.SPARSE_CLOCK),
            stream_bytes_per_s=sourced(
                17.8e9,
                "fitted to one published time, XLA's gather and sum of 8192 rows of bf16[8192,4096] in 215 µs (of "
                "tokamax' device times); of gathers that were not fitted to, 4096 rows of bf16[2048,8192] are 3 % off",
            ),
            stream_latency_cycles=sourced(1195, sources.SPARSE_LATENCY),
            index_cycles=sourced(1.0, sources.SPARSE_INDICES),
        ),
        links=V5P_LINKS,
        step_estimate=sourced(V5E.step_estimate, sources.V5E_STEP_ESTIMATE),
        # The API counts cores, and the smallest machine has four chips.
        cloud=sources.cloud_offer("v5p-8", "v2-alpha-tpuv5"),
    )
)
