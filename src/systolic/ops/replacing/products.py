"""Blocks in which this package's kernels compute products of functions as they run."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ParamSpec, Self, TypeVar

from systolic.ops.planner import planner_in_use
from systolic.ops.replacing.decisions import Decision, Policy
from systolic.spec import MatmulSpec, SpecError
from systolic.support.choices import unknown_name
from systolic.support.summary import Summarised, Summary

P = ParamSpec("P")
T = TypeVar("T")


class ReplacedProducts(Summarised):
    """A `with` block and a decorator in which kernels compute products, and the decisions on these."""

    def __init__(self, **options: Any) -> None:
        from systolic.ops.engine.backend import backend_of

        self._options = options
        if (who := options["where_unknown"]) not in ("xla", "kernel"):
            raise SpecError(unknown_name("where_unknown=", who, ("xla", "kernel")))
        self._backend = functools.partial(backend_of, options["implementation"], options["chip"], None)
        self._backend()  # errors now, and not in the block
        self._counts: Counter[Decision] = Counter()
        self._blocks = _Blocks()

    def __reduce__(self) -> Any:
        return functools.partial(type(self), **self._options), ()  # decisions of worker processes stay there

    def __enter__(self) -> Self:
        block = ExitStack()
        block.enter_context(self._intercepted())
        self._blocks.open.append(block)
        return self

    def __exit__(self, *error: Any) -> None:
        self._blocks.open.pop().__exit__(*error)

    def __call__(self, fn: Callable[P, T]) -> Callable[P, T]:
        """Return the function, which runs in such a block."""

        @functools.wraps(fn)
        def inside(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._intercepted():
                return fn(*args, **kwargs)

        return inside

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every product so far, once each: those taken by kernels first."""
        return tuple(sorted(self._counts, key=lambda decision: not decision.taken))

    def _unknown(self) -> list[tuple[MatmulSpec, str]]:
        """Return the products, and their chips, for which XLA's time is unknown."""
        pairs = dict.fromkeys((decision.spec, decision.chip) for decision in self.decisions if decision.is_unknown)
        return [(spec, chip) for spec, chip in pairs if spec is not None]

    def summary(self) -> Summary:
        """Describe which products were taken and which not, and why, with a row for each."""
        taken_count = sum(count for decision, count in self._counts.items() if decision.taken)
        unknown = len({count.spec for count in self._counts if count.is_unknown})
        return Summary(
            heading=f"{taken_count:,} of {self._counts.total():,} products by systolic's kernels",
            facts={"XLA's time": f"is not known of {unknown:,}: .tune() finds out, in minutes each" if unknown else ""},
            columns=("product (m k n)", "times", "by", "× XLA", "why"),
            rows=tuple(
                (
                    decision.product,
                    self._counts[decision],
                    "systolic" if decision.taken else "XLA",
                    decision.ratio,
                    decision.reason,
                )
                for decision in self.decisions
            ),
        )

    def _intercepted(self) -> Any:
        from systolic.compat import intercepted
        from systolic.ops.replacing.rewriting import Rewriter

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
    """The blocks that a thread is in: JAX traces each thread separately."""

    def __init__(self) -> None:
        self.open: list[ExitStack] = []
