"""`systolic.matmuls`: the products of a function as it is, by this package's kernels."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from systolic.chips import Chip
from systolic.ops.planner import planner_in_use
from systolic.replacing.decisions import Decision, Policy, WhereUnknown
from systolic.spec import SpecError
from systolic.support.bugs import reports_bugs
from systolic.support.summary import Summarised, Summary
from systolic.tuning import TuningResult, tune

if TYPE_CHECKING:
    from systolic.ops.engine.backend import Implementation

P = ParamSpec("P")
T = TypeVar("T")


class Matmuls(Summarised):
    """A `with` block and a decorator in which kernels take products, and what was decided; see `matmuls`."""

    def __init__(self, **options: Any) -> None:
        from systolic.ops.engine.backend import backend_of

        self._options = options
        if (who := options["where_unknown"]) not in ("xla", "kernel"):
            raise SpecError(f"where_unknown={who!r} is not known; use xla or kernel")
        self._backend = functools.partial(backend_of, options["implementation"], options["chip"], None)
        self._backend()  # errors now, and not in the block
        self._counts: Counter[Decision] = Counter()
        self._blocks = _Blocks()

    def __reduce__(self) -> Any:
        return functools.partial(Matmuls, **self._options), ()  # what workers decide stays with them

    def __enter__(self) -> Self:
        block = ExitStack()
        block.enter_context(self._intercepted())
        self._blocks.open.append(block)
        return self

    def __exit__(self, *error: Any) -> None:
        self._blocks.open.pop().__exit__(*error)

    def __call__(self, fn: Callable[P, T]) -> Callable[P, T]:
        """The function, which runs in such a block."""

        @functools.wraps(fn)
        def inside(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._intercepted():
                return fn(*args, **kwargs)

        return inside

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every product that was met so far, once each: taken ones first."""
        return tuple(sorted(self._counts, key=lambda one: not one.taken))

    def tune(self, **options: Any) -> tuple[TuningResult, ...]:
        """Finds out what XLA takes, and our kernels, of every product of which that is not known.

        Each takes as long as `systolic.tune` does; what is traced from then on goes by it. `decisions` are forgotten.

        Args:
          options: as `systolic.tune` takes them, such as `time_budget_s`.

        Raises:
          ValueError, StoreError, StalledError: as `systolic.tune` does.
        """
        unknown = dict.fromkeys((one.spec, one.chip) for one in self.decisions if one.is_unknown)
        found = tuple(tune(spec, chip, **options) for spec, chip in unknown if spec is not None)
        self._counts.clear()
        return found

    def summary(self) -> Summary:
        """Says which products were taken and which not, and why, with a row for each."""
        taken = sum(count for one, count in self._counts.items() if one.taken)
        unknown = len({one.spec for one in self._counts if one.is_unknown})
        return Summary(
            heading=f"{taken:,} of {self._counts.total():,} products by systolic's kernels",
            facts={"XLA's time": f"is not known of {unknown:,}: .tune() finds out, in minutes each" if unknown else ""},
            columns=("product (m k n)", "times", "by", "× XLA", "why"),
            rows=tuple(
                (one.product, self._counts[one], "systolic" if one.taken else "XLA", one.ratio, one.reason)
                for one in self.decisions
            ),
        )

    def _intercepted(self) -> Any:
        from systolic.compat import intercepted
        from systolic.replacing.rewriting import Rewriter

        planner, backend = planner_in_use(), self._backend()
        policy = Policy(
            least_ratio=self._options["least_ratio"],
            where_unknown=self._options["where_unknown"],
            chip=backend.chip,
            planner=planner,
            plans=planner.plans,
        )
        return intercepted(Rewriter(policy=policy, implementation=backend.implementation, tell=self._tell))

    def _tell(self, decision: Decision) -> None:
        self._counts[decision] += 1


class _Blocks(threading.local):
    """The blocks that a thread is in: JAX traces in each thread by itself."""

    def __init__(self) -> None:
        self.open: list[ExitStack] = []


@reports_bugs
def matmuls(
    *,
    least_ratio: float = 1.0,
    where_unknown: WhereUnknown = "xla",
    implementation: Implementation = None,
    chip: str | Chip | None = None,
) -> Matmuls:
    """A `with` block in which products of plain JAX are computed by `systolic.matmul` where that is known to gain.

    `jnp.dot`, `@`, `jnp.einsum` and `lax.dot_general`, in functions as they are:

        with systolic.matmuls() as products:
            loss, slopes = jax.value_and_grad(model)(weights, batch)
        print(products)

        step = jax.jit(systolic.matmuls()(step))   # the same, as a decorator

    A product is taken where `systolic.tune` has found, for its sizes and dtypes and for this chip, that XLA takes
    longer. That is of products alone: XLA fuses them with what is around them, and `systolic.simulate` of the function
    with and without says what all of it gains.

    The block holds for this thread. Functions of `jax.jit` that are called in it are compiled anew, also those that
    were compiled before; outside they are what they were. Products inside of `jit`, `scan`, `while_loop`, `cond`,
    `checkpoint`, `shard_map`, `custom_jvp` and `custom_vjp` are found; other operations that hold functions, and Pallas
    kernels, are left whole.

    Where a gradient is taken inside, its products are decided on one by one. Where it is taken outside, of a function
    that the block is in, the gradients of products that were taken are by our kernels too; derivatives that a
    `custom_vjp` defines are left as they are.

    Args:
      least_ratio: XLA's time over ours has to be more.
      where_unknown: "xla", or "kernel": who computes a product, if a kernel can and nobody knows what XLA takes.
      implementation, chip: as `systolic.matmul` takes them.

    Returns:
      The block, which is a decorator too. Printed, it says what was taken, what not, and why.

    Raises:
      SpecError: an option has a value that is none.
      UnknownChipError: no such chip.
    """
    return Matmuls(least_ratio=least_ratio, where_unknown=where_unknown, implementation=implementation, chip=chip)
