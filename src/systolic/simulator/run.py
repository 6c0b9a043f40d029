"""Runs a whole compiled program: the top-level program, its copies, and the operations that it calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from systolic.chips import Chip, MachineModel
from systolic.chips.constants import check_constants
from systolic.chips.time_error import time_error
from systolic.simulator.assumptions import ZEROS, DeviceRun, Progression, check_time, never_ends
from systolic.simulator.core import TOP_LEVEL, Core, DeviceSetup, OperandWords
from systolic.simulator.errors import SimulationError, UnknownValueError, reading
from systolic.simulator.hardware.dma import DmaEngine
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.memory import Words
from systolic.simulator.hardware.timeline import Timeline
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.mailboxes import Mailboxes
from systolic.simulator.reading.blocks import split_blocks
from systolic.simulator.reading.collectives import parse_collectives
from systolic.simulator.reading.copies import is_copy
from systolic.simulator.reading.hlo import TopLevelHlo, parse_hlo
from systolic.simulator.reading.listing import Program, parse_listing
from systolic.simulator.reading.utilization import BlockUse, parse_utilization
from systolic.simulator.reading.verify import check_registers
from systolic.simulator.records import SimulatedRun, VmemBuffer
from systolic.simulator.schedule import Schedule
from systolic.simulator.slice.facts import SliceFacts, remote_code, slice_facts
from systolic.simulator.slice.launch import without_launch
from systolic.simulator.sparse_core.device import SparseCores
from systolic.simulator.sparse_core.listing import parse_sparse_listing
from systolic.simulator.sparse_core.translate import SparseProgram, translate_sparse
from systolic.simulator.traits import traits_of
from systolic.simulator.translating.names import Allocations
from systolic.simulator.translating.scalar import static_allocation
from systolic.simulator.translating.translate import Translation, translate

# A product of 16384³ in tiles of 128³ goes two million times round its loop.
MAX_ITERATIONS = 50_000_000

# What is said beside every such time, until two published times that no constant was fitted to agree within a fifth.
_SPARSE_CORES_MODELLED = (
    "SparseCores: modelled; their programs are executed, but what streams and launches cost rests on one published time"
)

# Pointers that the runtime leaves in scalar memory, such as those of the results, lie above all others.
_RESULTS_FROM = (1 << 28) - (1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedProgram:
    """A compiled program that has been read, checked and translated, to be run once or many times.

    Attributes:
      translations: the top-level program and those that it calls, by name.
      flags: addresses of words of scalar memory that the runtime has set to one.
      pointers: words of scalar memory in which the runtime has left pointers, by address.
      uses: the compiler's table of units of each program.
      hlo: what the top-level HLO says; None if it was not given.
      vmem: the compiler's account of VMEM.
      may_prefetch: whether the top-level program copies by itself, perhaps an argument ahead of the call.
      prepared_for: the machine model by which the listings were read.
    """

    translations: Mapping[str, Translation]
    flags: frozenset[int]
    pointers: Mapping[int, int]
    uses: Mapping[str, BlockUse]
    hlo: TopLevelHlo | None
    vmem: tuple[VmemBuffer, ...]
    may_prefetch: bool
    prepared_for: MachineModel
    sparse_programs: tuple[SparseProgram, ...] = ()  # of the SparseCores, in the order in which they were compiled
    slice_facts: SliceFacts | None = None  # of a program for many devices

    def run(
        self,
        chip: Chip,
        *,
        parameters: Sequence[Words | Unknown] = (),
        operand_words: OperandWords = lambda *_: None,
        spans: int = 0,
        remember: bool = True,
        max_iterations: int = MAX_ITERATIONS,
    ) -> SimulatedRun:
        """Executes the program on the chip's model.

        Args:
          chip: the chip that it was prepared for, perhaps with other constants: all of them count.
          parameters: contents of the program's arguments, as words in the order of memory.
          operand_words: contents of operands that the program's own copies do not bring; see `core.OperandWords`.
          spans: how many spans of each kind the timeline keeps from its beginning, and as many from its end.
          remember: look repeated iterations up instead of computing them anew; see `Mxus`.
          max_iterations: of the loops of all programs together, after which they are taken to have been misread.

        Raises:
          ConstantsError: a constant that cannot change, or that no hardware has; see `check_constants`.
          SimulationError: the program does something that is not understood.
          UnknownValueError: its control flow depends on contents that were not given.
          UnknownTimeError: its time depends on values that XLA's own operations compute.
          DeadlockError: it waits for something that does not come.
        """
        check_constants(chip.machine, self.prepared_for)

        def cores(
            assumed: Mapping[str, str], *, warm: bool, progression: Progression = ZEROS, most: int = max_iterations
        ) -> DeviceRun:
            def initial(address: int) -> int:
                return 1 if warm or address in self.flags else 0

            setup = DeviceSetup(
                chip=chip,
                translations=self.translations,
                sparse_programs=self.sparse_programs,
                uses=self.uses,
                hlo=self.hlo,
                parameters=self._known(parameters),
                operand_words=operand_words,
                assumed=frozenset(assumed),
                progression=progression,
                initial=initial,
                pointers=self.pointers,
                remember=remember,
                max_iterations=most,
            )
            return _run_device(setup, spans if warm and progression == ZEROS else 0)

        assumed: dict[str, str] = {}  # operation → what is taken as zero in it
        while True:
            try:
                run = cores(assumed, warm=True)
                cold = cores(assumed, warm=False) if self.may_prefetch else run
                break
            except UnknownValueError as error:
                kernels = self.hlo.kernels if self.hlo is not None else frozenset(self.translations)
                if not error.computed or error.program in {TOP_LEVEL, *kernels, *assumed}:
                    raise
                assumed[error.program] = error.why
            except SimulationError as error:
                if not assumed:
                    raise
                raise never_ends(assumed) from error
        if assumed:

            def others(progression: Progression, most: int) -> DeviceRun:
                return cores(assumed, warm=True, progression=progression, most=most)

            check_time(run, assumed, others)
        simulated = SimulatedRun(
            chip=chip.name,
            flags=dict(chip.compiler_flags),
            clock_hz=chip.machine.clock_hz,
            cores=tuple(run.cores),
            prefetch_cycles=max(0, cold.cycles - run.cycles),
            matrix_units=chip.machine.mxu_count,
            bundles=sum(translation.blocks[-1].last + 1 for translation in self.translations.values()),
            hbm_bytes_per_cycle=chip.machine.hbm_bytes_per_s / chip.machine.clock_hz,
            slots=next((dict(use.slots) for use in self.uses.values()), {}),
            vmem=self.vmem,
            assumptions=(
                *(f"{name}: {why} counts as zero" for name, why in assumed.items()),
                *([_SPARSE_CORES_MODELLED] if run.sparse_cores else []),
            ),
            sparse_cores=run.sparse_cores,
        )
        return replace(simulated, error=time_error(chip, traits_of(simulated)))

    def _known(self, parameters: Sequence[Words | Unknown]) -> Sequence[Words | Unknown]:
        declared = self.hlo.parameters if self.hlo is not None else {}
        count = max(len(parameters), *(number + 1 for number in declared), 0) if declared else len(parameters)
        names = {number: parameter.name for number, parameter in declared.items()}
        return [
            parameters[number]
            if number < len(parameters)
            else Unknown(f"argument {names.get(number, number)}, of which only the shape was given", computed=False)
            for number in range(count)
        ]


def prepare_listings(
    listings: Mapping[str, str],
    chip: Chip,
    *,
    utilization: Mapping[str, str] | None = None,
    hlo_text: str | None = None,
    vmem: Sequence[VmemBuffer] = (),
    sparse_listings: Mapping[str, str] | None = None,
) -> PreparedProgram:
    """Reads, checks and translates compiled listings.

    Args:
      listings: text of the final bundles of the top-level program, under "TLP", and of every operation it calls.
      utilization: the compiler's table of units of each, if there is one.
      hlo_text: the top-level HLO.
      vmem: the compiler's account of VMEM, which is passed on.
      sparse_listings: text of the final bundles of what SparseCores run, in the order in which they were compiled.

    Raises:
      SimulationError: a listing holds something that is not understood.
    """
    if TOP_LEVEL not in listings:
        raise SimulationError(f"no top-level program among the listings: {', '.join(listings) or 'none'}")
    sparse_programs = []
    for name, text in (sparse_listings or {}).items():
        with reading(f"the SparseCore listing of {name}"):
            sparse_programs.append(translate_sparse(parse_sparse_listing(name, text)))
    with reading("the HLO"):
        hlo = parse_hlo(hlo_text) if hlo_text is not None else None
        slice_hlo = parse_collectives(hlo_text or "")
    sliced = slice_hlo.partitions * slice_hlo.replicas > 1
    shared = chip.cores_per_device > 1 or bool(sparse_programs) or sliced
    allocations = Allocations()
    programs: dict[str, Program] = {}
    translations: dict[str, Translation] = {}
    for name, text in listings.items():
        with reading(f"the listing of {name}"):
            program = parse_listing(name, text)
            program = programs[name] = without_launch(program) if sliced and name == TOP_LEVEL else program
            check_registers(program, split_blocks(program, chip.machine.branch_delay_slots))
    for name, program in programs.items():
        with reading(f"the listing of {name}"):
            top_level = name == TOP_LEVEL
            remote = remote_code(program, slice_hlo, top_level=top_level) if sliced else None
            translations[name] = translate(
                program, chip.machine, allocations, shared=shared, top_level=top_level, remote=remote
            )
    with reading(f"the listing of {TOP_LEVEL}"):
        flags, pointers = runtime_words(programs[TOP_LEVEL], translations[TOP_LEVEL].addresses)
    uses = {
        name: parse_utilization(name, text, translations[name].blocks)
        for name, text in (utilization or {}).items()
        if name in translations
    }
    copies = any(is_copy(each) for bundle in programs[TOP_LEVEL].bundles for each in bundle.instructions)
    return PreparedProgram(
        translations=translations,
        flags=flags,
        pointers=pointers,
        uses=uses,
        hlo=hlo,
        vmem=tuple(vmem),
        may_prefetch=copies,
        prepared_for=chip.machine,
        sparse_programs=tuple(sparse_programs),
        slice_facts=slice_facts(programs, translations, slice_hlo, flags) if sliced else None,
    )


def runtime_words(program: Program, addresses: Mapping[str, int]) -> tuple[frozenset[int], dict[int, int]]:
    """Finds words of scalar memory that the runtime has set: those that have to be one, and those that are pointers.

    The top-level program reads a few words that it never wrote. One it compares with 1, to skip everything if it
    differs. Another says whether the prefetch of an argument has been done ahead of the call. Others say where results
    go, or where a table says so; each gets an address of its own.
    """
    loaded: dict[str, str] = {}
    flags: set[int] = set()
    pointers: dict[int, int] = {}
    for bundle in program.bundles:
        for instruction in bundle.instructions:
            if instruction.opcode == "sld" and instruction.dest is not None:
                place = static_allocation(instruction.operands[0])
                if place is not None:
                    loaded["%" + instruction.dest] = place
        for instruction in bundle.instructions:
            used = (text.rsplit("] ", 1)[-1] for text in instruction.operands)
            place = next((loaded[text] for text in used if text in loaded), None)
            if place is None or place not in addresses:
                continue
            if instruction.opcode.startswith("scmp.ne") and instruction.operands[1] == "1":
                flags.add(addresses[place])
            elif instruction.opcode.startswith("int_to_ptr.hbm"):
                pointers[addresses[place]] = _RESULTS_FROM + (len(pointers) << 8)
    return frozenset(flags), pointers


def _run_device(setup: DeviceSetup, spans: int) -> DeviceRun:
    numbers = range(setup.chip.cores_per_device)
    timelines = [Timeline(spans) for _ in numbers] if spans else None
    schedule = Schedule(lambda: sparse_cores.changes)
    dma = DmaEngine(setup.chip.machine, len(numbers), timelines, schedule)
    mailboxes = Mailboxes(len(numbers), schedule)
    sparse_cores = SparseCores(
        setup.chip,
        setup.sparse_programs,
        setup.hlo.launches if setup.hlo is not None else (),
        dma,
        schedule.start,
        IterationBudget(setup.max_iterations),
        spans,
    )
    cores = [
        Core(setup, dma, mailboxes, sparse_cores, number, timelines[number] if timelines else None)
        for number in numbers
    ]
    for core in cores:
        schedule.start(0, core.run(), lambda core=core: f"core {core.number}: {core.waits_for}")
    ends = schedule.run()
    runs = tuple(core.result(int(end)) for core, end in zip(cores, ends, strict=False))
    return DeviceRun(cores=runs, iterations=max(core.iterations for core in cores), sparse_cores=sparse_cores.results())
