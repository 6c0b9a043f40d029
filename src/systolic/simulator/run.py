"""A compiled program that is ready to run: the top-level program, its copies, and the programs it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from systolic.accuracy.time_error import time_error
from systolic.chips import Chip, MachineModel, SliceError, SliceShape
from systolic.chips.constants import check_constants
from systolic.simulator.assumptions import (
    ZEROS,
    Attempt,
    DeviceRun,
    ProgramRun,
    Progression,
    check_time,
    end_cycles,
    never_ends,
)
from systolic.simulator.collector import with_rare_collections
from systolic.simulator.core_records import CoreRun, SparseCoreRun, VmemBuffer
from systolic.simulator.device import DeviceModel
from systolic.simulator.device_setup import DeviceSetup, OperandWords, rounds_of
from systolic.simulator.errors import SimulationError, UnknownValueError
from systolic.simulator.hardware.memory import Words
from systolic.simulator.hardware.values import Unknown
from systolic.simulator.reading.hlo import TopLevelHlo
from systolic.simulator.reading.listing import TOP_LEVEL
from systolic.simulator.reading.utilization import BlockUse
from systolic.simulator.records import SimulatedRun
from systolic.simulator.repeated_calls import RepeatedCalls
from systolic.simulator.schedule import Schedule
from systolic.simulator.slice.facts import SliceFacts
from systolic.simulator.slice.outcome import alone, slice_run
from systolic.simulator.slice.records import SliceRun
from systolic.simulator.slice.run import DevicesRun, run_devices
from systolic.simulator.slice.setup import PartitionContents, SliceSetup
from systolic.simulator.sparse_core.program import SparsePrograms
from systolic.simulator.traits import traits_of
from systolic.simulator.translating.translate import Translation

# A product of 16384³ in tiles of 128³ goes two million times round its loop.
MAX_ITERATIONS = 50_000_000

# Note of every such time, until two published times that no constant was fitted to agree within a fifth.
_SPARSE_CORES_MODELLED = (
    "SparseCores: modelled; their programs are executed, but few published times check what streams and launches cost"
)
_HOST_MODELLED = (
    "copies between chip and host: at the rate of their link in the chip's table; no published time checks it"
)


def _nothing_known(*_: object) -> None:
    """Contents of operands that the program's own copies do not bring: none."""


_Run = TypeVar("_Run", bound=ProgramRun)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedProgram:
    """A compiled program that has been read, checked and translated, to be run once or many times."""

    translations: Mapping[str, Translation]  # the top-level program and those that it calls, by name
    flags: frozenset[int]  # addresses of words of scalar memory that the runtime has set to one
    pointers: Mapping[int, int]  # words of scalar memory in which the runtime has left pointers, by address
    uses: Mapping[str, BlockUse]  # the compiler's table of units of each program
    hlo: TopLevelHlo | None  # the top-level HLO; None if it was not given
    vmem: tuple[VmemBuffer, ...]  # the compiler's account of VMEM
    # The top-level program has copies of its own, perhaps of an argument before the call.
    may_prefetch: bool
    prepared_for: MachineModel  # the machine model by which the listings were read
    sparse: SparsePrograms = field(default_factory=SparsePrograms)
    slice_facts: SliceFacts | None = None  # of a program for many devices

    @with_rare_collections()
    def run(
        self,
        chip: Chip,
        *,
        parameters: Sequence[Words | Unknown] = (),
        operand_words: OperandWords = _nothing_known,
        spans: int = 0,
        remember: bool = True,
        max_iterations: int = MAX_ITERATIONS,
    ) -> SimulatedRun:
        """Execute the program on the chip's model.

        Args:
          chip: the chip that it was prepared for, perhaps with other constants: all of them count.
          parameters: contents of the program's arguments, as words in the order of memory.
          operand_words: contents of operands that the program's own copies do not bring; see `OperandWords`.
          spans: number of spans of each kind that the timeline keeps from its beginning, and from its end.
          remember: look repeated iterations and calls up instead of computing them again; see `Mxus`, `RepeatedCalls`.
          max_iterations: of the loops of all programs together, after which they are taken to have been misread.

        Raises:
          ConstantsError: a constant that cannot change, or that no hardware has; see `check_constants`.
          SimulationError: the program does something that is not understood.
          UnknownValueError: its control flow depends on contents that were not given.
          UnknownTimeError: its time depends on values that XLA's own operations compute.
          DeadlockError: it waits for something that does not come.
        """
        check_constants(chip.machine, self.prepared_for)
        contents = self._known(parameters)
        base = replace(self._setup(chip, spans, remember=remember), parameters=contents, operand_words=operand_words)

        def device(attempt: Attempt) -> DeviceRun:
            setup, kept_spans = base.of_attempt(attempt), spans if attempt.progression == ZEROS else 0
            run = _run_device(setup, kept_spans)
            return replace(run, prefetch_cycles=self._prefetch(run, attempt, setup, lambda cold: _run_device(cold, 0)))

        run, assumed = self._assuming(device, max_iterations, base.repeated)
        simulated = self._simulated(chip, run.cores, run.sparse_cores, prefetch=run.prefetch_cycles, assumed=assumed)
        return replace(simulated, error=time_error(chip, traits_of(simulated)))

    @with_rare_collections()
    def run_slice(
        self,
        shape: SliceShape,
        assignment: Sequence[int],
        *,
        chip: Chip,
        parameters: Sequence[Sequence[Words | Unknown]] = (),
        operand_words: Sequence[OperandWords] = (),
        spans: int = 0,
        one_for_all: bool = True,
        remember: bool = True,
        max_iterations: int = MAX_ITERATIONS,
    ) -> SliceRun:
        """Execute the program on the models of all chips of a slice.

        Args, except as for `run`:
          assignment: device ids by partition, which is the flat order of the mesh.
          parameters: contents of the arguments' parts on each partition; empty: nothing is known of them.
          operand_words: of each partition; empty: nothing is known.
          spans: of every core and every link.
          one_for_all: let one device represent all if that gives the same result; else all are executed.
          max_iterations: of one core; of SparseCores, as many for each tile, all together.

        Raises:
          SliceError: the program is for one device, or for another number than the slice has.
          NeighbourTableError: constants by which XLA finds neighbors are not known.
          DeadlockError: all devices wait; the message names each with program, line and flag.
          Exception: as `run` raises.
        """
        check_constants(chip.machine, self.prepared_for)
        facts = self.slice_facts
        if facts is None and len(shape.devices) == len(assignment) == 1:
            first = operand_words[0] if operand_words else _nothing_known
            first_contents = parameters[0] if parameters else ()
            return alone(self.run(chip, parameters=first_contents, operand_words=first, spans=spans), shape)
        if facts is None:
            raise SliceError("the program is for one device: nothing in it is sharded")
        where = SliceSetup.of(shape, assignment, facts)
        contents = PartitionContents(
            parameters=tuple(map(self._known, parameters or [()] * len(assignment))), operand_words=tuple(operand_words)
        )
        base = self._setup(chip, spans, remember=remember)

        def devices(attempt: Attempt) -> DevicesRun:
            setup, kept_spans = base.of_attempt(attempt), spans if attempt.progression == ZEROS else 0
            again = partial(run_devices, where=where, facts=facts, contents=contents, spans=0, one_for_all=one_for_all)
            run = again(setup, spans=kept_spans)
            return replace(run, prefetch_cycles=self._prefetch(run, attempt, setup, again))

        run, assumed = self._assuming(devices, max_iterations, base.repeated)
        kernels = self.hlo.kernels if self.hlo is not None else frozenset[str]()
        of_device = partial(self._simulated, chip, prefetch=run.prefetch_cycles, assumed=assumed)
        return slice_run(run, where, facts, chip, kernels, of_device)

    def _prefetch(
        self, run: ProgramRun, attempt: Attempt, setup: DeviceSetup, again: Callable[[DeviceSetup], ProgramRun]
    ) -> int:
        """Return how many cycles longer the first call takes, before which no argument has been brought into VMEM."""
        if attempt.progression != ZEROS or attempt.skipped or not self.may_prefetch:
            return 0
        cold = again(replace(setup, initial=lambda address: int(address in self.flags)))
        return max(0, end_cycles(cold) - end_cycles(run))

    def _setup(self, chip: Chip, spans: int, *, remember: bool) -> DeviceSetup:
        """Return the setup of all attempts; each looks up what earlier attempts have executed."""
        return DeviceSetup(
            chip=chip,
            translations=self.translations,
            sparse=self.sparse,
            uses=self.uses,
            hlo=self.hlo,
            parameters=(),
            operand_words=_nothing_known,
            initial=lambda _: 1,
            pointers=self.pointers,
            remember=remember,
            repeated=RepeatedCalls(chip.machine, spans) if remember and not self.sparse.programs else None,
        )

    def _assuming(
        self, run_with: Callable[[Attempt], _Run], limit: int, repeated: RepeatedCalls | None
    ) -> tuple[_Run, dict[str, str]]:
        """Run the program, with zeros for values that XLA's own operations compute.

        Repeated runs find the operations that have such values. Kernels, which have none and take most of the time, are
        left out meanwhile unless they are looked up.

        Returns:
          The run, and the values taken as zero, by operation.
        """
        kernels = self.hlo.kernels if self.hlo is not None else frozenset(self.translations)
        long = frozenset(name for name in self.translations.keys() & kernels if self.translations[name].alone)
        assumed: dict[str, str] = {}
        skipped = left_out = frozenset[str]()
        shorter: _Run | None = None
        while True:
            attempt = Attempt(assumed=frozenset(assumed), most_iterations=limit, skipped=skipped)
            try:
                run = run_with(attempt)
            except UnknownValueError as error:
                if not error.computed or error.program in {TOP_LEVEL, *kernels, *assumed}:
                    raise
                assumed[error.program] = error.why
                looked_up = frozenset() if repeated is None else repeated.looked_up
                skipped = long - looked_up if self.hlo is not None else skipped
            except SimulationError as error:
                if not assumed:
                    raise
                raise never_ends(assumed) from error
            else:
                if not skipped:
                    break
                shorter, left_out, skipped = run, skipped, frozenset()
        if assumed:

            def other(progression: Progression, limit: int) -> ProgramRun:
                assuming = Attempt(assumed=frozenset(assumed), progression=progression, most_iterations=limit)
                return run_with(replace(assuming, skipped=left_out))

            check_time(shorter or run, end_cycles(run), assumed, other)
        return run, assumed

    def _simulated(
        self,
        chip: Chip,
        cores: Sequence[CoreRun],
        sparse_cores: tuple[SparseCoreRun, ...],
        *,
        prefetch: int,
        assumed: Mapping[str, str],
    ) -> SimulatedRun:
        return SimulatedRun(
            chip=chip.name,
            flags=dict(chip.compiler_flags),
            clock_hz=chip.machine.clock_hz,
            cores=tuple(cores),
            prefetch_cycles=prefetch,
            matrix_units=chip.machine.mxu_count,
            bundles=sum(translation.blocks[-1].last + 1 for translation in self.translations.values()),
            hbm_bytes_per_cycle=chip.machine.hbm_bytes_per_s / chip.machine.clock_hz,
            slots=next((dict(use.slots) for use in self.uses.values()), {}),
            vmem=self.vmem,
            assumptions=(
                *(f"{name}: {why} counts as zero" for name, why in assumed.items()),
                *([_SPARSE_CORES_MODELLED] if sparse_cores else []),
                *([_HOST_MODELLED] if any(core.host_bytes for core in cores) else []),
            ),
            sparse_cores=sparse_cores,
            module=self.hlo.module if self.hlo is not None else "",
        )

    def _known(self, parameters: Sequence[Words | Unknown]) -> Sequence[Words | Unknown]:
        declared = self.hlo.parameters if self.hlo is not None else {}
        count = max(len(parameters), *(number + 1 for number in declared), 0) if declared else len(parameters)
        names = {number: parameter.name for number, parameter in declared.items()}
        return [
            parameters[number]
            if number < len(parameters)
            else Unknown(
                f"argument {names.get(number, number)}, of which only the shape was given",
                computed=False,
                argument=number,
            )
            for number in range(count)
        ]


def _run_device(setup: DeviceSetup, spans: int) -> DeviceRun:
    schedule = Schedule()
    model = DeviceModel.of(setup, schedule, spans, rounds=rounds_of(setup, schedule, spans))
    cores, sparse_cores = model.cores, model.parts.sparse_cores
    for core in cores:
        schedule.start(0, core.run(), lambda core=core: f"core {core.number}: {core.waits_for}")
    ends = schedule.run()
    runs = tuple(core.result(int(end)) for core, end in zip(cores, ends, strict=False))
    return DeviceRun(cores=runs, iterations=model.iterations, sparse_cores=sparse_cores.results())
