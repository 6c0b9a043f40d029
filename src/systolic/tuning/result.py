"""What a search for tiles found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from systolic.chips import Chip
from systolic.cost import machine_roofline, repeated_us
from systolic.schedule import KernelConfig
from systolic.spec import Spec
from systolic.store import Trial

End = Literal["trials", "time", "bound", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """What a search found.

    Attributes:
      spec: as asked for.
      computed: what the kernel computes, to which configurations belong.
      trials: of this search and of those before it, fastest first.
      xla: XLA's program; None where it was not asked for or has no time.
      xla_us: its time in repeated calls, where its copy ahead of the call hides behind the call before.
      considered: legal configurations that the model ranked.
      compiled: trials of this search.
      seconds: it took.
      end: why it ended: so many trials, the time was over, nothing left could be faster, or all were tried.
    """

    spec: Any
    computed: Any
    chip: str
    trials: tuple[Trial, ...]
    xla: Trial | None
    xla_us: float | None
    considered: int
    compiled: int
    seconds: float
    end: End

    @property
    def winner(self) -> Trial | None:
        """The fastest; None where no trial has a time."""
        return next((trial for trial in self.trials if trial.time_us is not None), None)

    @property
    def config(self) -> KernelConfig:
        """The winner's, for `systolic.matmul(tiles=…)` and `systolic.plan(tiles=…)`.

        Raises:
          LookupError: no trial has a time.
        """
        if self.winner is None or self.winner.config is None:
            raise LookupError("no trial has a time; their reasons are in `trials`")
        return self.winner.config

    @property
    def ratio_to_xla(self) -> float | None:
        """XLA's time over the winner's: above 1 the winner is faster."""
        winner, xla = self.winner, self.xla
        if winner is None or winner.time_us is None or xla is None or self.xla_us is None:
            return None
        if (winner.measured_us is None) != (xla.measured_us is None):
            return None  # a measured time over a simulated one says nothing
        return self.xla_us / winner.time_us


def xla_repeated_us(xla: Trial, spec: Spec, chip: Chip) -> float | None:
    """XLA's time in repeated calls."""
    if xla.measured_us is not None:
        return xla.measured_us
    if xla.simulated_us is None:
        return None
    return repeated_us(xla.simulated_us, xla.prefetch_us or 0.0, machine_roofline(spec, chip).hbm_us)
