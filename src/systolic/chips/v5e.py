"""TPU v5e."""

from systolic.chips.arithmetic import DotOperands
from systolic.chips.chip import BenchBars, Chip, CloudOffer, MachineModel, SeenRows, StepEstimate
from systolic.chips.links import Links

_DOCS = "Google Cloud TPU documentation, system architecture pages, as of 2026"
_COMPILER = "libtpu 0.0.42.1: v5e:2x2 compiles as this device kind; VMEM limits as its refusals name them"
_LISTING = "final bundle listings of libtpu 0.0.42.1: instruction counts of products of known size"
_PEAK = "published peak: 197 Tflop/s = 4 MXU x 128 x 128 x 2 x 1.5 GHz; int8 at twice that"
_FIT = (
    "fitted to published device times of a foreign ragged kernel compiled with the same tiles (tokamax tuning cache); "
    "the latency to published wall clock of dense 128³ tiles (JAX's matmul notebook)"
)
_POPS = (
    "the smallest distance at which the compiler pops a bfloat16 result, in products by XLA and by Pallas kernels: it "
    "schedules by a latency of its own, which is no longer than this"
)
_NO_RUNS = "no published row shows it"
_INT4 = "int4_ops_per_second of JAX's own table of chips (jax.experimental.pallas.tpu.get_tpu_info)"
_DOTS = (
    "all 121 pairs of eleven dtypes, each with float32, int32 and bfloat16 sums and at both precisions, compiled in a "
    "128 × 256 × 128 product with libtpu 0.0.42.1"
)
_ESTIMATE = (
    "times: fitted to 98 simulated bfloat16 kernels, of the products that benchmarks/step_estimate.py calls fitted, by "
    "their mean error in per cent; code: set by hand beside those kernels and the ones of the suites"
)
_CLOUD = (
    "accelerator type: the page of this TPU version beneath "
    "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm; runtime version: "
    "https://cloud.google.com/tpu/docs/runtimes, the one for JAX"
)
_ASKED = "asked of this package's kernels; docs/matmul.md names what misses it"
_LINK_RATE = "jax-ml/scaling-book, tpus.md: one way"
_HOP = "not fitted, no published rows: that of v5p and v6e"
_WRAP = "jax-ml/scaling-book, tpus.md: only axes of 16 chips wrap, each by itself"
_ONE_DEVICE = "a chip is one device"

V5E = Chip(
    name="v5e",
    aliases=("v5litepod",),
    title="TPU v5e",
    device_kind="TPU v5 lite",
    topology="v5e:2x2",
    ring_topology="v5e:2x4",
    topology_config=None,
    cores_per_chip=1,
    cores_per_device=1,
    hbm_bytes_per_chip=16 * 2**30,
    hbm_bytes_per_s_per_chip=819e9,
    ici_bytes_per_s_per_chip=400e9,
    ici_links_per_chip=4,
    host_bytes_per_s=15e9,
    vmem_bytes_per_core=128 * 2**20,
    usable_vmem_bytes_per_core=128 * 2**20,
    scoped_vmem_bytes=16 * 2**20,
    usable_smem_bytes_per_core=2**20 - 2 * 2**10,
    peak_ops_per_s_per_chip={
        "float32": 197e12,
        "bfloat16": 197e12,
        "int8": 394e12,
        "float8_e5m2": 197e12,
    },
    peak_clock_hz=1.5e9,
    emulated_dtypes={"float8_e4m3fn": "bfloat16"},
    dot_operands=DotOperands(
        floats=frozenset({"float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"}),
        integers=frozenset({"int4", "int8", "int16", "int32"}),
        integer_pairs=frozenset({"int4", "int8"}),
        converts=False,
        exact_partners=frozenset({"int4", "int8", "int16", "int32", "float32"}),
    ),
    vector_bfloat16=False,
    unpacks_bytes=True,
    machine=MachineModel(
        clock_hz=1.5e9,
        mxu_count=4,
        mxu_rows=128,
        mxu_columns=128,
        mxu_rows_per_cycle={"f32": 1.0, "bf16": 1.0, "s8": 2.0, "s4": 4.0, "f8": 1.0},
        result_latency_cycles=38,
        weight_push_cycles=0.0,
        matmul_queue_depth=4,
        hbm_bytes_per_s=0.70e12,
        hbm_run_cycles=0.0,
        dma_latency_cycles=740,
        dma_issue_cycles=0,
        dma_wait_cycles=0,
        branch_delay_slots=4,
        granule_bytes=32,
        hbm_address_bytes=32,
        hbm_pointer_bytes=512,
        vmem_address_bytes=32,
    ),
    sparse_core=None,
    links=Links(
        dimensions=2,
        bytes_per_s=45e9,
        hop_s=0.6e-6,
        wrap_extent=16,
        wraps_alone=True,
        signal_chip_bit=17,
        copy_remote_bit=14,
        route_entries=16,
    ),
    step_estimate=StepEstimate(
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
    cloud=CloudOffer(
        accelerator_type="v5litepod-1",  # the API counts chips
        runtime_version="v2-alpha-tpuv5-lite",
    ),
    seen_rows=(SeenRows(tiles=(128, 128, 128)),),
    bars=BenchBars(
        least_share_of_limit=0.95,
        least_layers_ratio={"few tokens": 1.08, "many tokens": 1.02, "gated": 1.03},
        least_moe_share={
            "few rows": 0.95,
            "hundreds of rows": 0.92,
            "thousands of rows": 0.93,
            "dlhs": 0.85,
            "drhs": 0.80,
        },
        least_moe_ratio={"hundreds of rows": 1.05, "dlhs": 1.3, "drhs": 1.3},
        least_moe_xla_ratio=1.5,
        least_quantized_ratio={"int4/128 decode": 2.5, "int8/128 decode": 2.5, "w8a8 prefill": 1.05},
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
        "unpacks_bytes": "simulated: 16 rows by int8 weights of 4096 × 14336 take little longer than HBM does",
        "sparse_core": "it has none",
        "step_estimate": _ESTIMATE,
        "cloud": _CLOUD,
        "seen_rows": "those of dense tiles of 128³, by which machine.dma_latency_cycles was chosen",
        "bars": _ASKED,
        "links.dimensions": _DOCS,
        "links.bytes_per_s": _LINK_RATE,
        "links.hop_s": _HOP,
        "links.wrap_extent": _WRAP,
        "links.wraps_alone": _WRAP,
        "links.signal_chip_bit": _LISTING,
        "links.copy_remote_bit": _LISTING,
        "links.route_entries": "seen in listings: up to 16 chips go by number, 4x8 to 16x16 by four bits of a table",
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
