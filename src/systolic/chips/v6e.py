"""TPU v6e (Trillium)."""

from systolic.chips.chip import Chip, MachineModel

_DOCS = "Google Cloud TPU documentation, system architecture pages, as of 2026"
_COMPILER = "libtpu 0.0.42.1: v6e:2x2 compiles as this device kind; VMEM limits as its refusals name them"
_LISTING = "final bundle listings of libtpu 0.0.42.1: instruction counts of products of known size"
_PEAK = "published peak: 918 Tflop/s = 2 MXU x 256 x 256 x 2 x 2 rows a cycle x 1.75 GHz; int8 at twice that"
_FIT = "fitted to published device times of a foreign ragged kernel compiled with the same tiles (tokamax tuning cache)"
_POPS = (
    "the smallest distance at which the compiler pops a bfloat16 result, in products by XLA and by Pallas kernels: it "
    "schedules by a latency of its own, which is no longer than this"
)
_RUNS = (
    "fitted to one published row, 4096³ in tiles of 1024/1024/2048 by a ragged kernel (tokamax tuning cache, 223 us), "
    "simulated as JAX's own ragged kernel with the metadata it computes; XLA's rows, which hardly feel it, check it"
)

V6E = Chip(
    name="v6e",
    title="TPU v6e (Trillium)",
    device_kind="TPU v6 lite",
    topology="v6e:2x2",
    topology_config=None,
    cores_per_chip=1,
    cores_per_device=1,
    hbm_bytes_per_chip=32 * 2**30,
    hbm_bytes_per_s_per_chip=1640e9,
    ici_bytes_per_s_per_chip=800e9,
    ici_links_per_chip=4,
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
    emulated_dtypes={"float8_e4m3fn": "bfloat16"},
    machine=MachineModel(
        clock_hz=1.75e9,
        mxu_count=2,
        mxu_rows=256,
        mxu_columns=256,
        mxu_rows_per_cycle={"f32": 2.0, "bf16": 2.0, "s8": 4.0, "f8": 2.0},
        result_latency_cycles=106,
        matmul_queue_depth=4,
        hbm_bytes_per_s=1.48e12,
        hbm_run_cycles=4.0,
        dma_latency_cycles=997,
        dma_issue_cycles=97,
        dma_wait_cycles=102,
        branch_delay_slots=4,
        granule_bytes=32,
        hbm_address_bytes=512,
        vmem_address_bytes=32,
    ),
    sources={
        "name": _DOCS,
        "title": _DOCS,
        "device_kind": _COMPILER,
        "topology": _COMPILER,
        "topology_config": _COMPILER,
        "cores_per_chip": _DOCS,
        "cores_per_device": _DOCS,
        "hbm_bytes_per_chip": _DOCS,
        "hbm_bytes_per_s_per_chip": _DOCS,
        "ici_bytes_per_s_per_chip": _DOCS,
        "ici_links_per_chip": f"{_DOCS}: a torus of two dimensions",
        "vmem_bytes_per_core": _COMPILER,
        "usable_vmem_bytes_per_core": _COMPILER,
        "scoped_vmem_bytes": _COMPILER,
        "usable_smem_bytes_per_core": f"{_COMPILER}; 261,632 scalars of 32 bits fit, 261,888 do not",
        "peak_ops_per_s_per_chip": f"{_DOCS}; float8_e5m2, which is native, at the rate of bfloat16: {_LISTING}",
        "emulated_dtypes": _LISTING,
        "machine.clock_hz": _PEAK,
        "machine.mxu_count": _PEAK,
        "machine.mxu_rows": _LISTING,
        "machine.mxu_columns": _LISTING,
        "machine.mxu_rows_per_cycle": _PEAK,
        "machine.result_latency_cycles": _POPS,
        "machine.matmul_queue_depth": _FIT,
        "machine.hbm_bytes_per_s": _FIT,
        "machine.hbm_run_cycles": _RUNS,
        "machine.dma_latency_cycles": _FIT,
        "machine.dma_issue_cycles": _FIT,
        "machine.dma_wait_cycles": _FIT,
        "machine.branch_delay_slots": _LISTING,
        "machine.granule_bytes": _LISTING,
        "machine.hbm_address_bytes": _LISTING,
        "machine.vmem_address_bytes": _LISTING,
    },
)
