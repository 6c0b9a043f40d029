"""TPU v6e (Trillium): the instructions of v5e, with larger matrix units, vector units for bfloat16, and SparseCores."""

from dataclasses import replace

from systolic.chips import sources
from systolic.chips.chip import SparseCoreModel, StepEstimate
from systolic.chips.sourced import sourced, with_sources
from systolic.chips.sources import DOCS, LISTING
from systolic.chips.v5e import V5E, V5E_LINKS

_COMPILER = sources.compiler("v6e:2x2")
_PEAK = "published peak: 918 Tflop/s = 2 MXU x 256 x 256 x 2 x 2 rows a cycle x 1.75 GHz; int8 at twice that"
_FIT = (
    "chosen from a grid of 54 on 32 published device times of a ragged kernel (tokamax tuning cache) and on XLA's 4096³"
    " and 8192³, all in view; fitted to half of the ragged rows, such constants leave the other half 3.4 % off (median)"
)
_HBM = (
    "with the other: programs that only read or only write at a time (XLA's attention, gated linear units of four "
    "dimensions) show 1.46 to 1.49 TB/s in published device times, and those that read and write as much (other gated "
    "linear units) 1.40; chosen by hand among four pairs beside 21 such times below 11 ms (tokamax, the half in view)"
)
_SLOW = (
    "no cause is known. Of programs that keep HBM busy, those of 10.5 ms take what their bytes say, and from 14 ms on "
    "they take 2 ms more for every 11 ms. Period, time and share were chosen by hand among ten sets beside 17 "
    "published device times of 10 to 120 ms (tokamax, the half in view), and rounded; the load lies between programs "
    "that keep HBM busy for 73 to 78 % of the time and are not slow, and those from 84 % on, some held out"
)
_COPIES = (
    "what XLA's collectives show (an all-reduce of 70,202 small copies over 256 chips: simulated 4,579 µs, published "
    "4,537; 8,107 with 60), and near v5p's 30 and 36; tokamax' ragged and loss kernels agree as well with it as with 60"
)

V6E = with_sources(
    replace(
        V5E,
        name=sourced("v6e", DOCS),
        aliases=sourced(("trillium",), DOCS),
        title=sourced("TPU v6e (Trillium)", DOCS),
        device_kind=sourced("TPU v6 lite", _COMPILER),
        topology=sourced("v6e:2x2", _COMPILER),
        ring_topology=sourced("v6e:2x4", sources.RING),
        topology_config=sourced(None, _COMPILER),
        hbm_bytes_per_chip=sourced(32 * 2**30, DOCS),
        hbm_bytes_per_s_per_chip=sourced(1640e9, DOCS),
        ici_bytes_per_s_per_chip=sourced(800e9, DOCS),
        host_bytes_per_s=sourced(32e9, "jax-ml/scaling-book, tpus.md: 32 GB/s"),
        vmem_bytes_per_core=sourced(128 * 2**20, _COMPILER),
        usable_vmem_bytes_per_core=sourced(128 * 2**20 - 64 * 2**10, _COMPILER),
        scoped_vmem_bytes=sourced(32 * 2**20, _COMPILER),
        usable_smem_bytes_per_core=sourced(2**20 - 2 * 2**10, sources.smem("v6e:2x2")),
        peak_ops_per_s_per_chip=sourced(
            {"float32": 918e12, "bfloat16": 918e12, "int8": 1836e12, "float8_e5m2": 918e12},
            V5E.sources["peak_ops_per_s_per_chip"],
        ),
        peak_clock_hz=sourced(1.75e9, _PEAK),
        dot_operands=sourced(V5E.dot_operands, f"{sources.DOTS}: as on v5e"),
        vector_bfloat16=sourced(True, sources.VECTOR_BFLOAT16),
        machine=replace(
            V5E.machine,
            clock_hz=sourced(1.75e9, _PEAK),
            mxu_count=sourced(2, _PEAK),
            mxu_rows=sourced(256, LISTING),
            mxu_columns=sourced(256, LISTING),
            mxu_rows_per_cycle=sourced(
                {"f32": 2.0, "bf16": 2.0, "s8": 4.0, "s4": 8.0, "f8": 2.0},
                f"{_PEAK}; int4 at twice int8: {sources.INT4}",
            ),
            result_latency_cycles=sourced(106, sources.POPS),
            weight_push_cycles=sourced(
                1.5,
                "together with the copies' constants; the listings push a register of weights every four cycles beside "
                "rows, as if that cost nothing, while published times of products grow with the pushes they make",
            ),
            matmul_queue_depth=sourced(4, "fitted earlier, to ragged rows of that cache"),
            lane_move_cycles=sourced(4, sources.LANE_MOVES),
            hbm_bytes_per_s=sourced(1.488e12, _HBM),
            hbm_run_cycles=sourced(0.2, _FIT),
            hbm_turn_cost=sourced(0.08, _HBM),
            hbm_slow_period_s=sourced(11.2e-3, _SLOW),
            hbm_slow_load=sourced(0.8, _SLOW),
            hbm_slow_s=sourced(4e-3, _SLOW),
            hbm_slow_share=sourced(0.5, _SLOW),
            dma_latency_cycles=sourced(1350, _FIT),
            dma_issue_cycles=sourced(30, _COPIES),
            dma_wait_cycles=sourced(30, _COPIES),
            hbm_pointer_bytes=sourced(32, LISTING),
        ),
        sparse_core=SparseCoreModel(
            cores_per_device=sourced(2, sources.JAX_TABLE),
            tiles_per_core=sourced(16, sources.JAX_TABLE),
            lanes=sourced(8, sources.JAX_TABLE),
            clock_hz=sourced(1.75e9, sources.SPARSE_CLOCK),
            stream_bytes_per_s=sourced(56e9, sources.SPARSE_STREAMS),
            stream_latency_cycles=sourced(997, sources.SPARSE_LATENCY),
            index_cycles=sourced(1.0, sources.SPARSE_INDICES),
        ),
        links=replace(
            V5E_LINKS,
            bytes_per_s=sourced(92.8e9, sources.FITTED_LINKS),
            hop_s=sourced(0.6e-6, sources.FITTED_LINKS),
            route_entries=sourced(None, LISTING),
        ),
        step_estimate=sourced(
            StepEstimate(
                fill_cycles=147,
                drain_cycles_per_row=0.112,
                step_cycles=105,
                weight_cycles=32,
                weight_gap_cycles=30.4,
                bundles_per_cycle=1.0,
                bundles_per_register=0.0,
                bundles_per_made_register=0.4,
                highest_bundles=1.2,
                most_summed_rows=None,
                unsummed_bundles=1.0,
            ),
            sources.PROFILED_STEP_ESTIMATE,
        ),
        # The API counts chips.
        cloud=sources.cloud_offer("v6e-1", "v2-alpha-tpuv6e"),
    )
)
