"""TPU v5p."""

from systolic.chips.chip import BenchBars, Chip, CloudOffer, MachineModel, SeenRows, SparseCoreModel
from systolic.chips.links import Links
from systolic.chips.v5e import V5E

_DOCS = "Google Cloud TPU documentation, system architecture pages, as of 2026"
_COMPILER = "libtpu 0.0.42.1: v5p:2x2x1 compiles as this device kind; VMEM limits as its refusals name them"
_LISTING = "final bundle listings of libtpu 0.0.42.1: instruction counts of products of known size"
_PEAK = "published peak: 459 Tflop/s = 2 cores x 4 MXU x 128 x 128 x 2 x 1.75 GHz; int8 at twice that"
_FIT = "fitted to published device times of a foreign ragged kernel compiled with the same tiles (tokamax tuning cache)"
_POPS = (
    "the smallest distance at which the compiler pops a bfloat16 result, in products by XLA and by Pallas kernels: it "
    "schedules by a latency of its own, which is no longer than this"
)
_NO_RUNS = "no published row shows it"
_INT4 = "int4_ops_per_second of JAX's own table of chips (jax.experimental.pallas.tpu.get_tpu_info)"
_DOTS = (
    "all 121 pairs of eleven dtypes, each with float32, int32 and bfloat16 sums and at both precisions, compiled in a "
    "128 × 256 × 128 product with libtpu 0.0.42.1: as on v5e"
)
_ESTIMATE = "not fitted: it has v5e's matrix units, and takes its numbers"
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
_WRAP = "jax-ml/scaling-book, tpus.md: wrap-around is by optical switches, which only cubes of 4 x 4 x 4 chips have"
_ONE_DEVICE = "a chip is one device"

V5P = Chip(
    name="v5p",
    aliases=(),
    title="TPU v5p",
    device_kind="TPU v5",
    topology="v5p:2x2x1",
    ring_topology="v5p:2x2x1",
    topology_config=None,
    cores_per_chip=2,
    cores_per_device=2,
    hbm_bytes_per_chip=95 * 2**30,
    hbm_bytes_per_s_per_chip=2765e9,
    ici_bytes_per_s_per_chip=1200e9,
    ici_links_per_chip=6,
    host_bytes_per_s=15e9,
    vmem_bytes_per_core=64 * 2**20,
    usable_vmem_bytes_per_core=64 * 2**20 - 64 * 2**10,
    scoped_vmem_bytes=16 * 2**20,
    usable_smem_bytes_per_core=2**20 - 2 * 2**10,
    peak_ops_per_s_per_chip={
        "float32": 459e12,
        "bfloat16": 459e12,
        "int8": 918e12,
        "float8_e5m2": 459e12,
    },
    peak_clock_hz=1.75e9,
    emulated_dtypes={"float8_e4m3fn": "bfloat16"},
    dot_operands=V5E.dot_operands,
    vector_bfloat16=False,
    unpacks_bytes=True,
    machine=MachineModel(
        clock_hz=1.75e9,
        mxu_count=4,
        mxu_rows=128,
        mxu_columns=128,
        mxu_rows_per_cycle={"f32": 1.0, "bf16": 1.0, "s8": 2.0, "s4": 4.0, "f8": 1.0},
        result_latency_cycles=38,
        weight_push_cycles=0.0,
        matmul_queue_depth=4,
        hbm_bytes_per_s=2.38e12,
        hbm_run_cycles=0.0,
        dma_latency_cycles=1195,
        dma_issue_cycles=30,
        dma_wait_cycles=36,
        branch_delay_slots=4,
        granule_bytes=32,
        hbm_address_bytes=32,
        hbm_pointer_bytes=32,
        vmem_address_bytes=32,
    ),
    sparse_core=SparseCoreModel(
        cores_per_device=4,
        tiles_per_core=16,
        clock_hz=1.75e9,
        stream_bytes_per_s=56e9,
        stream_latency_cycles=1195,
        index_cycles=1.0,
    ),
    links=Links(
        dimensions=3,
        bytes_per_s=92.8e9,
        hop_s=0.6e-6,
        wrap_extent=4,
        wraps_alone=False,
        signal_chip_bit=17,
        copy_remote_bit=14,
    ),
    step_estimate=V5E.step_estimate,
    cloud=CloudOffer(
        accelerator_type="v5p-8",  # the API counts cores, and the smallest machine has four chips
        runtime_version="v2-alpha-tpuv5",
    ),
    seen_rows=(SeenRows(op="ppermute (ring neighbour)"),),
    bars=BenchBars(least_share_of_limit=0.92),
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
        "host_bytes_per_s": "jax-ml/scaling-book, tpus.md: typically 1.5e10 bytes a second and chip",
        "vmem_bytes_per_core": _COMPILER,
        "usable_vmem_bytes_per_core": _COMPILER,
        "scoped_vmem_bytes": _COMPILER,
        "usable_smem_bytes_per_core": f"{_COMPILER}; 261,632 scalars of 32 bits fit, 261,888 do not",
        "peak_ops_per_s_per_chip": f"{_DOCS}; float8_e5m2, which is native, at the rate of bfloat16: {_LISTING}",
        "peak_clock_hz": _PEAK,
        "emulated_dtypes": _LISTING,
        "dot_operands": _DOTS,
        "vector_bfloat16": "listings of libtpu 0.0.42.1: a product of two bfloat16 vectors is unpacked to float32",
        "unpacks_bytes": "as v5e, whose instructions are alike",
        "step_estimate": _ESTIMATE,
        "cloud": _CLOUD,
        "seen_rows": "of ppermute, while the constants of links were chosen; besides those of the tuning cache",
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
        "machine.weight_push_cycles": "not fitted: `systolic validate` prints how near its times come without",
        "machine.matmul_queue_depth": _FIT,
        "machine.hbm_bytes_per_s": _FIT,
        "machine.hbm_run_cycles": _NO_RUNS,
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
