"""SparseCores with clocks of 1 GHz, for tests: they run beside a TensorCore of which only one flag is there."""

import dataclasses

from sparse_listings import GATHER

from systolic.chips import Chip, chip
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.schedule import Schedule
from systolic.simulator.sparse_core.device import SparseCores
from systolic.simulator.sparse_core.listing import parse_sparse_listing
from systolic.simulator.sparse_core.program import SparsePrograms
from systolic.simulator.sparse_core.translate import translate_sparse

DONE = 99  # the TensorCore's flag
START = 1 << 16 | 7053


def a_chip(stream_bytes_per_s: float = 1e9, latency: int = 100, index: float = 0.0, hbm: float = 1e15) -> Chip:
    """A chip of two SparseCores whose clocks are 1 GHz."""
    known = chip("v7x")
    assert known.sparse_core is not None
    sparse = dataclasses.replace(
        known.sparse_core,
        clock_hz=1e9,
        stream_bytes_per_s=stream_bytes_per_s,
        stream_latency_cycles=latency,
        index_cycles=index,
    )
    machine = dataclasses.replace(known.machine, clock_hz=1e9, hbm_bytes_per_s=hbm)
    return dataclasses.replace(known, machine=machine, sparse_core=sparse)


class Device:
    """SparseCores beside a TensorCore of which only the flag is there."""

    def __init__(self, on: Chip, text: str = GATHER) -> None:
        self.program = translate_sparse(parse_sparse_listing("gather", text))
        self.dma = DmaEngine(on.machine, 1)
        self.schedule = Schedule()
        self.cores = SparseCores(
            on, SparsePrograms(programs=(self.program,)), self.dma, self.schedule, IterationBudget(10_000), 10
        )
        self.cores.watch(0, "TLP", DONE)

    def launch(self, number: int, *, go: int | None = 0) -> None:
        """Launches the program at 0, and lets it go at `go`."""
        words = [0] * 128
        words[0x5A], words[0x5B] = self.program.granules, 5000
        self.cores.describe(0, words, launches=True)
        self.cores.offer(0, 0, number)
        if go is not None:
            self.cores.signal(0, go, START | number << 14, 1)

    def end(self, number: int = 0) -> int:
        """Runs everything, and says when the TensorCore's flag counts one."""
        self.schedule.run()
        end = self.dma.wait(0, "TLP", 0, DONE, number + 1, "semaphore")
        assert end is not None
        return end - self.dma.counts[0].overhead_cycles
