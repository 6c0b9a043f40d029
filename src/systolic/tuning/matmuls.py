"""`systolic.matmuls`: compute a function's own products by this package's kernels, tuned where times are not known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from systolic.chips import Chip
from systolic.ops.replacing.decisions import WhereUnknown
from systolic.ops.replacing.products import ReplacedProducts
from systolic.support.bugs import reports_bugs
from systolic.tuning.result import TuningResult
from systolic.tuning.tune import tune

if TYPE_CHECKING:
    from systolic.ops.engine.backend import Implementation


class Matmuls(ReplacedProducts):
    """A `with` block and a decorator in which kernels compute products, and their decisions; see `matmuls`."""

    def tune(self, **options: Any) -> tuple[TuningResult, ...]:
        """Time XLA and our kernels for every product whose times are not known.

        Each takes as long as `systolic.tune` does; later traces use the results. `decisions` are cleared.

        Args:
          options: as `systolic.tune` takes them, such as `time_budget_s`.

        Raises:
          ValueError, StoreError, StalledError: as `systolic.tune` does.
        """
        results = tuple(tune(spec, chip, **options) for spec, chip in self._unknown())
        self._counts.clear()
        return results


@reports_bugs
def matmuls(
    *,
    least_ratio: float = 1.0,
    where_unknown: WhereUnknown = "xla",
    implementation: Implementation = None,
    chip: str | Chip | None = None,
) -> Matmuls:
    """Return a `with` block in which `systolic.matmul` computes products of plain JAX if that is known to gain.

    `jnp.dot`, `@`, `jnp.einsum` and `lax.dot_general`, in functions as they are:

        with systolic.matmuls() as products:
            loss, slopes = jax.value_and_grad(model)(weights, batch)
        print(products)

        step = jax.jit(systolic.matmuls()(step))   # the same, as a decorator

    A product is taken where `systolic.tune` has found, for its sizes and dtypes and for this chip, that XLA takes
    longer. Those times are of products alone. XLA fuses products with the code around them: `systolic.simulate` of the
    function with and without the block shows what all of it gains.

    The block holds for this thread. Functions of `jax.jit` that are called in it are compiled again, even if they
    were compiled before; outside they are unchanged. Products inside of `jit`, `scan`, `while_loop`, `cond`,
    `checkpoint`, `shard_map`, `custom_jvp` and `custom_vjp` are found; other operations that hold functions, and Pallas
    kernels, are left whole.

    Where a gradient is taken inside, its products are decided on one by one. Where it is taken outside, of a function
    that the block is in, the gradients of products that were taken are by our kernels too; derivatives that a
    `custom_vjp` defines are left as they are.

    Args:
      least_ratio: XLA's time over ours has to be more.
      where_unknown: "xla", or "kernel": what computes a product if a kernel can and XLA's time is not known.
      implementation, chip: as `systolic.matmul` takes them.

    Returns:
      The block, which is a decorator too. Printed, it says what was taken, what not, and why.

    Raises:
      SpecError: an option has no such value.
      UnknownChipError: no such chip.
    """
    return Matmuls(least_ratio=least_ratio, where_unknown=where_unknown, implementation=implementation, chip=chip)
