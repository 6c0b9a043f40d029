"""Bound the work of a run, for programs that were misread or made to run forever."""

from __future__ import annotations

from systolic.simulator.errors import SimulationError


class IterationBudget:
    """A limit of loop iterations for all programs of a core together.

    Other work counts as well: a call as one iteration, and a copy of words of scalar memory as the iterations that take
    as long. Rounds of the top-level program's loops that are skipped do not count.
    """

    def __init__(self, limit: int) -> None:
        self._most = limit
        self.left = limit

    @property
    def spent(self) -> int:
        return self._most - self.left

    def spend(self, iterations: int) -> None:
        """Take iterations off the budget; raise SimulationError if fewer are left."""
        self.left -= iterations
        if self.left < 0:
            raise SimulationError(f"loops went round more than {self._most:,} times")
