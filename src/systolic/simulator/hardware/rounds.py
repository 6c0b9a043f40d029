"""How much work a run may take: a bound for programs that were misread, or that somebody made to run for ever."""

from __future__ import annotations

from systolic.simulator.errors import SimulationError


class Rounds:
    """How often the loops of a core's programs may still go round, all together.

    Work that a program asks for without going round counts as well: a call as one round, words of scalar memory that a
    copy moves as one for so many that they take as long.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.left = most

    def spend(self, rounds: int) -> None:
        """Takes so many off.

        Raises:
          SimulationError: there are not so many left.
        """
        self.left -= rounds
        if self.left < 0:
            raise SimulationError(f"loops went round more than {self._most:,} times")
