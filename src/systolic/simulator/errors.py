"""What can go wrong when a compiled program is read and executed."""


class SimulationError(RuntimeError):
    """The program holds something that the simulator does not understand; the message quotes the line."""


class DeadlockError(SimulationError):
    """The program waits for something that nothing under way will bring about."""
