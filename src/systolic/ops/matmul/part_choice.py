"""The choice between our kernel and XLA for the product of one device's parts, under `jit` on a mesh.

XLA copies a weight to VMEM while the operation before its product runs, such as a collective. A kernel copies it
itself. So XLA's product is faster where the copy of the weight is a large part of the time.
"""

from __future__ import annotations

from systolic.cost import roofline
from systolic.ops.collective.choice import RingChoice
from systolic.ops.matmul.product import Product, spec_of
from systolic.ops.planner import planner_in_use
from systolic.schedule.vmem import MIB
from systolic.spec import Operands, dtype_bytes

# Below it the copy takes less than 3 µs of v6e's HBM, which is within the error of a kernel's modeled time.
_MIN_WEIGHT_BYTES = 4 * MIB
# Share of VMEM that a weight may take, so that XLA has the rest for other operands.
_WEIGHT_SHARE = 0.5
# Share of the matrix units' peak that XLA reaches with the weight in VMEM: 0.89 with 4096 × 4096 × 3584 on v6e,
# simulated with libtpu 0.0.42.1 and default flags.
_XLA_PEAK_SHARE = 0.9


def choice_of_part(product: Product, operands: Operands) -> RingChoice | None:
    """Return XLA as the choice for a product of one device's parts, with the reason; None: our kernel multiplies."""
    chip = product.backend.chip
    if product.backend.implementation is not None or product.backend.tiles is not None or chip is None:
        return None
    functions = product.functions
    if operands.rhs.ndim != 2 or product.pairing is not None or product.transpose_lhs:
        return None
    if functions.lhs is not None or functions.rhs is not None or operands.lhs.dtype != operands.rhs.dtype:
        return None
    spec = spec_of(product, operands)
    if not spec.epilogue.is_identity or spec.dtype_multiplied not in chip.dtypes:
        return None
    weight_bytes = spec.k * spec.n * dtype_bytes(spec.dtype_rhs)
    if not _MIN_WEIGHT_BYTES <= weight_bytes <= _WEIGHT_SHARE * chip.vmem_bytes_per_core:
        return None
    kernel_us = planner_in_use().plans(spec, chip, None).time_us
    limits = roofline(spec, chip)
    xla_us = max(limits.mxu_us / _XLA_PEAK_SHARE, limits.hbm_us)
    if kernel_us <= xla_us:
        return None
    return RingChoice(
        by_kernel=False,
        by_xla_alone=True,
        reason=f"the kernel takes {kernel_us:.1f} µs, and XLA {xla_us:.1f} µs after it has copied the weight to VMEM",
        product=f"[{spec.m}, {spec.k}] @ [{spec.k}, {spec.n}] on each device",
        time_us=xla_us,
    )
