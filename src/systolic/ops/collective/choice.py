"""The choice between a kernel that sends and multiplies, and XLA's collective with a product before or after it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from systolic.chips import Chip, UnsupportedDtypeError
from systolic.ops.collective.configs import schedule_of
from systolic.ops.collective.sizes import RingSizes, WeightSizes
from systolic.ops.kept_trials import kept_trials
from systolic.ops.planner import Planner, Plans, planner_in_use
from systolic.schedule import IllegalTilesError

# XLA's serial programs take at least 1.15 times the sum of both parts' limits: v6e 2x4, layers of Llama-3, in
# docs/results/collective.md.
_SERIAL_OVERHEAD = 1.15
# XLA's reduce-scatter sends along the order of the axis. Where that is no ring of neighbors, as `jax.make_mesh` makes a
# v6e 2x4, its copies share links: 168.5 µs in place of 79.1 µs with 2,048 rows of Llama-3 8B, simulated. All-gathers
# and all-reduces take as long as in the order of a ring.
_SHARED_LINKS = 2
# Share of XLA's time that a kernel has to save by arithmetic, which is up to 17 % short of a kernel's simulated time in
# the eight rows of that page, and 25 % of XLA's. It was chosen by these rows, and by sums of 512 tokens: with it all
# nine choices are the faster ones.
_DOUBT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RingChoice:
    """The choice for one product.

    Attributes:
      by_kernel: True if a kernel sends and multiplies; else XLA sends, before or after a product.
      reason: of the choice.
      product: what is computed; empty if the call decides, and not its sizes.
      time_us: of the chosen one, with the gathering of an all-reduce, by arithmetic or by `tune`; None if it was not
        compared.
      by_xla_alone: True if XLA also multiplies the parts of a device.
      spec: of a product that a kernel can compute across chips; with its slice, `tune` takes it.
    """

    by_kernel: bool
    reason: str
    product: str = ""
    time_us: float | None = None
    by_xla_alone: bool = False
    spec: RingSizes | WeightSizes | None = None

    @property
    def xla_is_faster(self) -> bool:
        """True if a kernel could compute it, and XLA takes less time."""
        return not self.by_kernel and self.spec is not None

    def __str__(self) -> str:
        xla_choice = "XLA's product" if self.by_xla_alone else "XLA's collective and our product"
        choice = "a kernel across chips" if self.by_kernel else xla_choice
        return ": ".join(filter(None, (self.product, choice, self.reason)))


def chosen(
    sizes: RingSizes | WeightSizes,
    chip: Chip,
    *,
    turned_bytes: int = 0,
    all_reduces: bool = False,
    in_ring_order: bool = False,
) -> RingChoice:
    """Return the faster one, with both times: simulated ones of `tune`, or by arithmetic.

    Args:
      turned_bytes: HBM traffic of XLA's copy before or after the kernel, for rows of several dimensions.
      all_reduces: True if XLA gathers the rows after the kernel has scattered them, or all-reduces.
      in_ring_order: True if neighbors on the axis are known to be one hop apart.
    """
    planner = planner_in_use()
    scatters = isinstance(sizes, RingSizes) and sizes.scatters
    shared_links = _SHARED_LINKS if scatters and not all_reduces and not in_ring_order else 1
    return _chosen(planner, planner.plans, sizes, chip, turned_bytes, all_reduces, shared_links)


@functools.lru_cache(maxsize=1024)
def _chosen(
    planner: Planner,
    plans: Plans,
    sizes: RingSizes | WeightSizes,
    chip: Chip,
    turned_bytes: int,
    all_reduces: bool,
    shared_links: int,
) -> RingChoice:
    no_kernel = functools.partial(RingChoice, by_kernel=False, product=str(sizes))
    if isinstance(sizes, WeightSizes) and chip.cores_per_device > 1:
        return no_kernel(reason=f"the kernel would use one of a {chip.name}'s {chip.cores_per_device} cores")
    try:
        plan = plans(sizes, chip, None)
    except (IllegalTilesError, UnsupportedDtypeError) as error:
        return no_kernel(reason=str(error))
    # An all-gather of the results sends as much as the reduce-scatter before it.
    gather_us = _sent_us(sizes, chip) * _SERIAL_OVERHEAD if all_reduces else 0.0
    kernel_us = plan.time_us + turned_bytes / chip.hbm_bytes_per_s * 1e6 + gather_us
    is_modelled = plan.provenance == "modelled"
    stored = None if is_modelled else kept_trials(planner, sizes, chip)
    gathering = " with XLA's gathering of its results" if all_reduces else ""
    times = f"{kernel_us:.1f} µs {'by arithmetic' if is_modelled else plan.provenance}{gathering}"
    if stored is not None and stored.xla_us is not None:
        xla_us, to_save = stored.xla_us + gather_us, 0.0
        times += f", and XLA's program {xla_us:.1f} µs"
    else:
        xla_us, to_save = serial_us(sizes, chip, shared_links) + gather_us, _DOUBT
        times += f", and XLA's collective and a product {xla_us:.1f} µs{'' if is_modelled else ' by arithmetic'}"
    if kernel_us > xla_us * (1 - to_save):
        doubt = f"; it has to save {to_save:.0%}" if to_save else ""
        return no_kernel(reason=f"the kernel takes {times}{doubt}", time_us=xla_us, spec=sizes)
    reason = f"{schedule_of(sizes, plan.config, chip)}: {times}"
    return RingChoice(by_kernel=True, reason=reason, product=str(sizes), time_us=kernel_us, spec=sizes)


def serial_us(sizes: RingSizes | WeightSizes, chip: Chip, shared_links: int = 1) -> float:
    """Return the time of a collective and a product, one after the other.

    Args:
      shared_links: copies of the collective that share each link.
    """
    product_s = max(
        sizes.flops * sizes.passes / chip.peak_ops_per_s(sizes.dtype),
        sizes.weight_bytes / chip.hbm_bytes_per_s,
    )
    return (shared_links * _sent_us(sizes, chip) + product_s * 1e6) * _SERIAL_OVERHEAD


def _sent_us(sizes: RingSizes | WeightSizes, chip: Chip) -> float:
    assert chip.links is not None  # else there is no schedule to compare with
    return sizes.sent_bytes / chip.links.bytes_per_s * 1e6
