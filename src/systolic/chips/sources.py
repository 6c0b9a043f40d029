"""Sources that several chips name, and values common to all chips."""

from __future__ import annotations

from systolic.chips.chip import CloudOffer, CodeCosts
from systolic.chips.sourced import sourced

DOCS = "Google Cloud TPU documentation, system architecture pages, as of 2026"
LISTING = "final bundle listings of libtpu 0.0.42.1: instruction counts of products of known size"
TORUS_2D = f"{DOCS}: a torus of two dimensions"
TORUS_3D = f"{DOCS}: a torus of three dimensions"
RING = "libtpu 0.0.42.1 compiles for it; two chips wide"
DOTS = (
    "all 121 pairs of eleven dtypes, each with float32, int32 and bfloat16 sums and at both precisions, compiled in a "
    "128 × 256 × 128 product with libtpu 0.0.42.1"
)
NO_VECTOR_BFLOAT16 = "listings of libtpu 0.0.42.1: a product of two bfloat16 vectors is unpacked to float32"
VECTOR_BFLOAT16 = "listings of libtpu 0.0.42.1: a product of two bfloat16 vectors is one instruction"
UNPACKS_BYTES = "simulated: 16 rows by int8 weights of 4096 × 14336 take little longer than HBM does"
MOVED_ARGUMENTS = (
    "simulated with libtpu 0.0.42.1: if XLA chooses the memory of 16 or 256 rows, their product with 4096 × 4096 takes "
    "as long on v6e, and 2,200 to 2,400 cycles longer on v7x"
)
INT4 = "int4_ops_per_second of JAX's own table of chips (jax.experimental.pallas.tpu.get_tpu_info)"
POPS = (
    "the smallest distance at which the compiler pops a bfloat16 result, in products by XLA and by Pallas kernels: it "
    "schedules by a latency of its own, which is no longer than this"
)
TUNING_CACHE = (
    "fitted to published device times of a foreign ragged kernel compiled with the same tiles (tokamax tuning cache)"
)
LANE_MOVES = (
    "listings put two into one unit 3 to 4 cycles apart (5 to 8 on v5p) where nothing else holds them up. The longer "
    "is taken: two norms along lanes in view (v6e 768²·128, v7x' gradient of 384²·128, tokamax) are 6 and 12 % fast as "
    "issued, and 1 and 5 % fast with it; four that are held out 5 to 12 % fast as issued, and 0 to 4 % off with it"
)
NO_ROWS = "no published row shows it"
NEVER_SLOW = "published device times of 20 to 60 ms that HBM limits (tokamax) grow with the bytes, as those of 1 ms do"
STEP_ESTIMATE = (
    "times: fitted to 98 simulated bfloat16 kernels, of the products that benchmarks/step_estimate.py calls fitted, by "
    "their mean error in per cent; code: set by hand beside those kernels and the ones of the suites"
)
PROFILED_STEP_ESTIMATE = (
    "times: fitted to the steps of 64 and more rows in all profiles of tiles for the chip, by their mean error in per "
    "cent, after its constants for pushes of weights had changed; code: set by hand beside the kernels of the suites"
)
V5E_STEP_ESTIMATE = "not fitted: it has v5e's matrix units, and takes its numbers"
CLOUD = (
    "accelerator type: the page of this TPU version beneath "
    "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm; runtime version: "
    "https://cloud.google.com/tpu/docs/runtimes, the one for JAX"
)
# SparseCores.
JAX_TABLE = "JAX's own table of chips (jax.experimental.pallas.tpu.get_tpu_info)"
SPARSE_CLOCK = "assumed: the TensorCore's; none is published, and what was checked hardly feels it"
SPARSE_STREAMS = "assumed: 32 bytes a cycle, about what a published time shows on v7x; no published time checks it here"
SPARSE_LATENCY = "assumed: that of the TensorCore's copies, which was fitted"
SPARSE_INDICES = "assumed: one granule of 32 bytes a cycle; no row was checked that would show more"
# Links.
LINK_RATE = "jax-ml/scaling-book, tpus.md: one way"
FITTED_LINKS = (
    "fitted with the other, one number of each for v5p and v6e, to six of the 13 published collectives: ppermute of"
    " 16 KiB, 1 MiB and 64 MiB on either, with devices in their default order, which no row says"
)
WRAP_OF_16 = "jax-ml/scaling-book, tpus.md: only axes of 16 chips wrap, each by itself"
WRAP_OF_CUBES = (
    "jax-ml/scaling-book, tpus.md: wrap-around is by optical switches, which only cubes of 4 x 4 x 4 chips have"
)
CHIP_IS_ONE_DEVICE = "a chip is one device"


def compiler(topology: str) -> str:
    """Return the source of a value that the compiler reports for a topology."""
    return f"libtpu 0.0.42.1: {topology} compiles as this device kind; VMEM limits as its refusals name them"


def smem(topology: str) -> str:
    return f"{compiler(topology)}; 261,632 scalars of 32 bits fit, 261,888 do not"


def cloud_offer(accelerator_type: str, runtime_version: str) -> CloudOffer:
    return sourced(CloudOffer(accelerator_type=accelerator_type, runtime_version=runtime_version), CLOUD)


CODE_COSTS = CodeCosts(
    call_cycles=sourced(
        {"auto": 165.0, "emit": 400.0, "manual": 190.0},
        "simulated products of 100³ to 1024³ on all chips: they are 0 to 400 cycles off",
    ),
    grid_step_s=sourced(
        0.35e-6,
        "simulated on v5e, taken for every chip: 178 µs for the 512 steps of 1024³ in tiles of 128³, of which the "
        "products take 11. It decides on a warning, and on no number that is reported",
    ),
    ring_step_cycles=sourced(200.0, "simulated on v6e, taken for every chip"),
    stretch_cycles=sourced(
        120.0,
        "brought near to six simulated products on v6e, of two sizes of blocks, by hand, and taken for every chip. Of "
        "the 40 products of `systolic bench --suite sparse --chip v6e`, most of them others, modelled times are 0.69 "
        "to 1.22 of the simulated ones, 0.95 in the median, and 0.69 to 1.00 of the 14 that are dds, sdd and masks. "
        "Blocks of 128² in dsd at 80 % ask for less, the same in sdd at 10 % for more, so another value would not be "
        "nearer to all",
    ),
    sum_register_cycles=sourced(1.6, "simulated on v7x, taken for every chip: 2048·512·32768 in steps of 256 along k"),
    chunk_register_cycles=sourced(0.15, "between what first steps in profiles of v5e (0.0), v6e and v7x (0.3) show"),
    quantized_register_cycles=sourced(2.0, "listings for v6e, taken for every chip: eight operations for four slots"),
    bits_register_cycles=sourced(4.0, "listings of libtpu 0.0.42.1: some fifteen operations for four slots"),
    push_bundles=sourced(
        4.0,
        "counted in listings of libtpu 0.0.42.1 for products of 16 to 128 rows: a push brings a register for every 128 "
        "columns of a unit, and so many bundles lie between two into the same unit",
    ),
    emulated_register_bundles=sourced(3.0, "listings of float8_e4m3fn on v6e, taken for every chip"),
    epilogue_share=sourced(0.15, "simulated gelu and 4096³: 0.04 on v5e, 0.16 on v6e, 0.21 on v7x"),
)
