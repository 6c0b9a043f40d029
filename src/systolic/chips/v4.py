"""TPU v4."""

from systolic.chips.arithmetic import DotOperands
from systolic.chips.chip import BenchBars, Chip, CloudOffer, MachineModel
from systolic.chips.links import Links
from systolic.chips.v5e import V5E

_DOCS = "Google Cloud TPU documentation, system architecture pages, as of 2026"
_COMPILER = "libtpu 0.0.42.1: v4:2x2x1 compiles as this device kind; VMEM limits as its refusals name them"
_LISTING = "final bundle listings of libtpu 0.0.42.1: instruction counts of products of known size"
_PEAK = "published peak: 275 Tflop/s = 2 cores x 4 MXU x 128 x 128 x 2 x 1.05 GHz"
_FIT = "not fitted, no published rows: the v5p value"
_POPS = (
    "the smallest distance at which the compiler pops a bfloat16 result, in products by XLA and by Pallas kernels: it "
    "schedules by a latency of its own, which is no longer than this"
)
_NO_RUNS = "no published row shows it"
_DOTS = (
    "all 121 pairs of eleven dtypes, each with float32, int32 and bfloat16 sums and at both precisions, compiled in a "
    "128 × 256 × 128 product with libtpu 0.0.42.1"
)
_ESTIMATE = "not fitted: it has v5e's matrix units, and takes its numbers"
_CLOUD = (
    "accelerator type: the page of this TPU version beneath "
    "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm; runtime version: "
    "https://cloud.google.com/tpu/docs/runtimes, the one for JAX"
)
_ASKED = "asked of this package's kernels; docs/matmul.md names what misses it"
_LINK_RATE = "jax-ml/scaling-book, tpus.md: one way"
_HOP = "not fitted, no published rows: the v5p value"
_WRAP = "jax-ml/scaling-book, tpus.md: wrap-around is by optical switches, which only cubes of 4 x 4 x 4 chips have"
_ONE_DEVICE = "a chip is one device"

V4 = Chip(
    name="v4",
    aliases=(),
    title="TPU v4",
    device_kind="TPU v4",
    topology="v4:2x2x1",
    ring_topology="v4:2x2x1",
    topology_config="megacore",
    cores_per_chip=2,
    cores_per_device=2,
    hbm_bytes_per_chip=32 * 2**30,
    hbm_bytes_per_s_per_chip=1228e9,
    ici_bytes_per_s_per_chip=600e9,
    ici_links_per_chip=6,
    host_bytes_per_s=16e9,
    vmem_bytes_per_core=16 * 2**20,
    usable_vmem_bytes_per_core=16 * 2**20,
    scoped_vmem_bytes=16 * 2**20,
    usable_smem_bytes_per_core=2**20 - 2**10,
    peak_ops_per_s_per_chip={"float32": 275e12, "bfloat16": 275e12},
    peak_clock_hz=1.05e9,
    emulated_dtypes={},
    dot_operands=DotOperands(
        floats=frozenset({"float32", "bfloat16"}),
        integers=frozenset({"int4", "int8", "int16", "int32"}),
        integer_pairs=frozenset(),
        converts=False,
        exact_partners=frozenset({"int4", "int8", "int16", "int32", "float32"}),
    ),
    vector_bfloat16=False,
    unpacks_bytes=False,
    machine=MachineModel(
        clock_hz=1.05e9,
        mxu_count=4,
        mxu_rows=128,
        mxu_columns=128,
        mxu_rows_per_cycle={"f32": 1.0, "bf16": 1.0},
        result_latency_cycles=31,
        weight_push_cycles=0.0,
        matmul_queue_depth=4,
        hbm_bytes_per_s=1.06e12,
        hbm_run_cycles=0.0,
        dma_latency_cycles=1195,
        dma_issue_cycles=30,
        dma_wait_cycles=36,
        branch_delay_slots=1,
        granule_bytes=512,
        hbm_address_bytes=512,
        hbm_pointer_bytes=512,
        vmem_address_bytes=512,
    ),
    sparse_core=None,
    links=Links(
        dimensions=3,
        bytes_per_s=45e9,
        hop_s=0.6e-6,
        wrap_extent=4,
        wraps_alone=False,
        signal_chip_bit=18,
        copy_remote_bit=15,
    ),
    step_estimate=V5E.step_estimate,
    cloud=CloudOffer(
        accelerator_type="v4-8",  # the API counts cores, and the smallest machine has four chips
        runtime_version="tpu-ubuntu2204-base",
    ),
    seen_rows=(),
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
        "ici_bytes_per_s_per_chip": f"{_DOCS}: 2400 Gb/s in each direction",
        "ici_links_per_chip": f"{_DOCS}: a torus of three dimensions",
        "host_bytes_per_s": "jax-ml/scaling-book, tpus.md: 16 GB/s each way",
        "vmem_bytes_per_core": _COMPILER,
        "usable_vmem_bytes_per_core": _COMPILER,
        "scoped_vmem_bytes": _COMPILER,
        "usable_smem_bytes_per_core": f"{_COMPILER}; 261,888 scalars of 32 bits fit, 262,144 do not",
        "peak_ops_per_s_per_chip": _DOCS,
        "peak_clock_hz": _PEAK,
        "emulated_dtypes": _LISTING,
        "dot_operands": _DOTS,
        "vector_bfloat16": "listings of libtpu 0.0.42.1: a product of two bfloat16 vectors is unpacked to float32",
        "unpacks_bytes": "listings of libtpu 0.0.42.1: 1024 weights of int8 take seven cycles",
        "sparse_core": "its SparseCores are not simulated: nothing hands them work",
        "step_estimate": _ESTIMATE,
        "cloud": _CLOUD,
        "seen_rows": "no rows are published",
        "bars": _ASKED,
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
        "machine.mxu_rows_per_cycle": _PEAK,
        "machine.result_latency_cycles": _POPS,
        "machine.weight_push_cycles": "not fitted: no published rows",
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
