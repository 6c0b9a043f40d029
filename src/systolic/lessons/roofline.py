"""Roofline arithmetic: the needs of a product, the rates of a chip, and which of the two sides is the limit.

    flops      = 2 · m · k · n                             a multiplication and an addition for each term
    bytes      = the operands once, the result once        less than this cannot cross HBM
    intensity  = flops / bytes                             what the product offers
    ridge      = peak flops/s / HBM bytes/s                what the chip asks for

Where the intensity is below the ridge, the copies take longer than the arithmetic: the product is *memory-bound*, and
its least time is bytes / bandwidth. Above, it is *compute-bound*, and the least time is flops / peak. flops grow with
the cube of the size and bytes with the square, so every square product becomes compute-bound once it is large enough.

The dtype counts twice. It sets the bytes, and with int8 or float8 on some chips the peak. float32 has the peak of
bfloat16, because at default precision the matrix unit rounds its operands to bfloat16, but it has twice the bytes.

A kernel really copies more (`systolic.schedule.hbm_traffic`): the roofline is a bound, not a prediction. Everything
here is for one device as JAX shows it. No JAX is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from systolic.chips import CHIPS, V5E, Chip
from systolic.cost import roofline
from systolic.lessons.lesson import Lesson
from systolic.spec import MatmulSpec


def least_compute_bound_size(dtype: str, chip: Chip) -> int:
    """Return the least multiple of 128 at which a square product is compute-bound.

    A cube of side s has intensity 2·s³ / (s² · bytes of one element of lhs, rhs and out together), linear in s.
    """
    of_128 = roofline(MatmulSpec.of(128, 128, 128, dtype), chip)
    return 128 * max(1, -int(-of_128.ridge_flops_per_byte // of_128.intensity_flops_per_byte))


def lesson(chips: Sequence[Chip] = ()) -> Lesson:
    """Compute 1024³ on every chip in every dtype that it takes and the ladder uses."""
    rows = []
    for chip in chips or CHIPS.values():
        for dtype in ("float32", "bfloat16", "int8"):
            if dtype not in chip.dtypes:
                continue
            spec = MatmulSpec.of(1024, 1024, 1024, dtype)
            line = roofline(spec, chip)
            rows.append(
                {
                    "chip": chip.name,
                    "dtype": dtype,
                    "m": 1024,
                    "k": 1024,
                    "n": 1024,
                    "flops": line.flops,
                    "least_hbm_bytes": line.hbm_bytes,
                    "intensity_flops_per_byte": line.intensity_flops_per_byte,
                    "ridge_flops_per_byte": line.ridge_flops_per_byte,
                    "bound": line.limit,
                    "least_us": line.least_us,
                    "least_compute_bound_size": least_compute_bound_size(dtype, chip),
                }
            )
    full, half = (roofline(MatmulSpec.of(1024, 1024, 1024, dtype), V5E) for dtype in ("float32", "bfloat16"))
    return Lesson(
        lines=(
            f"1024³ is {full.flops:,} flops; in float32 at least {full.hbm_bytes:,} bytes cross HBM.",
            f"A v5e computes {full.ridge_flops_per_byte:.1f} flops in the time of one byte: its ridge.",
            f"float32 offers {full.intensity_flops_per_byte:.1f} flops a byte: {full.limit}-bound on a v5e.",
            f"bfloat16 offers {half.intensity_flops_per_byte:.1f}, same flops and half the bytes: {half.limit}-bound.",
            "Modelled from published peaks, for one device as JAX shows it; no kernel was compiled or run.",
        ),
        rows=tuple(rows),
        # The claim of the lesson, which a change of a chip's numbers could break.
        ok=full.limit == "memory" and half.limit == "compute",
    )
