"""Predicted steps side by side: what fits, what is fastest, and what a million tokens cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from systolic.report.columns import numeric, textual
from systolic.report.explained_table import ExplainedTable, explained_table
from systolic.report.time_errors import time_text
from systolic.report.written import percent
from systolic.steps import DoesNotFitError, StepRun
from systolic.steps.records import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStep:
    """A step on one chip or slice, with its outcome."""

    where: str  # the chip and its slice
    label: str  # the function, or the changes
    chips: int  # of the slice
    run: StepRun | None  # None: it could not be simulated
    reason: str = ""  # why there is no run
    shortage: DoesNotFitError | None = None  # of HBM, if that is why
    price: float | None = None  # of a chip an hour, in the caller's currency

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second on all chips."""
        run = self.run
        return run.tokens_per_s_per_device * run.devices if run is not None and run.tokens else None

    @property
    def million_tokens_cost(self) -> float | None:
        """Price of all chips while they process a million tokens, in the caller's currency."""
        rate = self.tokens_per_s
        return self.price * self.chips / 3600 / rate * 1e6 if rate and self.price is not None else None

    @property
    def _order(self) -> tuple[bool, float, float]:
        """Sort by the cost if there is one, then by tokens per second and chip, then by time; failures last."""
        if self.run is None:
            return True, 0.0, 0.0
        rate, cost = self.tokens_per_s, self.million_tokens_cost
        return False, math.inf if cost is None else cost, -rate / self.chips if rate else self.run.time_us


def comparison_table(steps: Sequence[ComparedStep]) -> ExplainedTable[ComparedStep]:
    """List steps, the cheapest or fastest first, and those without a time last."""

    def hbm(step: ComparedStep) -> str:
        if step.run is not None:
            needed_bytes, available_bytes = step.run.memory.needed_bytes, step.run.memory.capacity_bytes
        elif step.shortage is not None:
            needed_bytes, available_bytes = step.shortage.needed_bytes, step.shortage.available_bytes
        else:
            return ""
        return f"{needed_bytes / GIB:,.2f} of {available_bytes / GIB:,.2f}"

    return explained_table(
        (
            textual("chip", lambda step: step.where),
            textual("step", lambda step: step.label),
            textual(
                "simulated",
                lambda step: step.reason if step.run is None else time_text(step.run.time_us, step.run.error),
            ),
            numeric(
                "tokens/s a chip",
                lambda step: f"{step.tokens_per_s / step.chips:,.0f}" if step.tokens_per_s else "",
                optional=True,
            ),
            numeric("MFU", lambda step: percent(step.run.mfu) if step.run and step.run.flops else "", optional=True),
            numeric("HBM GiB", hbm),
            numeric(
                "cost of 10⁶ tokens",
                lambda step: "" if step.million_tokens_cost is None else f"{step.million_tokens_cost:.3g}",
                optional=True,
            ),
        ),
        sorted(steps, key=lambda step: step._order),
        max_rows=len(steps),
    )
