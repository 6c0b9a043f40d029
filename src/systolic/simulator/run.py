"""Runs a whole compiled program: the top-level program, its copies, and the operations that it calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from systolic.chips import Chip, MachineModel
from systolic.simulator.copies import CopyEngine
from systolic.simulator.errors import SimulationError
from systolic.simulator.listing import Program, parse_listing
from systolic.simulator.machine import Machine
from systolic.simulator.matrix import MatrixUnits
from systolic.simulator.scalar import static_allocation
from systolic.simulator.translate import Translation, translate

TOP_LEVEL = "TLP"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """One operation of the program, on one core. Cycles count from the program's start."""

    name: str
    begin_cycles: int
    end_cycles: int

    @property
    def cycles(self) -> int:
        """How long it took."""
        return self.end_cycles - self.begin_cycles


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreRun:
    """What one core did."""

    core: int
    cycles: int
    ops: tuple[OpTime, ...]
    copy_stall_cycles: int  # waiting for copies to land
    copy_overhead_cycles: int  # starting copies and looking at their flags
    matrix_stall_cycles: int  # waiting for matrix units or their results
    matrix_busy_cycles: int  # all units together
    hbm_read_bytes: int
    hbm_written_bytes: int
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """A program on a chip's model. Times are of the later core and leave the prefetch out.

    `prefetch_us` is what the copies add that XLA starts ahead of the program to bring an argument into VMEM: with
    repeated calls they run during the call before, and published device times match the program without them.
    """

    chip: str
    clock_hz: float
    cores: tuple[CoreRun, ...]
    prefetch_cycles: int
    matrix_units: int  # of one core
    bundles: int  # of the whole program's code

    @property
    def cycles(self) -> int:
        """Cycles of the core that ends last."""
        return max(core.cycles for core in self.cores)

    @property
    def time_us(self) -> float:
        """Simulated time."""
        return self.cycles / self.clock_hz * 1e6

    @property
    def prefetch_us(self) -> float:
        """Time that the first call takes longer."""
        return self.prefetch_cycles / self.clock_hz * 1e6

    @property
    def stall_share(self) -> float:
        """Share of the later core's cycles in which it waited for copies or the matrix units."""
        core = max(self.cores, key=lambda core: core.cycles)
        return (core.copy_stall_cycles + core.copy_overhead_cycles + core.matrix_stall_cycles) / max(1, core.cycles)

    @property
    def matrix_busy_share(self) -> float:
        """Share of all cores' matrix-unit cycles in which rows went through."""
        busy = sum(core.matrix_busy_cycles for core in self.cores)
        return busy / max(1, self.cycles * self.matrix_units * len(self.cores))

    @property
    def hbm_read_bytes(self) -> int:
        """Bytes that all cores read from HBM."""
        return sum(core.hbm_read_bytes for core in self.cores)

    @property
    def hbm_written_bytes(self) -> int:
        """Bytes that all cores wrote to HBM."""
        return sum(core.hbm_written_bytes for core in self.cores)


def simulate_listings(listings: Mapping[str, str], chip: Chip, *, remember: bool = True) -> SimulatedRun:
    """Executes the control flow of compiled listings on the chip's model.

    Args:
      listings: text of the final bundles of the top-level program, under "TLP", and of every operation it calls.
      remember: look repeated rounds up instead of working them out anew; see `MatrixUnits`.

    Raises:
      SimulationError: a listing holds something that is not understood.
      DeadlockError: the program waits for something that does not come.
    """
    if TOP_LEVEL not in listings:
        raise SimulationError(f"no top-level program among the listings: {', '.join(listings) or 'none'}")
    programs = {name: parse_listing(name, text) for name, text in listings.items()}
    translations = {name: translate(program, chip.machine) for name, program in programs.items()}
    must_be_one = run_flags(programs[TOP_LEVEL], translations[TOP_LEVEL])

    def cores(warm: bool, sharers: int) -> tuple[CoreRun, ...]:
        return tuple(
            _run_core(translations, must_be_one, chip.machine, core, warm=warm, sharers=sharers, remember=remember)
            for core in range(chip.cores_per_device)
        )

    runs = cores(True, 1)
    sharers = max(1, sum(core.hbm_read_bytes + core.hbm_written_bytes > 0 for core in runs))
    if sharers > 1:
        # Cores that copy at the same time share the device's bandwidth; each is given an equal part throughout.
        runs = cores(True, sharers)
    cold = max(core.cycles for core in cores(False, sharers))
    return SimulatedRun(
        chip=chip.name,
        clock_hz=chip.machine.clock_hz,
        cores=runs,
        prefetch_cycles=max(0, cold - max(core.cycles for core in runs)),
        matrix_units=chip.machine.mxu_count,
        bundles=sum(translation.bundles for translation in translations.values()),
    )


def run_flags(program: Program, translation: Translation) -> frozenset[int]:
    """Words of scalar memory, set by the runtime, that have to be one for the top-level program to run at all.

    The top-level program reads a few words that it never wrote. One it compares with 1, to skip everything if it
    differs. Another says whether the prefetch of an argument has been done ahead of the call.
    """
    loaded: dict[str, str] = {}
    flags = set()
    for bundle in program.bundles:
        for instruction in bundle.instructions:
            if instruction.opcode == "sld" and instruction.dest is not None:
                place = static_allocation(instruction.operands[0])
                if place is not None:
                    loaded["%" + instruction.dest] = place
            elif instruction.opcode.startswith("scmp.ne") and instruction.operands[1] == "1":
                place = loaded.get(instruction.operands[0])
                if place in translation.addresses:
                    flags.add(translation.addresses[place])
    return frozenset(flags)


def _run_core(
    translations: Mapping[str, Translation],
    must_be_one: frozenset[int],
    machine: MachineModel,
    core: int,
    *,
    warm: bool,
    sharers: int,
    remember: bool,
) -> CoreRun:
    copies = CopyEngine(
        bytes_per_cycle=machine.hbm_bytes_per_s / machine.clock_hz / sharers,
        latency_cycles=machine.dma_latency_cycles,
        issue_cycles=machine.dma_issue_cycles,
        wait_cycles=machine.dma_wait_cycles,
    )
    units = {name: MatrixUnits(machine, program.segments, remember=remember) for name, program in translations.items()}
    ops: list[OpTime] = []

    def call(time: int, name: str) -> int:
        if name not in translations:
            raise SimulationError(f"the program calls {name}, of which there is no listing")
        end = run(name, time, lambda _: None)
        ops.append(OpTime(name=name, begin_cycles=time, end_cycles=end))
        return end

    def run(name: str, time: int, initial) -> int:
        called = Machine(translations[name], copies, units[name], core=core, initial=initial, call=call)
        try:
            return called.run(time)
        except TypeError as error:
            # The translation keeps values that only the vector side or an argument knows as None.
            raise SimulationError(f"{name}: control flow depends on a value that is not known: {error}") from error

    cycles = run(TOP_LEVEL, 0, lambda address: 1 if warm or address in must_be_one else 0)
    return CoreRun(
        core=core,
        cycles=cycles,
        ops=tuple(ops),
        copy_stall_cycles=copies.wait_cycles,
        copy_overhead_cycles=copies.overhead_cycles,
        matrix_stall_cycles=sum(unit.stall_cycles for unit in units.values()),
        matrix_busy_cycles=sum(unit.busy_cycles for unit in units.values()),
        hbm_read_bytes=copies.counts.hbm_read_bytes,
        hbm_written_bytes=copies.counts.hbm_written_bytes,
        copies=copies.counts.copies,
    )
