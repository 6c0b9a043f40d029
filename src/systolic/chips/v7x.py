"""TPU7x (Ironwood)."""

from systolic.chips.arithmetic import DotOperands
from systolic.chips.chip import (
    BenchBars,
    Chip,
    ClockState,
    MachineModel,
    NotOffered,
    SeenRows,
    SparseCoreModel,
    StepEstimate,
)
from systolic.chips.links import Links

_DOCS = "Google Cloud TPU documentation, system architecture pages, as of 2026"
_COMPILER = "libtpu 0.0.42.1: tpu7x:2x2x1 compiles as this device kind; VMEM limits as its refusals name them"
_LISTING = "final bundle listings of libtpu 0.0.42.1: instruction counts of products of known size"
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
_FIT = "fitted to published device times of a foreign ragged kernel compiled with the same tiles (tokamax tuning cache)"
_COPIES = (
    "the slope of published copies between 34 and 134 MB, p7 (accelerator-microbenchmarks, hbm.md): 3.2 TB/s read and "
    "written, which the row of 2.1 GB, not used, meets within 1 %"
)
_REFIT = (
    "with that bandwidth, fitted to half of 30 published device times of a ragged kernel (tokamax tuning cache), and "
    "rounded; the other half is 2.2 % off (median), and XLA's products, which were not fitted to, by up to 4.1 %"
)
_POPS = (
    "the smallest distance at which the compiler pops a bfloat16 result, in products by XLA and by Pallas kernels: it "
    "schedules by a latency of its own, which is no longer than this"
)
_NO_RUNS = "no published row shows it"
_DOTS = (
    "all 121 pairs of eleven dtypes, each with float32, int32 and bfloat16 sums and at both precisions, compiled in a "
    "128 × 256 × 128 product with libtpu 0.0.42.1"
)
_ESTIMATE = (
    "times: fitted to 98 simulated bfloat16 kernels, of the products that benchmarks/step_estimate.py calls fitted, by "
    "their mean error in per cent; code: set by hand beside those kernels and the ones of the suites"
)
_TILES = "JAX's own table of chips (jax.experimental.pallas.tpu.get_tpu_info)"
_SPARSE_CLOCK = "assumed: the TensorCore's; none is published, and what was checked hardly feels it"
_STREAMS = (
    "fitted to one published time, 4.05 ms for 4,194,304 rows of 512 bytes by the 16 tiles of each core (JAX's "
    "pages on SparseCores), with the other constants as they are; it is 33 bytes a cycle of the peak clock"
)
_STREAM_LATENCY = "assumed: that of the TensorCore's copies, which was fitted"
_INDICES = "assumed: one granule of 32 bytes a cycle; no row was checked that would show more"
_CLOUD = (
    'https://cloud.google.com/tpu/docs/create-tpu-vm: "The Cloud TPU API is not supported on TPU7x and later TPU '
    'versions."'
)
_ASKED = "asked of this package's kernels; docs/matmul.md names what misses it"
_LINK_RATE = "jax-ml/scaling-book, tpus.md: one way"
_HOP = "not fitted: that of v5p and v6e"
_DIE = "Google Cloud TPU documentation, TPU7x: six times as fast as a link between chips"
_DIE_HOP = "not known: that between chips"
_SPARSE_COLLECTIVES = (
    "libtpu 0.0.42.1: these keep collectives on the TensorCore, whose listings are executed; by default they go to "
    "SparseCores"
)
_WRAP = "jax-ml/scaling-book, tpus.md: wrap-around is by optical switches, which only cubes of 4 x 4 x 4 chips have"

V7X = Chip(
    name="v7x",
    aliases=("tpu7x", "ironwood"),
    title="TPU7x (Ironwood)",
    device_kind="TPU7x",
    topology="tpu7x:2x2x1",
    ring_topology="tpu7x:2x2x1",
    topology_config=None,
    cores_per_chip=2,
    cores_per_device=1,
    hbm_bytes_per_chip=192 * 2**30,
    hbm_bytes_per_s_per_chip=7380e9,
    ici_bytes_per_s_per_chip=1200e9,
    ici_links_per_chip=6,
    host_bytes_per_s=16e9,
    vmem_bytes_per_core=64 * 2**20,
    usable_vmem_bytes_per_core=64 * 2**20,
    scoped_vmem_bytes=32 * 2**20,
    usable_smem_bytes_per_core=2**20 - 2 * 2**10,
    peak_ops_per_s_per_chip={"float32": 2307e12, "bfloat16": 2307e12, "float8_e4m3fn": 4614e12, "float8_e5m2": 4614e12},
    peak_clock_hz=2.2e9,
    emulated_dtypes={"int8": "bfloat16"},
    dot_operands=DotOperands(
        floats=frozenset({"float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"}),
        integers=frozenset({"int4", "int8", "int32"}),
        integer_pairs=frozenset({"int4", "int8"}),
        converts=True,
        exact_partners=frozenset({"float32", "int32"}),
    ),
    vector_bfloat16=True,
    unpacks_bytes=True,
    machine=MachineModel(
        clock_hz=_DEFAULT_STATE.clock_hz,
        mxu_count=2,
        mxu_rows=256,
        mxu_columns=256,
        mxu_rows_per_cycle={"f32": 2.0, "bf16": 2.0, "f8": 4.0},
        result_latency_cycles=54,
        weight_push_cycles=0.5,
        matmul_queue_depth=4,
        hbm_bytes_per_s=3.24e12,
        hbm_run_cycles=0.0,
        dma_latency_cycles=2200,
        dma_issue_cycles=0,
        dma_wait_cycles=0,
        branch_delay_slots=6,
        granule_bytes=32,
        hbm_address_bytes=32,
        hbm_pointer_bytes=32,
        vmem_address_bytes=32,
    ),
    sparse_core=SparseCoreModel(
        cores_per_device=2,
        tiles_per_core=16,
        clock_hz=1.87e9,
        stream_bytes_per_s=72.6e9,
        stream_latency_cycles=1950,
        index_cycles=1.0,
    ),
    links=Links(
        dimensions=3,
        bytes_per_s=90e9,
        hop_s=0.6e-6,
        wrap_extent=4,
        wraps_alone=False,
        signal_chip_bit=17,
        copy_remote_bit=14,
        die_bytes_per_s=540e9,
        die_hop_s=0.6e-6,
    ),
    step_estimate=StepEstimate(
        fill_cycles=75,
        drain_cycles_per_row=0.226,
        step_cycles=58,
        weight_cycles=32,
        weight_gap_cycles=3.6,
        bundles_per_cycle=0.46,
        bundles_per_register=0.7,
        bundles_per_made_register=1.8,
        highest_bundles=2.2,
        most_summed_rows=1024,
        unsummed_bundles=1.65,
    ),
    cloud=NotOffered(
        reason="Google Cloud gives TPU7x by Compute Engine and GKE only, not by the Cloud TPU API",
        instructions_url="https://cloud.google.com/compute/docs/tpus",
    ),
    seen_rows=tuple(
        SeenRows(op="dot_general", sizes=sizes)
        for sizes in ((8192, 8192, 8192), (8192, 12288, 12288), (8192, 16384, 16384), (8192, 18432, 16384))
    ),
    bars=BenchBars(
        least_share_of_limit=0.92,
        least_layers_ratio={"few tokens": 1.06, "many tokens": 1.03, "gated": 1.05},
        least_moe_share={
            "few rows": 0.97,
            "hundreds of rows": 0.88,
            "thousands of rows": 0.88,
            "dlhs": 0.85,
            "drhs": 0.80,
        },
        least_moe_ratio={"hundreds of rows": 1.2, "dlhs": 1.3, "drhs": 1.3},
        least_moe_xla_ratio=1.8,
        least_quantized_ratio={
            "int4/128 decode": 2.5,
            "int8/128 decode": 2.5,
            "int4 decode": 1.5,
            "e4m3 decode": 1.1,
            "fp8 decode": 1.15,
        },
        least_quantized_peer_ratio={"fp8 decode": 1.15},
    ),
    clock_states=(_DEFAULT_STATE, _HIGHEST_STATE),
    slice_flags={
        f"xla_tpu_enable_sparse_core_collective_offload_{work}": "false"
        for work in ("all_gather", "all_reduce", "reduce_scatter")
    },
    sources={
        "name": _DOCS,
        "aliases": _DOCS,
        "title": _DOCS,
        "device_kind": _COMPILER,
        "topology": _COMPILER,
        "ring_topology": "libtpu 0.0.42.1 compiles for it; two chips wide",
        "topology_config": _COMPILER,
        "cores_per_chip": _DOCS,
        "cores_per_device": _DOCS,
        "hbm_bytes_per_chip": _DOCS,
        "hbm_bytes_per_s_per_chip": _DOCS,
        "ici_bytes_per_s_per_chip": _DOCS,
        "ici_links_per_chip": f"{_DOCS}: a torus of three dimensions",
        "host_bytes_per_s": "assumed: half of a chip's, which is taken to have that of v6e; none was found",
        "vmem_bytes_per_core": _COMPILER,
        "usable_vmem_bytes_per_core": _COMPILER,
        "scoped_vmem_bytes": _COMPILER,
        "usable_smem_bytes_per_core": f"{_COMPILER}; 261,632 scalars of 32 bits fit, 261,888 do not",
        "peak_ops_per_s_per_chip": _DOCS,
        "peak_clock_hz": _PEAK,
        "emulated_dtypes": _LISTING,
        "dot_operands": _DOTS,
        "vector_bfloat16": "listings of libtpu 0.0.42.1: a product of two bfloat16 vectors is one instruction",
        "unpacks_bytes": "simulated: 16 rows by int8 weights of 4096 × 14336 take little longer than HBM does",
        "step_estimate": _ESTIMATE,
        "cloud": _CLOUD,
        "seen_rows": "those of the tuning cache, and products that were looked at when the clock of p7 was chosen",
        "bars": _ASKED,
        "sparse_core.cores_per_device": _TILES,
        "sparse_core.tiles_per_core": _TILES,
        "sparse_core.clock_hz": _SPARSE_CLOCK,
        "sparse_core.stream_bytes_per_s": _STREAMS,
        "sparse_core.stream_latency_cycles": _STREAM_LATENCY,
        "sparse_core.index_cycles": _INDICES,
        "slice_flags": _SPARSE_COLLECTIVES,
        "links.dimensions": _DOCS,
        "links.bytes_per_s": _LINK_RATE,
        "links.hop_s": _HOP,
        "links.wrap_extent": _WRAP,
        "links.wraps_alone": _WRAP,
        "links.signal_chip_bit": _LISTING,
        "links.copy_remote_bit": _LISTING,
        "links.route_entries": _LISTING,
        "links.die_bytes_per_s": _DIE,
        "links.die_hop_s": _DIE_HOP,
        "machine.clock_hz": _DEFAULT_STATE.source,
        "machine.mxu_count": _PEAK,
        "machine.mxu_rows": _LISTING,
        "machine.mxu_columns": _LISTING,
        "machine.mxu_rows_per_cycle": _PEAK,
        "machine.result_latency_cycles": _POPS,
        "machine.weight_push_cycles": _REFIT,
        "machine.matmul_queue_depth": _FIT,
        "machine.hbm_bytes_per_s": _COPIES,
        "machine.hbm_run_cycles": _NO_RUNS,
        "machine.dma_latency_cycles": _REFIT,
        "machine.dma_issue_cycles": _FIT,
        "machine.dma_wait_cycles": _FIT,
        "machine.branch_delay_slots": _LISTING,
        "machine.granule_bytes": _LISTING,
        "machine.hbm_address_bytes": _LISTING,
        "machine.hbm_pointer_bytes": _LISTING,
        "machine.vmem_address_bytes": _LISTING,
    },
)
