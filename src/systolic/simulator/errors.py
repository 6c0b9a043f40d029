"""What can go wrong when a compiled program is read and executed."""


class SimulationError(RuntimeError):
    """The program holds something that the simulator does not understand; the message quotes the line."""

    located = False  # whether the message says already where it was


class DeadlockError(SimulationError):
    """The program waits for something that nothing under way will bring about."""


class UnknownValueError(SimulationError):
    """Control flow depends on a value that is not known; the message says where it is from."""

    program = ""  # that needed it
    why = ""  # whose value it is
    computed = False  # by the program; else it belongs to an argument
