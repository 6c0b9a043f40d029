"""TPU v6e (Trillium)."""

from systolic.chips.chip import BenchBars, Chip, CloudOffer, MachineModel, SeenRows, SparseCoreModel, StepEstimate
from systolic.chips.links import Links
from systolic.chips.v5e import V5E

_DOCS = "Google Cloud TPU documentation, system architecture pages, as of 2026"
_COMPILER = "libtpu 0.0.42.1: v6e:2x2 compiles as this device kind; VMEM limits as its refusals name them"
_LISTING = "final bundle listings of libtpu 0.0.42.1: instruction counts of products of known size"
_PEAK = "published peak: 918 Tflop/s = 2 MXU x 256 x 256 x 2 x 2 rows a cycle x 1.75 GHz; int8 at twice that"
_FIT = (
    "chosen from a grid of 54 on 32 published device times of a ragged kernel (tokamax tuning cache) and on XLA's 4096³"
    " and 8192³, all in view; fitted to half of the ragged rows, such constants leave the other half 3.4 % off (median)"
)
_DEPTH = "fitted earlier, to ragged rows of that cache"
_PUSHES = (
    "together with the copies' constants; the listings push a register of weights every four cycles beside rows, as if "
    "that cost nothing, while published times of products grow with the pushes they make"
)
_POPS = (
    "the smallest distance at which the compiler pops a bfloat16 result, in products by XLA and by Pallas kernels: it "
    "schedules by a latency of its own, which is no longer than this"
)
_INT4 = "int4_ops_per_second of JAX's own table of chips (jax.experimental.pallas.tpu.get_tpu_info)"
_DOTS = (
    "all 121 pairs of eleven dtypes, each with float32, int32 and bfloat16 sums and at both precisions, compiled in a "
    "128 × 256 × 128 product with libtpu 0.0.42.1: as on v5e"
)
_ESTIMATE = (
    "times: fitted to 98 simulated bfloat16 kernels, of the products that benchmarks/step_estimate.py calls fitted, by "
    "their mean error in per cent; code: set by hand beside those kernels and the ones of the suites"
)
_TILES = "JAX's own table of chips (jax.experimental.pallas.tpu.get_tpu_info)"
_SPARSE_CLOCK = "assumed: the TensorCore's; none is published, and what was checked hardly feels it"
_STREAMS = "assumed: 32 bytes a cycle, about what a published time shows on v7x; no published time checks it here"
_STREAM_LATENCY = "assumed: that of the TensorCore's copies, which was fitted"
_INDICES = "assumed: one granule of 32 bytes a cycle; no row was checked that would show more"
_CLOUD = (
    "accelerator type: the page of this TPU version beneath "
    "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm; runtime version: "
    "https://cloud.google.com/tpu/docs/runtimes, the one for JAX"
)
_ASKED = "asked of this package's kernels; docs/matmul.md names what misses it"
_LINK_RATE = _HOP = (
    "fitted with the other, one number of each for v5p and v6e, to six of the 13 published collectives: ppermute of"
    " 16 KiB, 1 MiB and 64 MiB on either, with devices in their default order, which no row says"
)
_WRAP = "jax-ml/scaling-book, tpus.md: only axes of 16 chips wrap, each by itself"
_ONE_DEVICE = "a chip is one device"

V6E = Chip(
    name="v6e",
    aliases=("trillium",),
    title="TPU v6e (Trillium)",
    device_kind="TPU v6 lite",
    topology="v6e:2x2",
    ring_topology="v6e:2x4",
    topology_config=None,
    cores_per_chip=1,
    cores_per_device=1,
    hbm_bytes_per_chip=32 * 2**30,
    hbm_bytes_per_s_per_chip=1640e9,
    ici_bytes_per_s_per_chip=800e9,
    ici_links_per_chip=4,
    host_bytes_per_s=32e9,
    vmem_bytes_per_core=128 * 2**20,
    usable_vmem_bytes_per_core=128 * 2**20 - 64 * 2**10,
    scoped_vmem_bytes=32 * 2**20,
    usable_smem_bytes_per_core=2**20 - 2 * 2**10,
    peak_ops_per_s_per_chip={
        "float32": 918e12,
        "bfloat16": 918e12,
        "int8": 1836e12,
        "float8_e5m2": 918e12,
    },
    peak_clock_hz=1.75e9,
    emulated_dtypes={"float8_e4m3fn": "bfloat16"},
    dot_operands=V5E.dot_operands,
    vector_bfloat16=True,
    unpacks_bytes=True,
    machine=MachineModel(
        clock_hz=1.75e9,
        mxu_count=2,
        mxu_rows=256,
        mxu_columns=256,
        mxu_rows_per_cycle={"f32": 2.0, "bf16": 2.0, "s8": 4.0, "s4": 8.0, "f8": 2.0},
        result_latency_cycles=106,
        weight_push_cycles=1.5,
        matmul_queue_depth=4,
        hbm_bytes_per_s=1.48e12,
        hbm_run_cycles=0.2,
        dma_latency_cycles=1350,
        dma_issue_cycles=60,
        dma_wait_cycles=60,
        branch_delay_slots=4,
        granule_bytes=32,
        hbm_address_bytes=32,
        hbm_pointer_bytes=32,
        vmem_address_bytes=32,
    ),
    sparse_core=SparseCoreModel(
        cores_per_device=2,
        tiles_per_core=16,
        clock_hz=1.75e9,
        stream_bytes_per_s=56e9,
        stream_latency_cycles=997,
        index_cycles=1.0,
    ),
    links=Links(
        dimensions=2,
        bytes_per_s=92.8e9,
        hop_s=0.6e-6,
        wrap_extent=16,
        wraps_alone=True,
        signal_chip_bit=17,
        copy_remote_bit=14,
    ),
    step_estimate=StepEstimate(
        fill_cycles=127,
        drain_cycles_per_row=0.067,
        step_cycles=13,
        weight_cycles=32,
        weight_gap_cycles=7.2,
        bundles_per_cycle=1.0,
        bundles_per_register=0.0,
        bundles_per_made_register=0.4,
        highest_bundles=1.2,
        most_summed_rows=None,
        unsummed_bundles=1.0,
    ),
    cloud=CloudOffer(
        accelerator_type="v6e-1",  # the API counts chips
        runtime_version="v2-alpha-tpuv6e",
    ),
    seen_rows=(
        SeenRows(op="xla", sizes=(4096, 4096, 4096)),
        SeenRows(op="dot_general", sizes=(8192, 8192, 8192)),
        SeenRows(op="ppermute (ring neighbour)"),
    ),
    bars=BenchBars(
        least_share_of_limit=0.92,
        least_layers_ratio={"few tokens": 1.08, "many tokens": 1.04, "gated": 1.05},
        least_moe_share={
            "few rows": 0.97,
            "hundreds of rows": 0.92,
            "thousands of rows": 0.92,
            "dlhs": 0.85,
            "drhs": 0.80,
        },
        least_moe_ratio={"hundreds of rows": 1.13, "dlhs": 1.3, "drhs": 1.3},
        least_moe_xla_ratio=1.8,
        least_quantized_ratio={
            "int4/128 decode": 2.5,
            "int8/128 decode": 2.5,
            "int4 decode": 1.2,
            "e4m3 decode": 1.3,
            "w8a8 prefill": 1.05,
        },
        least_quantized_peer_ratio={"w8a8 decode": 1.0, "w8a8 prefill": 1.1},
    ),
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
        "ici_links_per_chip": f"{_DOCS}: a torus of two dimensions",
        "host_bytes_per_s": "jax-ml/scaling-book, tpus.md: 32 GB/s",
        "vmem_bytes_per_core": _COMPILER,
        "usable_vmem_bytes_per_core": _COMPILER,
        "scoped_vmem_bytes": _COMPILER,
        "usable_smem_bytes_per_core": f"{_COMPILER}; 261,632 scalars of 32 bits fit, 261,888 do not",
        "peak_ops_per_s_per_chip": f"{_DOCS}; float8_e5m2, which is native, at the rate of bfloat16: {_LISTING}",
        "peak_clock_hz": _PEAK,
        "emulated_dtypes": _LISTING,
        "dot_operands": _DOTS,
        "vector_bfloat16": "listings of libtpu 0.0.42.1: a product of two bfloat16 vectors is one instruction",
        "unpacks_bytes": "simulated: 16 rows by int8 weights of 4096 × 14336 take little longer than HBM does",
        "step_estimate": _ESTIMATE,
        "cloud": _CLOUD,
        "seen_rows": "products of XLA, looked at while the constants of copies and pushes were chosen, and ppermute, "
        "while those of links were",
        "bars": _ASKED,
        "sparse_core.cores_per_device": _TILES,
        "sparse_core.tiles_per_core": _TILES,
        "sparse_core.clock_hz": _SPARSE_CLOCK,
        "sparse_core.stream_bytes_per_s": _STREAMS,
        "sparse_core.stream_latency_cycles": _STREAM_LATENCY,
        "sparse_core.index_cycles": _INDICES,
        "links.dimensions": _DOCS,
        "links.bytes_per_s": _LINK_RATE,
        "links.hop_s": _HOP,
        "links.wrap_extent": _WRAP,
        "links.wraps_alone": _WRAP,
        "links.signal_chip_bit": _LISTING,
        "links.copy_remote_bit": _LISTING,
        "links.route_entries": _LISTING,
        "links.die_bytes_per_s": _ONE_DEVICE,
        "links.die_hop_s": _ONE_DEVICE,
        "machine.clock_hz": _PEAK,
        "machine.mxu_count": _PEAK,
        "machine.mxu_rows": _LISTING,
        "machine.mxu_columns": _LISTING,
        "machine.mxu_rows_per_cycle": f"{_PEAK}; int4 at twice int8: {_INT4}",
        "machine.result_latency_cycles": _POPS,
        "machine.weight_push_cycles": _PUSHES,
        "machine.matmul_queue_depth": _DEPTH,
        "machine.hbm_bytes_per_s": _FIT,
        "machine.hbm_run_cycles": _FIT,
        "machine.dma_latency_cycles": _FIT,
        "machine.dma_issue_cycles": _FIT,
        "machine.dma_wait_cycles": _FIT,
        "machine.branch_delay_slots": _LISTING,
        "machine.granule_bytes": _LISTING,
        "machine.hbm_address_bytes": _LISTING,
        "machine.hbm_pointer_bytes": _LISTING,
        "machine.vmem_address_bytes": _LISTING,
    },
)
