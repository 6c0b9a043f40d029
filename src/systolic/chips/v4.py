"""TPU v4: two cores, an older encoding of addresses, and copies that no published time has checked: v5p's."""

from dataclasses import replace

from systolic.chips import sources
from systolic.chips.arithmetic import DotOperands
from systolic.chips.sourced import sourced, with_sources
from systolic.chips.sources import DOCS, LISTING
from systolic.chips.v5p import V5P, V5P_LINKS

_COMPILER = sources.compiler("v4:2x2x1")
_PEAK = "published peak: 275 Tflop/s = 2 cores x 4 MXU x 128 x 128 x 2 x 1.05 GHz"
_V5P_VALUE = "not fitted, no published rows: the v5p value"

V4 = with_sources(
    replace(
        V5P,
        name=sourced("v4", DOCS),
        title=sourced("TPU v4", DOCS),
        device_kind=sourced("TPU v4", _COMPILER),
        topology=sourced("v4:2x2x1", _COMPILER),
        ring_topology=sourced("v4:2x2x1", sources.RING),
        topology_config=sourced("megacore", _COMPILER),
        hbm_bytes_per_chip=sourced(32 * 2**30, DOCS),
        hbm_bytes_per_s_per_chip=sourced(1228e9, DOCS),
        ici_bytes_per_s_per_chip=sourced(600e9, f"{DOCS}: 2400 Gb/s in each direction"),
        host_bytes_per_s=sourced(16e9, "jax-ml/scaling-book, tpus.md: 16 GB/s each way"),
        vmem_bytes_per_core=sourced(16 * 2**20, _COMPILER),
        usable_vmem_bytes_per_core=sourced(16 * 2**20, _COMPILER),
        scoped_vmem_bytes=sourced(16 * 2**20, _COMPILER),
        usable_smem_bytes_per_core=sourced(
            2**20 - 2**10, f"{_COMPILER}; 261,888 scalars of 32 bits fit, 262,144 do not"
        ),
        peak_ops_per_s_per_chip=sourced({"float32": 275e12, "bfloat16": 275e12}, DOCS),
        peak_clock_hz=sourced(1.05e9, _PEAK),
        emulated_dtypes=sourced({}, LISTING),
        dot_operands=sourced(
            DotOperands(
                floats=frozenset({"float32", "bfloat16"}),
                integers=frozenset({"int4", "int8", "int16", "int32"}),
                integer_pairs=frozenset(),
                converts=False,
                exact_partners=frozenset({"int4", "int8", "int16", "int32", "float32"}),
            ),
            sources.DOTS,
        ),
        unpacks_bytes=sourced(False, "listings of libtpu 0.0.42.1: 1024 weights of int8 take seven cycles"),
        machine=replace(
            V5P.machine,
            clock_hz=sourced(1.05e9, _PEAK),
            mxu_count=sourced(4, _PEAK),
            mxu_rows_per_cycle=sourced({"f32": 1.0, "bf16": 1.0}, _PEAK),
            result_latency_cycles=sourced(31, sources.POPS),
            weight_push_cycles=sourced(0.0, "not fitted: no published rows"),
            matmul_queue_depth=sourced(V5P.machine.matmul_queue_depth, _V5P_VALUE),
            lane_move_cycles=sourced(0, sources.NO_ROWS),
            hbm_bytes_per_s=sourced(1.06e12, _V5P_VALUE),
            dma_latency_cycles=sourced(V5P.machine.dma_latency_cycles, _V5P_VALUE),
            dma_issue_cycles=sourced(V5P.machine.dma_issue_cycles, _V5P_VALUE),
            dma_wait_cycles=sourced(V5P.machine.dma_wait_cycles, _V5P_VALUE),
            branch_delay_slots=sourced(1, LISTING),
            granule_bytes=sourced(512, LISTING),
            hbm_address_bytes=sourced(512, LISTING),
            hbm_pointer_bytes=sourced(512, LISTING),
            vmem_address_bytes=sourced(512, LISTING),
        ),
        sparse_core=sourced(None, "its SparseCores are not simulated: nothing hands them work"),
        links=replace(
            V5P_LINKS,
            bytes_per_s=sourced(45e9, sources.LINK_RATE),
            hop_s=sourced(0.6e-6, _V5P_VALUE),
            signal_chip_bit=sourced(18, LISTING),
            copy_remote_bit=sourced(15, LISTING),
        ),
        # The API counts cores, and the smallest machine has four chips.
        cloud=sources.cloud_offer("v4-8", "tpu-ubuntu2204-base"),
    )
)
