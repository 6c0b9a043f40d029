"""Runs a whole compiled program: the top-level program, its copies, and the operations that it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from systolic.chips import Chip, MachineModel
from systolic.simulator.blocks import split_blocks
from systolic.simulator.copies import CopyEngine
from systolic.simulator.errors import SimulationError
from systolic.simulator.listing import Program, parse_listing
from systolic.simulator.machine import Machine, Mailboxes, Progress, run_together
from systolic.simulator.matrix import MatrixUnits
from systolic.simulator.scalar import static_allocation
from systolic.simulator.translate import Translation, translate
from systolic.simulator.verify import check_registers

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


# A product of 16384³ in tiles of 128³ goes two million times round its loop.
MAX_ROUNDS = 50_000_000


def simulate_listings(
    listings: Mapping[str, str], chip: Chip, *, remember: bool = True, max_rounds: int = MAX_ROUNDS
) -> SimulatedRun:
    """Executes the control flow of compiled listings on the chip's model.

    Args:
      listings: text of the final bundles of the top-level program, under "TLP", and of every operation it calls.
      remember: look repeated rounds up instead of working them out anew; see `MatrixUnits`.
      max_rounds: of a program's loops, after which it is taken to have been misread.

    Raises:
      SimulationError: a listing holds something that is not understood.
      DeadlockError: the program waits for something that does not come.
    """
    if TOP_LEVEL not in listings:
        raise SimulationError(f"no top-level program among the listings: {', '.join(listings) or 'none'}")
    programs = {name: parse_listing(name, text) for name, text in listings.items()}
    for program in programs.values():
        check_registers(program, split_blocks(program, chip.machine.branch_delay_slots))
    shared = chip.cores_per_device > 1
    translations = {name: translate(program, chip.machine, shared=shared) for name, program in programs.items()}
    must_be_one = run_flags(programs[TOP_LEVEL], translations[TOP_LEVEL])
    runs = _run_device(translations, must_be_one, chip, warm=True, remember=remember, max_rounds=max_rounds)
    cold = _run_device(translations, must_be_one, chip, warm=False, remember=remember, max_rounds=max_rounds)
    return SimulatedRun(
        chip=chip.name,
        clock_hz=chip.machine.clock_hz,
        cores=runs,
        prefetch_cycles=max(0, max(core.cycles for core in cold) - max(core.cycles for core in runs)),
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


def _run_device(
    translations: Mapping[str, Translation],
    must_be_one: frozenset[int],
    chip: Chip,
    *,
    warm: bool,
    remember: bool,
    max_rounds: int,
) -> tuple[CoreRun, ...]:
    copies = CopyEngine(chip.machine, chip.cores_per_device)
    mailboxes = Mailboxes(chip.cores_per_device)
    cores = [
        _Core(translations, chip.machine, copies, mailboxes, core, remember=remember, max_rounds=max_rounds)
        for core in range(chip.cores_per_device)
    ]

    def initial(address: int) -> int:
        return 1 if warm or address in must_be_one else 0

    ends = run_together([core.run(TOP_LEVEL, 0, initial) for core in cores], lambda core: cores[core].waits_for)
    return tuple(core.result(end) for core, end in zip(cores, ends, strict=True))


class _Core:
    """One core: its matrix units, and the programs that it is in the middle of."""

    def __init__(
        self,
        translations: Mapping[str, Translation],
        machine: MachineModel,
        copies: CopyEngine,
        mailboxes: Mailboxes,
        core: int,
        *,
        remember: bool,
        max_rounds: int,
    ) -> None:
        self._translations = translations
        self._copies = copies
        self._mailboxes = mailboxes
        self._core = core
        self._max_rounds = max_rounds
        self._units = {
            name: MatrixUnits(machine, program.segments, remember=remember) for name, program in translations.items()
        }
        self._ops: list[OpTime] = []
        self._current: list[Machine] = []

    @property
    def waits_for(self) -> str:
        """What the innermost program waits for."""
        return self._current[-1].waits_for if self._current else "nothing"

    def run(self, name: str, time: int, initial: Callable[[int], int | None]) -> Progress:
        """Runs one of the programs."""
        machine = Machine(
            self._translations[name],
            self._copies,
            self._mailboxes,
            self._units[name],
            core=self._core,
            initial=initial,
            call=self._call,
            max_rounds=self._max_rounds,
        )
        self._current.append(machine)
        end = yield from machine.run(time)
        self._current.pop()
        return end

    def _call(self, time: int, name: str) -> Progress:
        if name not in self._translations:
            raise SimulationError(f"the program calls {name}, of which there is no listing")
        end = yield from self.run(name, time, lambda _: None)
        self._ops.append(OpTime(name=name, begin_cycles=time, end_cycles=end))
        return end

    def result(self, cycles: int) -> CoreRun:
        """What this core did, now that it is over."""
        counts = self._copies.counts[self._core]
        return CoreRun(
            core=self._core,
            cycles=cycles,
            ops=tuple(self._ops),
            copy_stall_cycles=counts.stall_cycles,
            copy_overhead_cycles=counts.overhead_cycles,
            matrix_stall_cycles=sum(unit.stall_cycles for unit in self._units.values()),
            matrix_busy_cycles=sum(unit.busy_cycles for unit in self._units.values()),
            hbm_read_bytes=counts.hbm_read_bytes,
            hbm_written_bytes=counts.hbm_written_bytes,
            copies=counts.copies,
        )
